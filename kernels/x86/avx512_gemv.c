/* Both tiles of a panel in one register, tile 0 in its lower half, so that what the AVX2 tier does twice is done once, and vpternlog puts
 * the sign to the magnitude. One token: two panels at once, for one panel has but two fma chains here; a last single panel runs alone.
 * Every chain is the formula's own, k ascending. */
#include "kernels/x86/avx2_vector.h"
#include "kernels/x86/avx512.h"

/* Every line of a matrix is prefetched twice: far ahead into L2, one line at a time among the arithmetic, and near into L1, a whole group
 * in a burst before it. A matrix and its scales are one stream, so that this reaches into the next panels where there are few columns;
 * panels side by side take turns by groups, not by lines. Cold, as a fraction of a pure read, one thread of Emerald Rapids, at
 * 2048x7168, 7168x64 and 768x2048: no prefetch 0.70, 0.53; both by the line, +8 KiB and +2 KiB, panels in turns by lines 0.89, 0.86,
 * 0.88, by groups 0.92, 0.85, 0.91; both in bursts 0.94, 0.90, 0.92; far in a burst, near by the line 0.88, 0.81, 0.88; far by the line,
 * near in a burst of +2 KiB 0.96, 0.92, 0.95, +4 KiB 0.96, 0.96, 0.95, +1.1 KiB 0.94, 0.90, 0.93; far +12 KiB 0.96, 0.92, 0.93; one panel
 * alone instead of two 0.92, 0.94, 0.93, and a fifth slower hot. */
#define PREFETCH_FAR 8192
#define PREFETCH_NEAR 4096
#define PREFETCH_SCALES 256

/* Rows 0-7 and rows 8-15 of both tiles. */
struct chain {
    __m512 low, high;
};

AVX2_INLINE __m512i load(const uint8_t *at)
{
    return _mm512_loadu_si512((const void *)at);
}

AVX2_INLINE void prefetch_far(const uint8_t *at)
{
    _mm_prefetch((const char *)at + PREFETCH_FAR, _MM_HINT_T1);
}

#define OR_AND 0xf8 /* a | (b & c) */

/* The upper halves of the raw values; the sign bit of each lane moves into place by `left`. */
#define RAW(bytes, isolate, signs, left)                                                                                                   \
    _mm512_ternarylogic_epi32(_mm512_maddubs_epi16(bytes, _mm512_set1_epi16(isolate)), _mm512_slli_epi16(signs, left),                     \
                              _mm512_set1_epi16(INT16_MIN), OR_AND)
#define EVEN 0x0010
#define ODD 0x1000

AVX2_INLINE __m512 even_lanes(__m512i raw)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
}

AVX2_INLINE __m512 odd_lanes(__m512i raw)
{
    return _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32((int)0xffff0000)));
}

AVX2_INLINE void chain_add(struct chain *s, __m512 low, __m512 high, float v)
{
    __m512 x = _mm512_set1_ps(v);

    s->low = _mm512_fmadd_ps(low, x, s->low);
    s->high = _mm512_fmadd_ps(high, x, s->high);
}

AVX2_INLINE __m512 scales_of(const float *scale)
{
    return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(scale[0]), _mm512_set1_ps(scale[1]));
}

AVX2_INLINE __m256 tile1(__m512 v)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}

AVX2_INLINE __m256 tile0(__m512 v)
{
    return _mm512_castps512_ps256(v);
}

#define EIGHT_PAIRS(pair)                                                                                                                  \
    pair(0);                                                                                                                               \
    pair(1);                                                                                                                               \
    pair(2);                                                                                                                               \
    pair(3);                                                                                                                               \
    pair(4);                                                                                                                               \
    pair(5);                                                                                                                               \
    pair(6);                                                                                                                               \
    pair(7)

/* ---- one token: panels a and b side by side ------------------------------------------------------ */

AVX2_INLINE void raw_add(struct chain *s, __m512i raw, float v)
{
    chain_add(s, even_lanes(raw), odd_lanes(raw), v);
}

#define PANEL_PAIR(p)                                                                                                                      \
    do {                                                                                                                                   \
        __m512i bytes = load(at + 64 + 64 * (p));                                                                                          \
                                                                                                                                           \
        prefetch_far(at + 64 + 64 * (p));                                                                                                  \
        raw_add(s, RAW(bytes, EVEN, signs, 2 * (p)), v[2 * (p)]);                                                                          \
        raw_add(s, RAW(bytes, ODD, signs, 2 * (p) + 1), v[2 * (p) + 1]);                                                                   \
    } while (0)

AVX2_INLINE void group(struct chain *s, const uint8_t *at, const float *v)
{
    __m512i signs;

    avx2_prefetch_group(at + PREFETCH_NEAR);
    signs = load(at);
    prefetch_far(at);
    EIGHT_PAIRS(PANEL_PAIR);
}

/* r of the panel at `at`, and with `two` (a constant) of the one after it. */
AVX2_INLINE void panels(struct chain ret_r[2], const struct tiers_run *run, const uint8_t *at, const float *scale, const float *v,
                        __m512 undo, const bool two)
{
    const __m512 zero = _mm512_setzero_ps();
    const uint8_t *a = at, *b = at + (size_t)run->groups * LAYOUT_GROUP_BYTES;
    const float *scale_b = scale + 2 * (size_t)run->segments;
    struct chain acc_a = {zero, zero}, acc_b = {zero, zero};
    uint32_t groups = run->first_groups, left = run->groups;

    for (uint32_t segment = 0; segment < run->segments; segment++, scale += 2, scale_b += 2) {
        struct chain sa = {zero, zero}, sb = {zero, zero};
        __m512 scales = scales_of(scale);

        _mm_prefetch((const char *)scale + PREFETCH_SCALES, _MM_HINT_T0);
        left -= groups;
        do {
            group(&sa, a, v);
            if (two)
                group(&sb, b, v);
            a += LAYOUT_GROUP_BYTES;
            b += LAYOUT_GROUP_BYTES;
            v += LAYOUT_GROUP_COLUMNS;
        } while (--groups);
        acc_a.low = _mm512_fmadd_ps(sa.low, scales, acc_a.low);
        acc_a.high = _mm512_fmadd_ps(sa.high, scales, acc_a.high);
        if (two) {
            scales = scales_of(scale_b);
            _mm_prefetch((const char *)scale_b + PREFETCH_SCALES, _MM_HINT_T0);
            acc_b.low = _mm512_fmadd_ps(sb.low, scales, acc_b.low);
            acc_b.high = _mm512_fmadd_ps(sb.high, scales, acc_b.high);
        }
        groups = left < LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS ? left : LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS;
    }
    ret_r[0] = (struct chain){_mm512_fmadd_ps(acc_a.low, undo, zero), _mm512_fmadd_ps(acc_a.high, undo, zero)};
    if (two)
        ret_r[1] = (struct chain){_mm512_fmadd_ps(acc_b.low, undo, zero), _mm512_fmadd_ps(acc_b.high, undo, zero)};
}

/* ---- two to four tokens: one panel; n is a constant wherever this is inlined ---------------------- */

/* Named registers, no array: a loop over tokens would keep them in memory. */
struct token_chains {
    struct chain t0, t1, t2, t3;
};

AVX2_INLINE void token_column(struct token_chains *s, __m512i raw, const struct tiers_token *token, const uint32_t n, size_t k)
{
    __m512 low = even_lanes(raw), high = odd_lanes(raw);

    chain_add(&s->t0, low, high, token[0].v[k]);
    chain_add(&s->t1, low, high, token[1].v[k]);
    if (n > 2)
        chain_add(&s->t2, low, high, token[2].v[k]);
    if (n > 3)
        chain_add(&s->t3, low, high, token[3].v[k]);
}

#define TOKEN_PAIR(p)                                                                                                                      \
    do {                                                                                                                                   \
        __m512i bytes = load(at + 64 + 64 * (p));                                                                                          \
                                                                                                                                           \
        prefetch_far(at + 64 + 64 * (p));                                                                                                  \
        token_column(s, RAW(bytes, EVEN, signs, 2 * (p)), token, n, k + 2 * (p));                                                          \
        token_column(s, RAW(bytes, ODD, signs, 2 * (p) + 1), token, n, k + 2 * (p) + 1);                                                   \
    } while (0)

AVX2_INLINE void token_group(struct token_chains *s, const uint8_t *at, const struct tiers_token *token, const uint32_t n, size_t k)
{
    __m512i signs;

    avx2_prefetch_group(at + PREFETCH_NEAR);
    signs = load(at);
    prefetch_far(at);
    EIGHT_PAIRS(TOKEN_PAIR);
}

AVX2_INLINE void chain_scale(struct chain *acc, const struct chain *s, __m512 scales)
{
    acc->low = _mm512_fmadd_ps(s->low, scales, acc->low);
    acc->high = _mm512_fmadd_ps(s->high, scales, acc->high);
}

AVX2_INLINE const uint8_t *token_panel(struct chain ret_r[TIERS_TOKENS_MAX], const struct tiers_run *run, const uint8_t *at,
                                       const float *scale, const struct tiers_token *token, const uint32_t n)
{
    const struct chain zero = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    uint32_t groups = run->first_groups, left = run->groups;
    struct token_chains acc = {zero, zero, zero, zero};
    size_t k = 0;

    for (uint32_t segment = 0; segment < run->segments; segment++, scale += 2) {
        struct token_chains s = {zero, zero, zero, zero};
        __m512 scales = scales_of(scale);

        _mm_prefetch((const char *)scale + PREFETCH_SCALES, _MM_HINT_T0);
        left -= groups;
        do {
            token_group(&s, at, token, n, k);
            at += LAYOUT_GROUP_BYTES;
            k += LAYOUT_GROUP_COLUMNS;
        } while (--groups);
        chain_scale(&acc.t0, &s.t0, scales);
        chain_scale(&acc.t1, &s.t1, scales);
        chain_scale(&acc.t2, &s.t2, scales);
        chain_scale(&acc.t3, &s.t3, scales);
        groups = left < LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS ? left : LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS;
    }
    ret_r[0] = acc.t0;
    ret_r[1] = acc.t1;
    ret_r[2] = acc.t2;
    ret_r[3] = acc.t3;
    for (uint32_t t = 0; t < n; t++) {
        __m512 undo = _mm512_set1_ps(token[t].undo);

        ret_r[t] = (struct chain){_mm512_fmadd_ps(ret_r[t].low, undo, zero.low), _mm512_fmadd_ps(ret_r[t].high, undo, zero.low)};
    }
    return at;
}

AVX2_INLINE void add_panel(float *y, uint32_t rows, float weight, const struct chain *r)
{
    avx2_add_panel(y, rows, weight, tile0(r->low), tile0(r->high), tile1(r->low), tile1(r->high));
}

#include "kernels/x86/avx512_halves.inc"

/* ---- gate and up ---------------------------------------------------------------------------------- */

AVX2_INLINE void store_h(float *h, const struct chain *r)
{
    _mm256_store_ps(h, _mm256_mul_ps(avx2_silu(tile0(r->low)), tile1(r->low)));
    _mm256_store_ps(h + 8, _mm256_mul_ps(avx2_silu(tile0(r->high)), tile1(r->high)));
}

void avx512_gate_up(const struct tiers_run *run, const float *v, float undo, float *h)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;
    size_t panel_bytes = (size_t)run->groups * LAYOUT_GROUP_BYTES;
    __m512 undo_all = _mm512_set1_ps(undo);
    struct chain r[2];
    uint32_t i = 0;

    if (halves_any_panel(run)) {
        avx512_gate_up_tokens(run, &(struct tiers_token){.v = v, .undo = undo, .out = h}, 1);
        return;
    }
    for (; i + 2 <= run->count; i += 2, h += 2 * LAYOUT_TILE_ROWS) {
        panels(r, run, at, scale, v, undo_all, true);
        at += 2 * panel_bytes;
        scale += 4 * (size_t)run->segments;
        store_h(h, &r[0]);
        store_h(h + LAYOUT_TILE_ROWS, &r[1]);
    }
    if (i < run->count) {
        panels(r, run, at, scale, v, undo_all, false);
        store_h(h, &r[0]);
    }
}

AVX2_INLINE void gate_up_n(const struct tiers_run *run, const struct tiers_token *token, const uint32_t n)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;

    for (uint32_t i = 0; i < run->count; i++) {
        struct chain r[TIERS_TOKENS_MAX];

        at = token_panel(r, run, at, scale, token, n);
        scale += 2 * (size_t)run->segments;
        for (uint32_t t = 0; t < n; t++)
            store_h(token[t].out + (size_t)i * LAYOUT_TILE_ROWS, &r[t]);
    }
}

void avx512_gate_up_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count)
{
    if (halves_any_panel(run)) {
        /* eight lanes: nothing for 512 bits to do */
        halves_gate_up(run, token, count, avx2_rm_half_panel, avx512_gate_up_tokens);
        return;
    }
    switch (count) {
    case 1: avx512_gate_up(run, token->v, token->undo, token->out); break;
    case 2: gate_up_n(run, token, 2); break;
    case 3: gate_up_n(run, token, 3); break;
    case 4: gate_up_n(run, token, 4); break;
    }
}

/* ---- down ----------------------------------------------------------------------------------------- */

void avx512_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;
    size_t panel_bytes = (size_t)run->groups * LAYOUT_GROUP_BYTES;
    __m512 undo_all = _mm512_set1_ps(undo);
    struct chain r[2];
    uint32_t row = 0;

    if (halves_any_group(run)) {
        cut_down(run, v, undo, weight, y, rows);
        return;
    }
    for (; rows - row > LAYOUT_PANEL_ROWS; row += 2 * LAYOUT_PANEL_ROWS) {
        panels(r, run, at, scale, v, undo_all, true);
        at += 2 * panel_bytes;
        scale += 4 * (size_t)run->segments;
        add_panel(y + row, LAYOUT_PANEL_ROWS, weight, &r[0]);
        add_panel(y + row + LAYOUT_PANEL_ROWS, rows - row - LAYOUT_PANEL_ROWS, weight, &r[1]);
        if (rows - row <= 2 * LAYOUT_PANEL_ROWS)
            return;
    }
    if (row < rows) {
        panels(r, run, at, scale, v, undo_all, false);
        add_panel(y + row, rows - row, weight, &r[0]);
    }
}

AVX2_INLINE void down_n(const struct tiers_run *run, const struct tiers_token *token, uint32_t rows, const uint32_t n)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;

    for (uint32_t row = 0; row < rows; row += LAYOUT_PANEL_ROWS) {
        struct chain r[TIERS_TOKENS_MAX];

        at = token_panel(r, run, at, scale, token, n);
        scale += 2 * (size_t)run->segments;
        for (uint32_t t = 0; t < n; t++)
            add_panel(token[t].out + row, rows - row, token[t].weight, &r[t]);
    }
}

void avx512_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows)
{
    if (halves_any_group(run)) {
        cut_down_tokens(run, token, count, rows);
        return;
    }
    switch (count) {
    case 1: avx512_down(run, token->v, token->undo, token->weight, token->out, rows); break;
    case 2: down_n(run, token, rows, 2); break;
    case 3: down_n(run, token, rows, 3); break;
    case 4: down_n(run, token, rows, 4); break;
    }
}

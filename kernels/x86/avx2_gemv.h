/* A panel's 32 rows at once: sixteen rows of a tile in the sixteen 16-bit lanes of a register, x broadcast. One token: both tiles together,
 * four fma chains, enough to hide the latency of each. Two to four tokens: one tile after the other within a segment, for 16 registers hold
 * two chains of each token; the second tile's bytes are in L1 by then. Every chain is the formula's own, k ascending.
 *
 * Included by the variants, which define how a byte becomes the upper half of a raw value:
 *   isolate_even(bytes), isolate_odd(bytes): of each 16-bit lane the lower or upper byte, shifted left by 4 and alone
 *   VARIANT(name): the name of a function of this variant */
#include "kernels/x86/avx2.h"
#include "kernels/x86/avx2_vector.h"

/* Far ahead into L2: the panels of a matrix and its scales are one stream, so that this reaches into the next panels where there are few
 * columns. Cold, as a fraction of a pure read, on Sapphire Rapids: into L1 +1.1 KiB 0.69, +2.3 KiB 0.78, +4 KiB 0.79, +8 KiB 0.79; into L2
 * +8 KiB 0.81-0.86, +16 KiB 0.84; +2 KiB into L1 as well changes nothing here (0.77 / 0.76, 0.74 / 0.75, 0.76 / 0.75 at 2048x7168, 7168x64,
 * 768x2048), unlike in the AVX-512 tier; non-temporal 0.48. */
#define PREFETCH_WEIGHTS 8192
#define PREFETCH_SCALES 256

/* Four chains: rows 0-7 and 8-15 of tile 0, then of tile 1. */
struct sums {
    __m256 low0, high0, low1, high1;
};

AVX2_INLINE __m256i load(const uint8_t *at)
{
    return _mm256_load_si256((const __m256i *)(const void *)at);
}

AVX2_INLINE void prefetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at + PREFETCH_WEIGHTS, _MM_HINT_T1);
}

/* The sign bit of each lane moves into place by `left`. */
#define SIGNED(magnitude, signs, left) \
    _mm256_or_si256(magnitude, _mm256_and_si256(_mm256_slli_epi16(signs, left), _mm256_set1_epi16(INT16_MIN)))

/* Lanes 0, 2, ... are rows 0-7, lanes 1, 3, ... rows 8-15. */
AVX2_INLINE __m256 even_lanes(__m256i raw)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
}

AVX2_INLINE __m256 odd_lanes(__m256i raw)
{
    return _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32((int)0xffff0000)));
}

/* ---- one token ---------------------------------------------------------------------------------- */

AVX2_INLINE void column(struct sums *s, __m256i raw0, __m256i raw1, float v)
{
    __m256 x = _mm256_set1_ps(v);

    s->low0 = _mm256_fmadd_ps(even_lanes(raw0), x, s->low0);
    s->high0 = _mm256_fmadd_ps(odd_lanes(raw0), x, s->high0);
    s->low1 = _mm256_fmadd_ps(even_lanes(raw1), x, s->low1);
    s->high1 = _mm256_fmadd_ps(odd_lanes(raw1), x, s->high1);
}

/* Columns 2p and 2p + 1. */
#define COLUMN_PAIR(p)                                                                                                         \
    do {                                                                                                                       \
        __m256i bytes0 = load(at + 64 + 64 * (p)), bytes1 = load(at + 96 + 64 * (p));                                          \
                                                                                                                               \
        prefetch(at + 64 + 64 * (p));                                                                                          \
        column(s, SIGNED(isolate_even(bytes0), signs0, 2 * (p)), SIGNED(isolate_even(bytes1), signs1, 2 * (p)), v[2 * (p)]);   \
        column(s, SIGNED(isolate_odd(bytes0), signs0, 2 * (p) + 1), SIGNED(isolate_odd(bytes1), signs1, 2 * (p) + 1),          \
               v[2 * (p) + 1]);                                                                                                \
    } while (0)

AVX2_INLINE void group(struct sums *s, const uint8_t *at, const float *v)
{
    __m256i signs0 = load(at), signs1 = load(at + 32);

    prefetch(at);
    COLUMN_PAIR(0);
    COLUMN_PAIR(1);
    COLUMN_PAIR(2);
    COLUMN_PAIR(3);
    COLUMN_PAIR(4);
    COLUMN_PAIR(5);
    COLUMN_PAIR(6);
    COLUMN_PAIR(7);
}

/* The 32 results r of the panel at `at`; returns the next panel's first byte. */
AVX2_INLINE const uint8_t *panel(struct sums *ret_r, const struct tiers_run *run, const uint8_t *at, const float *scale, const float *v,
                                 __m256 undo)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 acc_low0 = zero, acc_high0 = zero, acc_low1 = zero, acc_high1 = zero;
    uint32_t groups = run->first_groups, left = run->groups;

    for (uint32_t segment = 0; segment < run->segments; segment++, scale += 2) {
        struct sums s = {zero, zero, zero, zero};
        __m256 scale0 = _mm256_broadcast_ss(scale), scale1 = _mm256_broadcast_ss(scale + 1);

        _mm_prefetch((const char *)scale + PREFETCH_SCALES, _MM_HINT_T0);
        left -= groups;
        do {
            group(&s, at, v);
            at += LAYOUT_GROUP_BYTES;
            v += LAYOUT_GROUP_COLUMNS;
        } while (--groups);
        acc_low0 = _mm256_fmadd_ps(s.low0, scale0, acc_low0);
        acc_high0 = _mm256_fmadd_ps(s.high0, scale0, acc_high0);
        acc_low1 = _mm256_fmadd_ps(s.low1, scale1, acc_low1);
        acc_high1 = _mm256_fmadd_ps(s.high1, scale1, acc_high1);
        groups = left < LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS ? left : LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS;
    }
    ret_r->low0 = _mm256_fmadd_ps(acc_low0, undo, zero);
    ret_r->high0 = _mm256_fmadd_ps(acc_high0, undo, zero);
    ret_r->low1 = _mm256_fmadd_ps(acc_low1, undo, zero);
    ret_r->high1 = _mm256_fmadd_ps(acc_high1, undo, zero);
    return at;
}

/* ---- two to four tokens; n is a constant wherever this is inlined --------------------------------- */

struct tile_sums {
    __m256 low[TIERS_TOKENS_MAX], high[TIERS_TOKENS_MAX];
};

/* Named registers, no array: a loop over tokens would keep them in memory. */
struct tile_chains {
    __m256 low0, high0, low1, high1, low2, high2, low3, high3;
};

#define TOKEN_FMA(t)                                                      \
    do {                                                                  \
        if (n > (t)) {                                                    \
            __m256 x = _mm256_broadcast_ss(token[t].v + k + j);           \
                                                                          \
            c->low##t = _mm256_fmadd_ps(low, x, c->low##t);               \
            c->high##t = _mm256_fmadd_ps(high, x, c->high##t);            \
        }                                                                 \
    } while (0)

AVX2_INLINE void tile_column(struct tile_chains *c, __m256i raw, const struct tiers_token *token, const uint32_t n, size_t k, size_t j)
{
    __m256 low = even_lanes(raw), high = odd_lanes(raw);

    TOKEN_FMA(0);
    TOKEN_FMA(1);
    TOKEN_FMA(2);
    TOKEN_FMA(3);
}

#define TILE_PAIR(p)                                                                               \
    do {                                                                                           \
        __m256i bytes = load(at + 64 + 64 * (p));                                                  \
                                                                                                   \
        tile_column(c, SIGNED(isolate_even(bytes), signs, 2 * (p)), token, n, k, 2 * (p));         \
        tile_column(c, SIGNED(isolate_odd(bytes), signs, 2 * (p) + 1), token, n, k, 2 * (p) + 1);  \
    } while (0)

/* `at`: the group's first byte, 32 further for tile 1. */
AVX2_INLINE void tile_group(struct tile_chains *c, const uint8_t *at, const struct tiers_token *token, const uint32_t n, size_t k)
{
    __m256i signs = load(at);

    TILE_PAIR(0);
    TILE_PAIR(1);
    TILE_PAIR(2);
    TILE_PAIR(3);
    TILE_PAIR(4);
    TILE_PAIR(5);
    TILE_PAIR(6);
    TILE_PAIR(7);
}

#define TOKEN_SCALE(t)                                                            \
    do {                                                                          \
        if (n > (t)) {                                                            \
            acc->low[t] = _mm256_fmadd_ps(c.low##t, scale_all, acc->low[t]);      \
            acc->high[t] = _mm256_fmadd_ps(c.high##t, scale_all, acc->high[t]);   \
        }                                                                         \
    } while (0)

AVX2_INLINE void tile_segment(struct tile_sums *acc, const uint8_t *at, uint32_t groups, float scale, const struct tiers_token *token,
                              const uint32_t n, size_t k)
{
    const __m256 zero = _mm256_setzero_ps();
    struct tile_chains c = {zero, zero, zero, zero, zero, zero, zero, zero};
    __m256 scale_all = _mm256_set1_ps(scale);

    do {
        tile_group(&c, at, token, n, k);
        at += LAYOUT_GROUP_BYTES;
        k += LAYOUT_GROUP_COLUMNS;
    } while (--groups);
    TOKEN_SCALE(0);
    TOKEN_SCALE(1);
    TOKEN_SCALE(2);
    TOKEN_SCALE(3);
}

/* r of tile 0 and 1. */
AVX2_INLINE const uint8_t *token_panel(struct tile_sums ret_r[2], const struct tiers_run *run, const uint8_t *at, const float *scale,
                                       const struct tiers_token *token, const uint32_t n)
{
    const __m256 zero = _mm256_setzero_ps();
    uint32_t groups = run->first_groups, left = run->groups;
    size_t k = 0;

    memset(ret_r, 0, 2 * sizeof(*ret_r));
    for (uint32_t segment = 0; segment < run->segments; segment++, scale += 2) {
        left -= groups;
        for (size_t ahead = 0; ahead < (size_t)groups * LAYOUT_GROUP_BYTES; ahead += 64)
            prefetch(at + ahead);
        _mm_prefetch((const char *)scale + PREFETCH_SCALES, _MM_HINT_T0);
        tile_segment(&ret_r[0], at, groups, scale[0], token, n, k);
        tile_segment(&ret_r[1], at + 32, groups, scale[1], token, n, k);
        at += (size_t)groups * LAYOUT_GROUP_BYTES;
        k += (size_t)groups * LAYOUT_GROUP_COLUMNS;
        groups = left < LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS ? left : LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS;
    }
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t tile = 0; tile < 2; tile++) {
            __m256 undo = _mm256_set1_ps(token[t].undo);

            ret_r[tile].low[t] = _mm256_fmadd_ps(ret_r[tile].low[t], undo, zero);
            ret_r[tile].high[t] = _mm256_fmadd_ps(ret_r[tile].high[t], undo, zero);
        }
    return at;
}

/* ---- gate and up ---------------------------------------------------------------------------------- */

AVX2_INLINE void store_h(float *h, __m256 g_low, __m256 g_high, __m256 u_low, __m256 u_high)
{
    _mm256_store_ps(h, _mm256_mul_ps(avx2_silu(g_low), u_low));
    _mm256_store_ps(h + 8, _mm256_mul_ps(avx2_silu(g_high), u_high));
}

void VARIANT(gate_up)(const struct tiers_run *run, const float *v, float undo, float *h)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;
    __m256 undo_all = _mm256_set1_ps(undo);

    for (uint32_t i = 0; i < run->count; i++, h += LAYOUT_TILE_ROWS) {
        struct sums r;

        at = panel(&r, run, at, scale, v, undo_all);
        scale += 2 * (size_t)run->segments;
        store_h(h, r.low0, r.high0, r.low1, r.high1);
    }
}

AVX2_INLINE void gate_up_n(const struct tiers_run *run, const struct tiers_token *token, const uint32_t n)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;

    for (uint32_t i = 0; i < run->count; i++) {
        struct tile_sums r[2];

        at = token_panel(r, run, at, scale, token, n);
        scale += 2 * (size_t)run->segments;
        for (uint32_t t = 0; t < n; t++)
            store_h(token[t].out + (size_t)i * LAYOUT_TILE_ROWS, r[0].low[t], r[0].high[t], r[1].low[t], r[1].high[t]);
    }
}

void VARIANT(gate_up_tokens)(const struct tiers_run *run, const struct tiers_token *token, uint32_t count)
{
    switch (count) {
    case 1:
        VARIANT(gate_up)(run, token->v, token->undo, token->out);
        break;
    case 2:
        gate_up_n(run, token, 2);
        break;
    case 3:
        gate_up_n(run, token, 3);
        break;
    case 4:
        gate_up_n(run, token, 4);
        break;
    }
}

/* ---- down ----------------------------------------------------------------------------------------- */

void VARIANT(down)(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;
    __m256 undo_all = _mm256_set1_ps(undo);

    for (uint32_t row = 0; row < rows; row += LAYOUT_PANEL_ROWS) {
        struct sums r;

        at = panel(&r, run, at, scale, v, undo_all);
        scale += 2 * (size_t)run->segments;
        avx2_add_panel(y + row, rows - row, weight, r.low0, r.high0, r.low1, r.high1);
    }
}

AVX2_INLINE void down_n(const struct tiers_run *run, const struct tiers_token *token, uint32_t rows, const uint32_t n)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;

    for (uint32_t row = 0; row < rows; row += LAYOUT_PANEL_ROWS) {
        struct tile_sums r[2];

        at = token_panel(r, run, at, scale, token, n);
        scale += 2 * (size_t)run->segments;
        for (uint32_t t = 0; t < n; t++)
            avx2_add_panel(token[t].out + row, rows - row, token[t].weight, r[0].low[t], r[0].high[t], r[1].low[t], r[1].high[t]);
    }
}

void VARIANT(down_tokens)(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows)
{
    switch (count) {
    case 1:
        VARIANT(down)(run, token->v, token->undo, token->weight, token->out, rows);
        break;
    case 2:
        down_n(run, token, rows, 2);
        break;
    case 3:
        down_n(run, token, rows, 3);
        break;
    case 4:
        down_n(run, token, rows, 4);
        break;
    }
}

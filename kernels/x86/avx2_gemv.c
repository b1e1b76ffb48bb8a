/* A panel's 32 rows at once: sixteen rows of a tile in the sixteen 16-bit lanes of a register, x broadcast. The two tiles give four
 * fma chains, enough to hide the latency of each; every chain is the formula's own, k ascending. */
#include "kernels/x86/avx2.h"
#include "kernels/x86/avx2_vector.h"

/* How far ahead of the loads, into L2 only: the panels of a matrix and its scales are one stream, so that this reaches into the next panels
 * where there are few columns. Cold, as a fraction of a pure read, on Sapphire Rapids: into L1 +1.1 KiB 0.69, +2.3 KiB 0.78, +4 KiB 0.79,
 * +8 KiB 0.79; into L2 +8 KiB 0.81-0.86, +16 KiB 0.84; both at once the same; non-temporal 0.48. */
#define PREFETCH_WEIGHTS 8192
#define PREFETCH_SCALES 256

/* Four chains: rows 0-7 and 8-15 of tile 0, then of tile 1. */
struct sums {
    __m256 low0, high0, low1, high1;
};

/* Column j (0 .. 15) of a group. `isolate` shifts the column's byte of each lane left by 4 and drops the other byte. */
AVX2_INLINE void column(struct sums *s, __m256i bytes0, __m256i bytes1, __m256i signs0, __m256i signs1, __m256i isolate, float v)
{
    const __m256i sign_bit = _mm256_set1_epi16(INT16_MIN);
    const __m256i high_half = _mm256_set1_epi32((int)0xffff0000);
    __m256 x = _mm256_set1_ps(v);
    __m256i raw0 = _mm256_or_si256(_mm256_maddubs_epi16(bytes0, isolate), _mm256_and_si256(signs0, sign_bit));
    __m256i raw1 = _mm256_or_si256(_mm256_maddubs_epi16(bytes1, isolate), _mm256_and_si256(signs1, sign_bit));

    s->low0 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(raw0, 16)), x, s->low0);
    s->high0 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(raw0, high_half)), x, s->high0);
    s->low1 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(raw1, 16)), x, s->low1);
    s->high1 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(raw1, high_half)), x, s->high1);
}

/* Columns 2p and 2p + 1. */
#define COLUMN_PAIR(p)                                                                                                         \
    do {                                                                                                                       \
        __m256i bytes0 = _mm256_load_si256((const __m256i *)(const void *)(at + 64 + 64 * (p)));                               \
        __m256i bytes1 = _mm256_load_si256((const __m256i *)(const void *)(at + 96 + 64 * (p)));                               \
                                                                                                                               \
        _mm_prefetch((const char *)at + PREFETCH_WEIGHTS + 64 + 64 * (p), _MM_HINT_T1);                                        \
        column(s, bytes0, bytes1, _mm256_slli_epi16(signs0, 2 * (p)), _mm256_slli_epi16(signs1, 2 * (p)), even, v[2 * (p)]);   \
        column(s, bytes0, bytes1, _mm256_slli_epi16(signs0, 2 * (p) + 1), _mm256_slli_epi16(signs1, 2 * (p) + 1), odd,         \
               v[2 * (p) + 1]);                                                                                                \
    } while (0)

AVX2_INLINE void group(struct sums *s, const uint8_t *at, const float *v)
{
    const __m256i even = _mm256_set1_epi16(0x0010);
    const __m256i odd = _mm256_set1_epi16(0x1000);
    __m256i signs0 = _mm256_load_si256((const __m256i *)(const void *)at);
    __m256i signs1 = _mm256_load_si256((const __m256i *)(const void *)(at + 32));

    _mm_prefetch((const char *)at + PREFETCH_WEIGHTS, _MM_HINT_T1);
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

void avx2_gate_up(const struct tiers_run *run, const float *v, float undo, float *h)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;
    __m256 undo_all = _mm256_set1_ps(undo);

    for (uint32_t i = 0; i < run->count; i++, h += LAYOUT_TILE_ROWS) {
        struct sums r;

        at = panel(&r, run, at, scale, v, undo_all);
        scale += 2 * (size_t)run->segments;
        _mm256_store_ps(h, _mm256_mul_ps(avx2_silu(r.low0), r.low1));
        _mm256_store_ps(h + 8, _mm256_mul_ps(avx2_silu(r.high0), r.high1));
    }
}

AVX2_INLINE void add_weighted(float *y, __m256 r, __m256 weight)
{
    _mm256_storeu_ps(y, _mm256_fmadd_ps(weight, r, _mm256_loadu_ps(y)));
}

AVX2_INLINE void add_panel(float *y, const struct sums *r, __m256 weight)
{
    add_weighted(y, r->low0, weight);
    add_weighted(y + 8, r->high0, weight);
    add_weighted(y + 16, r->low1, weight);
    add_weighted(y + 24, r->high1, weight);
}

void avx2_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows)
{
    const uint8_t *at = run->panels;
    const float *scale = run->scales;
    __m256 undo_all = _mm256_set1_ps(undo), weight_all = _mm256_set1_ps(weight);
    uint32_t whole = rows / LAYOUT_PANEL_ROWS, rest = rows % LAYOUT_PANEL_ROWS;
    struct sums r;

    for (uint32_t i = 0; i < whole; i++, y += LAYOUT_PANEL_ROWS) {
        at = panel(&r, run, at, scale, v, undo_all);
        scale += 2 * (size_t)run->segments;
        add_panel(y, &r, weight_all);
    }
    if (rest) {
        float last[LAYOUT_PANEL_ROWS] = {0};

        memcpy(last, y, rest * sizeof(*y));
        panel(&r, run, at, scale, v, undo_all);
        add_panel(last, &r, weight_all);
        memcpy(y, last, rest * sizeof(*y));
    }
}

/* E4M3 bytes in fp9's panels: a group is 16 columns of 32 rows as in kernels/README section 7, but without signs, which stay in the bytes.
 *
 * A code's byte with sign and magnitude moved into place is a binary32 of the weight times 2^-120, a subnormal one where the code is
 * subnormal. Sums go in fp9's order, so that the result is the reference's to the bit.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/bits.h"
#include "proto/base/size.h"
#include "tests/bench/rival.h"

#define GROUP_BYTES 512
#define PREFETCH_FAR 8192 /* into L2 and L1, as the AVX2 tier does */
#define PREFETCH_NEAR 4096

static size_t scales_bytes(uint32_t rows, uint32_t columns)
{
    size_t panels = size_ceil_div(rows, LAYOUT_PANEL_ROWS), segments = size_ceil_div(columns, LAYOUT_BLOCK);

    return size_round_up(panels * segments * 2 * sizeof(float), LAYOUT_ALIGN);
}

static size_t matrix_bytes(uint32_t rows, uint32_t columns)
{
    size_t panels = size_ceil_div(rows, LAYOUT_PANEL_ROWS), groups = size_ceil_div(columns, LAYOUT_GROUP_COLUMNS);

    return scales_bytes(rows, columns) + panels * groups * GROUP_BYTES;
}

static void pack(const struct weights_matrix *matrix, uint8_t *at)
{
    size_t groups = size_ceil_div(matrix->columns, LAYOUT_GROUP_COLUMNS);
    float *scales = (float *)(void *)at;

    at += scales_bytes(matrix->rows, matrix->columns);
    for (size_t row = 0; row < matrix->rows; row++) {
        size_t panel = row / LAYOUT_PANEL_ROWS, tile = row / LAYOUT_TILE_ROWS % 2, i = row % LAYOUT_TILE_ROWS;
        size_t lane = i < 8 ? 2 * i : 2 * (i - 8) + 1;

        for (size_t k = 0; k < matrix->columns; k++)
            at[(panel * groups + k / 16) * GROUP_BYTES + 64 * (k % 16 / 2) + 32 * tile + 2 * lane + k % 2] =
                matrix->codes[row * matrix->columns + k];
        for (size_t s = 0; s < matrix->segments; s++)
            scales[(panel * matrix->segments + s) * 2 + tile] = matrix->scales[row / LAYOUT_TILE_ROWS * matrix->segments + s];
    }
}

static float prepare(float *v, const float *in, uint32_t columns)
{
    int e = tiers_active()->normalise_f32(v, (uint32_t)size_round_up(columns, LAYOUT_GROUP_COLUMNS), in, columns);

    return bits_pow2(120 - 126 + e);
}

struct sums {
    __m256 low0, high0, low1, high1; /* rows 0-7 and 8-15 of tile 0, then of tile 1 */
};

#define INLINE static inline __attribute__((always_inline))

INLINE void add_column(struct sums *s, __m256i codes0, __m256i codes1, float v)
{
    const __m256i sign_and_magnitude = _mm256_set1_epi16((int16_t)0x87f0);
    const __m256i high_half = _mm256_set1_epi32((int)0xffff0000);
    __m256i raw0 = _mm256_and_si256(_mm256_srai_epi16(codes0, 4), sign_and_magnitude);
    __m256i raw1 = _mm256_and_si256(_mm256_srai_epi16(codes1, 4), sign_and_magnitude);
    __m256 x = _mm256_set1_ps(v);

    s->low0 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(raw0, 16)), x, s->low0);
    s->high0 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(raw0, high_half)), x, s->high0);
    s->low1 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(raw1, 16)), x, s->low1);
    s->high1 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(raw1, high_half)), x, s->high1);
}

INLINE void add_group(struct sums *s, const uint8_t *at, const float *v)
{
    for (const uint8_t *near = at + PREFETCH_NEAR, *end = near + GROUP_BYTES; near < end; near += 64)
        _mm_prefetch((const char *)near, _MM_HINT_T0);
#pragma GCC unroll 8
    for (int pair = 0; pair < 8; pair++, at += 64, v += 2) {
        __m256i codes0 = _mm256_load_si256((const __m256i *)(const void *)at);
        __m256i codes1 = _mm256_load_si256((const __m256i *)(const void *)(at + 32));

        _mm_prefetch((const char *)at + PREFETCH_FAR, _MM_HINT_T1);
        add_column(s, _mm256_slli_epi16(codes0, 8), _mm256_slli_epi16(codes1, 8), v[0]);
        add_column(s, codes0, codes1, v[1]);
    }
}

static void dot_panel(float ret_sums[LAYOUT_PANEL_ROWS], const uint8_t *at, const float *scales, size_t segments, size_t groups,
                      const float *v, float undo)
{
    const __m256 zero = _mm256_setzero_ps(), undo_all = _mm256_set1_ps(undo);
    __m256 low0 = zero, high0 = zero, low1 = zero, high1 = zero;

    for (; segments > 0; segments--, scales += 2) {
        struct sums s = {zero, zero, zero, zero};
        size_t here = groups < 8 ? groups : 8;
        __m256 scale0 = _mm256_broadcast_ss(scales), scale1 = _mm256_broadcast_ss(scales + 1);

        groups -= here;
        for (; here > 0; here--, at += GROUP_BYTES, v += LAYOUT_GROUP_COLUMNS)
            add_group(&s, at, v);
        low0 = _mm256_fmadd_ps(s.low0, scale0, low0);
        high0 = _mm256_fmadd_ps(s.high0, scale0, high0);
        low1 = _mm256_fmadd_ps(s.low1, scale1, low1);
        high1 = _mm256_fmadd_ps(s.high1, scale1, high1);
    }
    _mm256_store_ps(ret_sums, _mm256_fmadd_ps(low0, undo_all, zero));
    _mm256_store_ps(ret_sums + 8, _mm256_fmadd_ps(high0, undo_all, zero));
    _mm256_store_ps(ret_sums + 16, _mm256_fmadd_ps(low1, undo_all, zero));
    _mm256_store_ps(ret_sums + 24, _mm256_fmadd_ps(high1, undo_all, zero));
}

static void gemv(const uint8_t *at, uint32_t rows, uint32_t columns, const float *v, float undo, float weight, float *y)
{
    size_t segments = size_ceil_div(columns, LAYOUT_BLOCK), groups = size_ceil_div(columns, LAYOUT_GROUP_COLUMNS);
    const float *scales = (const float *)(const void *)at;

    at += scales_bytes(rows, columns);
    for (; rows > 0; y += LAYOUT_PANEL_ROWS) {
        uint32_t here = rows < LAYOUT_PANEL_ROWS ? rows : LAYOUT_PANEL_ROWS;
        float sums[LAYOUT_PANEL_ROWS] __attribute__((aligned(32)));

        dot_panel(sums, at, scales, segments, groups, v, undo);
        for (uint32_t i = 0; i < here; i++)
            y[i] = __builtin_fmaf(weight, sums[i], y[i]);
        at += groups * GROUP_BYTES;
        scales += 2 * segments;
        rows -= here;
    }
}

static const char *isa(void)
{
    return "avx2";
}

const struct rival rival_raw8 = {
    .name = "raw8",
    .exact = true,
    .isa = isa,
    .check = rival_needs_avx2,
    .matrix_bytes = matrix_bytes,
    .pack = pack,
    .prepare = prepare,
    .gemv = gemv,
};

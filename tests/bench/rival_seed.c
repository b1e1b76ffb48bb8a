/* The chapter's kernel: the sixteen columns of one row in the lanes, two rows at a time, x scaled beforehand, horizontal sums at the end.
 *
 * A matrix: scales [rows][segments], then for all rows the magnitudes (columns rounded up to 64), then for all rows the sign words (one
 * u16 for 16 columns, column j is bit j). Rows are padded to an even number.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/bits.h"
#include "kernels/kernels.h"
#include "proto/base/size.h"
#include "tests/bench/rival.h"

#define CHUNK 64 /* columns: a cache line of a row */
/* Cold, as a fraction of a pure read on Emerald Rapids, 2048x7168 / 768x2048 / 7168x64: into L1 1 KiB ahead 0.71 / 0.68 / 0.52, 4 KiB
 * 0.73 / 0.70 / 0.57; into L2 4 KiB 0.75 / 0.68 / 0.59, 16 KiB 0.73 / 0.66 / 0.58. Whole pairs of rows, or it asks for what the other row
 * has. */
#define PREFETCH 4096

struct places {
    size_t columns, segments;        /* columns padded */
    size_t ahead;                    /* bytes that a prefetch reaches ahead */
    size_t magnitudes, signs, bytes; /* offsets; all of it */
};

static struct places places_of(uint32_t rows, uint32_t columns)
{
    struct places p = {.columns = size_round_up(columns, CHUNK), .segments = size_ceil_div(columns, LAYOUT_BLOCK)};
    size_t padded = size_round_up(rows, 2);

    p.ahead = size_round_up(PREFETCH, 2 * p.columns);
    p.magnitudes = size_round_up(padded * p.segments * sizeof(float), LAYOUT_ALIGN);
    p.signs = p.magnitudes + padded * p.columns;
    p.bytes = size_round_up(p.signs + padded * p.columns / 8, LAYOUT_ALIGN);
    return p;
}

static size_t matrix_bytes(uint32_t rows, uint32_t columns)
{
    return places_of(rows, columns).bytes;
}

static void pack(const struct weights_matrix *matrix, uint8_t *at)
{
    struct places p = places_of(matrix->rows, matrix->columns);
    float *scales = (float *)(void *)at;

    for (size_t row = 0; row < matrix->rows; row++) {
        uint16_t *signs = (uint16_t *)(void *)(at + p.signs + row * p.columns / 8);

        memcpy(scales + row * p.segments, matrix->scales + row / LAYOUT_TILE_ROWS * p.segments, p.segments * sizeof(float));
        for (size_t k = 0; k < matrix->columns; k++) {
            uint16_t fp9 = kernels_fp9_of_e4m3(matrix->codes[row * matrix->columns + k]);

            at[p.magnitudes + row * p.columns + k] = (uint8_t)fp9;
            signs[k / 16] |= (uint16_t)((fp9 >> 8) << (k % 16));
        }
    }
}

/* x * 2^111, in the order in which unpacking leaves the columns: 0-3 and 8-11, then 4-7 and 12-15. */
static float prepare(float *v, const float *in, uint32_t columns)
{
    for (uint32_t k = 0; k < size_round_up(columns, CHUNK); k += 16)
        for (uint32_t j = 0; j < 4; j++) {
            v[k + j] = in[k + j] * 0x1p111f;
            v[k + 4 + j] = in[k + 8 + j] * 0x1p111f;
            v[k + 8 + j] = in[k + 4 + j] * 0x1p111f;
            v[k + 12 + j] = in[k + 12 + j] * 0x1p111f;
        }
    return 1.0f;
}

static inline __attribute__((always_inline)) void dot16(__m256 *low, __m256 *high, const uint8_t *magnitudes, uint16_t sign_word,
                                                        __m256 x_low, __m256 x_high)
{
    const __m256i places = _mm256_setr_epi16(INT16_MIN, 1 << 14, 1 << 13, 1 << 12, 1 << 11, 1 << 10, 1 << 9, 1 << 8, 1 << 7, 1 << 6, 1 << 5,
                                             1 << 4, 1 << 3, 1 << 2, 1 << 1, 1);
    const __m256i zero = _mm256_setzero_si256();
    __m256i bytes = _mm256_cvtepu8_epi16(_mm_load_si128((const __m128i *)(const void *)magnitudes));
    __m256i signs = _mm256_mullo_epi16(_mm256_set1_epi16((int16_t)sign_word), places);
    __m256i raw = _mm256_or_si256(_mm256_slli_epi16(bytes, 4), _mm256_and_si256(signs, _mm256_set1_epi16(INT16_MIN)));

    *low = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, raw)), x_low, *low);
    *high = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, raw)), x_high, *high);
}

static inline float sum8(__m256 a)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Rows r and r + 1. */
static inline void dot_rows(float ret_sums[2], const uint8_t *magnitudes, const uint16_t *signs, const float *scales,
                            const struct places *p, const float *v)
{
    const uint8_t *m0 = magnitudes, *m1 = magnitudes + p->columns;
    const uint16_t *s0 = signs, *s1 = signs + p->columns / 16;
    __m256 acc0 = _mm256_setzero_ps(), acc1 = acc0;
    size_t left = p->columns;

    for (size_t segment = 0; segment < p->segments; segment++) {
        __m256 low0 = _mm256_setzero_ps(), high0 = low0, low1 = low0, high1 = low0;
        size_t columns = left < LAYOUT_BLOCK ? left : LAYOUT_BLOCK;

        left -= columns;
        for (size_t k = 0; k < columns; k += CHUNK, m0 += CHUNK, m1 += CHUNK, s0 += CHUNK / 16, s1 += CHUNK / 16, v += CHUNK) {
            _mm_prefetch((const char *)m0 + p->ahead, _MM_HINT_T1);
            _mm_prefetch((const char *)m1 + p->ahead, _MM_HINT_T1);
            for (int j = 0; j < CHUNK / 16; j++) {
                __m256 x_low = _mm256_load_ps(v + 16 * j), x_high = _mm256_load_ps(v + 16 * j + 8);

                dot16(&low0, &high0, m0 + 16 * j, s0[j], x_low, x_high);
                dot16(&low1, &high1, m1 + 16 * j, s1[j], x_low, x_high);
            }
        }
        acc0 = _mm256_fmadd_ps(_mm256_add_ps(low0, high0), _mm256_broadcast_ss(scales + segment), acc0);
        acc1 = _mm256_fmadd_ps(_mm256_add_ps(low1, high1), _mm256_broadcast_ss(scales + p->segments + segment), acc1);
    }
    ret_sums[0] = sum8(acc0);
    ret_sums[1] = sum8(acc1);
}

static void gemv(const uint8_t *at, uint32_t rows, uint32_t columns, const float *v, float undo, float weight, float *y)
{
    struct places p = places_of(rows, columns);

    for (size_t row = 0; row < rows; row += 2) {
        float sums[2];

        dot_rows(sums, at + p.magnitudes + row * p.columns, (const uint16_t *)(const void *)(at + p.signs + row * p.columns / 8),
                 (const float *)(const void *)at + row * p.segments, &p, v);
        y[row] += weight * undo * sums[0];
        if (row + 1 < rows)
            y[row + 1] += weight * undo * sums[1];
    }
}

static const char *isa(void)
{
    return "avx2";
}

const struct rival rival_seed = {
    .name = "seed",
    .isa = isa,
    .check = rival_needs_avx2,
    .matrix_bytes = matrix_bytes,
    .pack = pack,
    .prepare = prepare,
    .gemv = gemv,
};

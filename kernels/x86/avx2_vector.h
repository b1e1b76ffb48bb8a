/* Short vector helpers of the AVX2 tier. */
#ifndef FP9_KERNELS_X86_AVX2_VECTOR_H
#define FP9_KERNELS_X86_AVX2_VECTOR_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/layout.h"

#define AVX2_INLINE static inline __attribute__((always_inline))

/* The nine lines of a group, into L1, in a burst: strewn among the arithmetic, where a compiler would put them, they are worth half. A loop
 * stays one at -O2, keeps the arithmetic of two groups apart, and measures 0.02 above nine instructions in a row. */
AVX2_INLINE void avx2_prefetch_group(const uint8_t *group)
{
    for (const uint8_t *end = group + LAYOUT_GROUP_BYTES; group < end; group += 64)
        _mm_prefetch((const char *)group, _MM_HINT_T0);
}

/* 2^n for int32 lanes of n in -126 .. 127. */
AVX2_INLINE __m256 avx2_pow2(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* README section 4, lane by lane the same operations as ref_silu. */
AVX2_INLINE __m256 avx2_silu(__m256 g)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 a_max = _mm256_set1_ps(174.0f);
    /* min and max give their second operand when one is NaN: a becomes 174, and NaN comes back in through g itself. */
    __m256 a = _mm256_min_ps(_mm256_andnot_ps(sign, g), a_max);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(a, _mm256_set1_ps(-0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0x1.62e400p-1f), _mm256_xor_ps(a, sign));
    __m256 p = _mm256_set1_ps(0x1.a01a02p-13f);
    __m256 z1, z, divisor, positive, negative, power2;
    __m256i n_int, n1;

    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0x1.7f7d1cp-20f), r);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.6c16c2p-10f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.111112p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555556p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555556p-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));

    n_int = _mm256_cvtps_epi32(n);
    n1 = _mm256_srai_epi32(n_int, 1);
    power2 = avx2_pow2(_mm256_sub_epi32(n_int, n1));
    z1 = _mm256_mul_ps(p, avx2_pow2(n1));
    z = _mm256_mul_ps(z1, power2);
    divisor = _mm256_add_ps(_mm256_set1_ps(1.0f), z);
    positive = _mm256_div_ps(g, divisor);
    negative = _mm256_mul_ps(_mm256_div_ps(_mm256_mul_ps(_mm256_max_ps(_mm256_xor_ps(a_max, sign), g), z1), divisor), power2);
    return _mm256_blendv_ps(positive, negative, g);
}

AVX2_INLINE void avx2_add_weighted(float *y, __m256 r, __m256 weight)
{
    _mm256_storeu_ps(y, _mm256_fmadd_ps(weight, r, _mm256_loadu_ps(y)));
}

/* README section 5 for a panel of down: y[i] = fma(weight, r_i, y[i]) for the first `rows` rows, at most 32. */
AVX2_INLINE void avx2_add_panel(float *y, uint32_t rows, float weight, __m256 low0, __m256 high0, __m256 low1, __m256 high1)
{
    __m256 weight_all = _mm256_set1_ps(weight);
    float last[32] = {0};
    float *to = y;

    if (rows < 32) {
        memcpy(last, y, rows * sizeof(*y));
        to = last;
    }
    avx2_add_weighted(to, low0, weight_all);
    avx2_add_weighted(to + 8, high0, weight_all);
    avx2_add_weighted(to + 16, low1, weight_all);
    avx2_add_weighted(to + 24, high1, weight_all);
    if (rows < 32)
        memcpy(y, last, rows * sizeof(*y));
}

#endif

#include "kernels/bits.h"
#include "kernels/x86/avx2.h"
#include "kernels/x86/avx2_vector.h"

AVX2_INLINE __m256 canonical(__m256 v)
{
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(BITS_NAN)), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

void avx2_canonical(float *values, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(values + i, canonical(_mm256_loadu_ps(values + i)));
    for (; i < count; i++)
        if ((bits_of_f32(values[i]) & ~BITS_SIGN) > BITS_INF)
            values[i] = bits_to_f32(BITS_NAN);
}

/* The upper half of each lane after rounding to nearest even. */
AVX2_INLINE __m256i rounded_half(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);

    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(BITS_NAN >> 16), _mm256_castps_si256(nan));
}

void avx2_to_bf16(uint16_t *bits, const float *values, size_t count)
{
    size_t i = 0;

    for (; i + 16 <= count; i += 16) {
        __m256i packed = _mm256_packus_epi32(rounded_half(_mm256_loadu_ps(values + i)), rounded_half(_mm256_loadu_ps(values + i + 8)));

        _mm256_storeu_si256((__m256i *)(void *)(bits + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    for (; i < count; i++)
        bits[i] = kernels_bf16_of_f32(values[i]);
}

void avx2_add_f32(float *sum, const float *partial, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), _mm256_loadu_ps(partial + i)));
    for (; i < count; i++)
        sum[i] += partial[i];
}

void avx2_add_bf16(float *sum, const uint16_t *partial, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(partial + i));
        __m256 value = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));

        _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), value));
    }
    for (; i < count; i++)
        sum[i] += kernels_bf16_to_f32(bits_load_u16(partial + i));
}

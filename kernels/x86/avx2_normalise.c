#include "kernels/bits.h"
#include "kernels/x86/avx2.h"
#include "kernels/x86/avx2_vector.h"

struct powers {
    int e;
    float first, second; /* 2^s1, 2^s2 */
};

static struct powers powers_of(uint32_t max)
{
    struct powers powers = {.e = max >> 23 ? (int)(max >> 23) - 127 : -126};
    int s = 126 - powers.e;
    int s1 = s >> 1;

    powers.first = bits_pow2(s1);
    powers.second = bits_pow2(s - s1);
    return powers;
}

AVX2_INLINE __m256i load_bf16(const uint16_t *in)
{
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)in)), 16);
}

/* Magnitudes of finite values compare like their bit patterns; others count as 0. */
AVX2_INLINE __m256i finite_max(__m256i max, __m256i bits)
{
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(BITS_INF), magnitude);

    return _mm256_max_epi32(max, _mm256_and_si256(magnitude, finite));
}

static uint32_t horizontal_max(__m256i max)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));

    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

AVX2_INLINE __m256 scaled(__m256i bits, __m256 first, __m256 second)
{
    return _mm256_mul_ps(_mm256_mul_ps(_mm256_castsi256_ps(bits), first), second);
}

/* Lanes below `left` (1 .. 7). */
AVX2_INLINE __m256i tail_mask(uint32_t left)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static __m256i tail_bf16(const uint16_t *in, uint32_t left)
{
    uint16_t padded[8] = {0};

    memcpy(padded, in, left * sizeof(*in));
    return load_bf16(padded);
}

int avx2_normalise_bf16(float *out, uint32_t floats, const uint16_t *in, uint32_t count)
{
    uint32_t whole = count & ~7u, k;
    __m256i tail = _mm256_setzero_si256(), max = tail;
    struct powers powers;
    __m256 first, second;

    if (whole < count)
        tail = tail_bf16(in + whole, count - whole);
    for (k = 0; k < whole; k += 8)
        max = finite_max(max, load_bf16(in + k));
    max = finite_max(max, tail);

    powers = powers_of(horizontal_max(max));
    first = _mm256_set1_ps(powers.first);
    second = _mm256_set1_ps(powers.second);
    for (k = 0; k < whole; k += 8)
        _mm256_store_ps(out + k, scaled(load_bf16(in + k), first, second));
    if (whole < count) {
        _mm256_store_ps(out + k, scaled(tail, first, second));
        k += 8;
    }
    for (; k < floats; k += 8)
        _mm256_store_ps(out + k, _mm256_setzero_ps());
    return powers.e;
}

int avx2_normalise_f32(float *out, uint32_t floats, const float *in, uint32_t count)
{
    uint32_t whole = count & ~7u, k;
    __m256i tail = _mm256_setzero_si256(), max = tail;
    struct powers powers;
    __m256 first, second;

    if (whole < count)
        tail = _mm256_maskload_epi32((const int *)(const void *)(in + whole), tail_mask(count - whole));
    for (k = 0; k < whole; k += 8)
        max = finite_max(max, _mm256_castps_si256(_mm256_loadu_ps(in + k)));
    max = finite_max(max, tail);

    powers = powers_of(horizontal_max(max));
    first = _mm256_set1_ps(powers.first);
    second = _mm256_set1_ps(powers.second);
    for (k = 0; k < whole; k += 8)
        _mm256_store_ps(out + k, scaled(_mm256_castps_si256(_mm256_loadu_ps(in + k)), first, second));
    if (whole < count) {
        _mm256_store_ps(out + k, scaled(tail, first, second));
        k += 8;
    }
    for (; k < floats; k += 8)
        _mm256_store_ps(out + k, _mm256_setzero_ps());
    return powers.e;
}

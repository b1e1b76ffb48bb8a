/* Pure reads of the same bytes: what the memory gives when nothing is computed. No single way of reading is the fastest everywhere. */
#include "tests/bench/bench.h"

#include "proto/base/cleanup.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint64_t read_words(const uint8_t *data, size_t bytes)
{
    const uint64_t *at = (const uint64_t *)(const void *)data, *end = at + bytes / 8;
    uint64_t a = 0, b = 0, c = 0, d = 0;

    for (; at < end; at += 8) {
        a ^= at[0] ^ at[4];
        b ^= at[1] ^ at[5];
        c ^= at[2] ^ at[6];
        d ^= at[3] ^ at[7];
    }
    return a ^ b ^ c ^ d;
}

#if defined(__x86_64__)

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i line(__m256i sum, const uint8_t *at)
{
    __m256i low = _mm256_load_si256((const __m256i *)(const void *)at), high = _mm256_load_si256((const __m256i *)(const void *)(at + 32));

    return _mm256_xor_si256(sum, _mm256_xor_si256(low, high));
}

AVX2 static inline uint64_t fold(__m256i a, __m256i b)
{
    __m256i sum = _mm256_xor_si256(a, b);

    return (uint64_t)(_mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 1) ^ _mm256_extract_epi64(sum, 2) ^
                      _mm256_extract_epi64(sum, 3));
}

AVX2 static uint64_t read_avx2(const uint8_t *data, size_t bytes)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    size_t i = 0;

    for (; i + 128 <= bytes; i += 128) {
        a = line(a, data + i);
        b = line(b, data + i + 64);
    }
    return fold(i < bytes ? line(a, data + i) : a, b);
}

AVX2 static uint64_t read_avx2_prefetch(const uint8_t *data, size_t bytes)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    size_t i = 0;

    for (; i + 128 <= bytes; i += 128) {
        _mm_prefetch((const char *)data + i + 4096, _MM_HINT_T0);
        _mm_prefetch((const char *)data + i + 4160, _MM_HINT_T0);
        a = line(a, data + i);
        b = line(b, data + i + 64);
    }
    return fold(i < bytes ? line(a, data + i) : a, b);
}

/* Both halves at once: two streams for the prefetchers. */
AVX2 static uint64_t read_avx2_halves(const uint8_t *data, size_t bytes)
{
    size_t half = bytes / 128 * 64;
    __m256i a = _mm256_setzero_si256(), b = a;

    for (size_t i = 0; i < half; i += 64) {
        a = line(a, data + i);
        b = line(b, data + half + i);
    }
    return fold(2 * half < bytes ? line(a, data + 2 * half) : a, b);
}

#endif

static const struct bench_reader readers[] = {
#if defined(__x86_64__)
    {"avx2", read_avx2},
    {"avx2-prefetch", read_avx2_prefetch},
    {"avx2-halves", read_avx2_halves},
#endif
    {"words", read_words},
};

bool bench_reader(size_t i, struct bench_reader *ret_reader)
{
    size_t first = kernels_tier_available(KERNELS_AVX2) ? 0 : ARRAY_LENGTH(readers) - 1;

    if (first + i >= ARRAY_LENGTH(readers))
        return false;
    *ret_reader = readers[first + i];
    return true;
}

#include "tests/bench/reader.h"

static uint64_t read_scalar(const uint8_t *data, size_t bytes)
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

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))
#define LINE 64

AVX2 static inline __m256i add_line(__m256i sum, const uint8_t *at)
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

    for (; i + 2 * LINE <= bytes; i += 2 * LINE) {
        a = add_line(a, data + i);
        b = add_line(b, data + i + LINE);
    }
    return fold(i < bytes ? add_line(a, data + i) : a, b);
}

AVX2 static uint64_t read_prefetch_l1(const uint8_t *data, size_t bytes)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    size_t i = 0;

    for (; i + 2 * LINE <= bytes; i += 2 * LINE) {
        _mm_prefetch((const char *)data + i + 4096, _MM_HINT_T0);
        _mm_prefetch((const char *)data + i + 4096 + LINE, _MM_HINT_T0);
        a = add_line(a, data + i);
        b = add_line(b, data + i + LINE);
    }
    return fold(i < bytes ? add_line(a, data + i) : a, b);
}

AVX2 static uint64_t read_prefetch_l2(const uint8_t *data, size_t bytes)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    size_t i = 0;

    for (; i + 2 * LINE <= bytes; i += 2 * LINE) {
        _mm_prefetch((const char *)data + i + 8192, _MM_HINT_T1);
        _mm_prefetch((const char *)data + i + 8192 + LINE, _MM_HINT_T1);
        a = add_line(a, data + i);
        b = add_line(b, data + i + LINE);
    }
    return fold(i < bytes ? add_line(a, data + i) : a, b);
}

/* Both halves at once: two streams for the prefetchers. */
AVX2 static uint64_t read_2_streams(const uint8_t *data, size_t bytes)
{
    size_t half = bytes / (2 * LINE) * LINE;
    __m256i a = _mm256_setzero_si256(), b = a;

    for (size_t i = 0; i < half; i += LINE) {
        a = add_line(a, data + i);
        b = add_line(b, data + half + i);
    }
    return fold(2 * half < bytes ? add_line(a, data + 2 * half) : a, b);
}

AVX2 static uint64_t read_4_streams(const uint8_t *data, size_t bytes)
{
    size_t quarter = bytes / (4 * LINE) * LINE;
    __m256i a = _mm256_setzero_si256(), b = a;

    for (size_t i = 0; i < quarter; i += LINE) {
        a = add_line(a, data + i);
        b = add_line(b, data + quarter + i);
        a = add_line(a, data + 2 * quarter + i);
        b = add_line(b, data + 3 * quarter + i);
    }
    for (size_t i = 4 * quarter; i < bytes; i += LINE)
        a = add_line(a, data + i);
    return fold(a, b);
}

AVX512 static uint64_t read_avx512(const uint8_t *data, size_t bytes)
{
    __m512i a = _mm512_setzero_si512(), b = a;
    size_t i = 0;

    for (; i + 2 * LINE <= bytes; i += 2 * LINE) {
        a = _mm512_xor_si512(a, _mm512_load_si512(data + i));
        b = _mm512_xor_si512(b, _mm512_load_si512(data + i + LINE));
    }
    if (i < bytes)
        a = _mm512_xor_si512(a, _mm512_load_si512(data + i));
    return (uint64_t)_mm512_reduce_or_epi64(_mm512_xor_si512(a, b));
}

AVX512 static uint64_t read_avx512_prefetch(const uint8_t *data, size_t bytes)
{
    __m512i a = _mm512_setzero_si512();

    for (size_t i = 0; i < bytes; i += LINE) {
        _mm_prefetch((const char *)data + i + 8192, _MM_HINT_T1);
        a = _mm512_xor_si512(a, _mm512_load_si512(data + i));
    }
    return (uint64_t)_mm512_reduce_or_epi64(a);
}

static bool can(const char *name)
{
    return *name == 's' || (name[3] == '2' ? __builtin_cpu_supports("avx2") : __builtin_cpu_supports("avx512f"));
}

#else

static bool can(const char *name)
{
    (void)name;
    return true;
}

#endif

static const struct reader all[] = {
    {"scalar", read_scalar},
#if defined(__x86_64__)
    {"avx2", read_avx2},
    {"avx2-prefetch-l1", read_prefetch_l1},
    {"avx2-prefetch-l2", read_prefetch_l2},
    {"avx2-2-streams", read_2_streams},
    {"avx2-4-streams", read_4_streams},
    {"avx512", read_avx512},
    {"avx512-prefetch-l2", read_avx512_prefetch},
#endif
};

_Static_assert(sizeof(all) / sizeof(all[0]) <= READERS_MAX, "READERS_MAX");

size_t readers_all(struct reader ret_readers[READERS_MAX])
{
    size_t count = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (can(all[i].name))
            ret_readers[count++] = all[i];
    return count;
}

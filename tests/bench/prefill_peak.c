#include "tests/bench/prefill.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TURNS 20000

/* As many chains as hide the latency of any of these CPUs; written as instructions, so that none is moved, merged or kept in memory. */
#define FMA(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(a##i) : "v"(b), "v"(c));
#define TWELVE(do)                                                                                                                         \
    do                                                                                                                                     \
    (0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11)

__attribute__((target("avx512f"))) static void peak_avx512(void)
{
#define ZERO(i) __m512 a##i = _mm512_setzero_ps();
    __m512 b = _mm512_set1_ps(0.5f), c = _mm512_set1_ps(1.0f);

    TWELVE(ZERO)
    for (int i = 0; i < TURNS; i++) {
        TWELVE(FMA)
    }
#undef ZERO
}

__attribute__((target("avx2,fma"))) static void peak_avx2(void)
{
#define ZERO(i) __m256 a##i = _mm256_setzero_ps();
    __m256 b = _mm256_set1_ps(0.5f), c = _mm256_set1_ps(1.0f);

    TWELVE(ZERO)
    for (int i = 0; i < TURNS; i++) {
        TWELVE(FMA)
    }
#undef ZERO
}

double prefill_peak(enum kernels_tier tier)
{
    const double fmas = 12.0 * TURNS;

    if (tier == KERNELS_AVX512) {
        peak_avx512();
        return fmas * 16 * 2;
    }
    if (tier == KERNELS_AVX2) {
        peak_avx2();
        return fmas * 8 * 2;
    }
    return 0.0;
}

#else

double prefill_peak(enum kernels_tier tier)
{
    (void)tier;
    return 0.0;
}

#endif

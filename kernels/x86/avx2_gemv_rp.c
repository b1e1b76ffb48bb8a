/* Variant rp: a shift and a mask, for CPUs whose vpmaddubsw is slow. */
#include "kernels/x86/avx2_vector.h"

#define VARIANT(name) avx2_rp_##name

AVX2_INLINE __m256i isolate_even(__m256i bytes)
{
    return _mm256_and_si256(_mm256_slli_epi16(bytes, 4), _mm256_set1_epi16(0x0ff0));
}

AVX2_INLINE __m256i isolate_odd(__m256i bytes)
{
    return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi16(0x0ff0));
}

#include "kernels/x86/avx2_gemv.inc"

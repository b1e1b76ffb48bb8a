/* Variant rm: vpmaddubsw isolates a byte and shifts it in one instruction. */
#include "kernels/x86/avx2_vector.h"

#define VARIANT(name) avx2_rm_##name

AVX2_INLINE __m256i isolate_even(__m256i bytes)
{
    return _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x0010));
}

AVX2_INLINE __m256i isolate_odd(__m256i bytes)
{
    return _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1000));
}

#include "kernels/x86/avx2_gemv.inc"

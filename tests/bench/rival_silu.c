#include "tests/bench/rival.h"

#if defined(__x86_64__)

#include "kernels/x86/avx2_vector.h"

void rival_silu(float *h, const float *gate, const float *up, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += 8)
        _mm256_store_ps(h + i, _mm256_mul_ps(avx2_silu(_mm256_load_ps(gate + i)), _mm256_load_ps(up + i)));
}

#else

#include "kernels/ref/ref.h"

void rival_silu(float *h, const float *gate, const float *up, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        h[i] = ref_silu(gate[i]) * up[i];
}

#endif

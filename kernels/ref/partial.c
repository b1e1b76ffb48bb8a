#include "kernels/bits.h"
#include "kernels/ref/ref.h"

void ref_canonical(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((bits_of_f32(values[i]) & ~BITS_SIGN) > BITS_INF)
            values[i] = bits_to_f32(BITS_NAN);
}

void ref_to_bf16(uint16_t *bits, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bits[i] = kernels_bf16_of_f32(values[i]);
}

void ref_add_f32(float *sum, const float *partial, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += partial[i];
}

void ref_add_bf16(float *sum, const uint16_t *partial, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += kernels_bf16_to_f32(bits_load_u16(partial + i));
}

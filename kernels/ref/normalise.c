#include "kernels/bits.h"
#include "kernels/ref/ref.h"

/* Magnitudes of finite values compare like their bit patterns. */
static uint32_t finite_max(uint32_t max, uint32_t bits)
{
    uint32_t magnitude = bits & ~BITS_SIGN;

    return magnitude < BITS_INF && magnitude > max ? magnitude : max;
}

struct powers {
    int e;
    float first, second; /* 2^s1, 2^s2 */
};

static struct powers powers_of(uint32_t max)
{
    struct powers powers = {.e = max >> 23 ? (int)(max >> 23) - 127 : -126};
    int s = 126 - powers.e;
    int s1 = s < 0 ? -((1 - s) / 2) : s / 2; /* floor */

    powers.first = bits_pow2(s1);
    powers.second = bits_pow2(s - s1);
    return powers;
}

int ref_normalise_bf16(float *out, uint32_t floats, const uint16_t *in, uint32_t count)
{
    uint32_t max = 0;
    struct powers powers;

    for (uint32_t k = 0; k < count; k++)
        max = finite_max(max, (uint32_t)bits_load_u16(in + k) << 16);
    powers = powers_of(max);
    for (uint32_t k = 0; k < count; k++)
        out[k] = (bits_to_f32((uint32_t)bits_load_u16(in + k) << 16) * powers.first) * powers.second;
    for (uint32_t k = count; k < floats; k++)
        out[k] = 0.0f;
    return powers.e;
}

int ref_normalise_f32(float *out, uint32_t floats, const float *in, uint32_t count)
{
    uint32_t max = 0;
    struct powers powers;

    for (uint32_t k = 0; k < count; k++)
        max = finite_max(max, bits_of_f32(in[k]));
    powers = powers_of(max);
    for (uint32_t k = 0; k < count; k++)
        out[k] = (in[k] * powers.first) * powers.second;
    for (uint32_t k = count; k < floats; k++)
        out[k] = 0.0f;
    return powers.e;
}

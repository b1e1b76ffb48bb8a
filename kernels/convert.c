/* BF16 and F16, in integers. */
#include "kernels/bits.h"
#include "kernels/kernels.h"

float kernels_bf16_to_f32(uint16_t bits)
{
    return bits_to_f32((uint32_t)bits << 16);
}

uint16_t kernels_bf16_of_f32(float value)
{
    uint32_t bits = bits_of_f32(value);

    if ((bits & ~BITS_SIGN) > BITS_INF)
        return BITS_NAN >> 16;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float kernels_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t exponent = (bits >> 10) & 0x1f;
    uint32_t mantissa = bits & 0x3ff;

    if (exponent == 0x1f)
        return bits_to_f32(mantissa ? BITS_NAN : sign | BITS_INF);
    if (exponent == 0) {
        if (mantissa == 0)
            return bits_to_f32(sign);
        /* Subnormal: shift the leading one into the implicit place. */
        exponent = 1;
        while (!(mantissa & 0x400)) {
            mantissa <<= 1;
            exponent--;
        }
        mantissa &= 0x3ff;
    }
    return bits_to_f32(sign | ((exponent + 127 - 15) << 23) | (mantissa << 13));
}

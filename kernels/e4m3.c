/* E4M3FN -> fp9 (README section 1): every finite code becomes a normal fp9 value or zero. */
#include "kernels/bits.h"
#include "kernels/kernels.h"

#define FP9_SIGN UINT16_C(0x100)
#define E4M3_NAN 0x7f
#define E4M3_NORMAL 0x08 /* the smallest normal code */
#define BIAS_STEP 0x48   /* exponent bias 16 instead of 7: nine more, in steps of 1/8 */

static const uint8_t subnormal[E4M3_NORMAL] = {0x00, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e};

uint16_t kernels_fp9_of_e4m3(uint8_t code)
{
    uint8_t magnitude = code & 0x7f;
    uint16_t sign = code & 0x80 ? FP9_SIGN : 0;

    if (magnitude == E4M3_NAN)
        return KERNELS_FP9_NAN;
    return sign | (magnitude < E4M3_NORMAL ? subnormal[magnitude] : (uint16_t)(magnitude + BIAS_STEP));
}

float kernels_fp9_to_f32(uint16_t fp9)
{
    uint32_t magnitude = fp9 & 0xff;
    uint32_t sign = fp9 & FP9_SIGN ? BITS_SIGN : 0;

    if (fp9 == KERNELS_FP9_NAN)
        return bits_to_f32(BITS_NAN);
    /* The raw pattern is the weight times 2^-111: put the exponent right instead of multiplying. */
    return bits_to_f32(magnitude == 0 ? sign : sign | ((magnitude << 20) + (UINT32_C(111) << 23)));
}

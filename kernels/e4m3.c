/* E4M3FN -> fp9 (README section 1): every finite code becomes a normal fp9 value or zero. */
#include <string.h>

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

#define SCAN_BLOCK 64
typedef uint8_t codes16 __attribute__((vector_size(16)));

/* A block at a time, without a branch in it: a NaN is rare. */
size_t kernels_find_nan(const uint8_t *codes, size_t count)
{
    size_t i = 0;

    for (; i + SCAN_BLOCK <= count; i += SCAN_BLOCK) {
        codes16 block[4], any;
        uint64_t half[2];

        memcpy(block, codes + i, sizeof block);
        any = (codes16)((block[0] & 0x7f) == E4M3_NAN) | (codes16)((block[1] & 0x7f) == E4M3_NAN) |
              (codes16)((block[2] & 0x7f) == E4M3_NAN) | (codes16)((block[3] & 0x7f) == E4M3_NAN);
        memcpy(half, &any, sizeof half);
        if (half[0] | half[1])
            break;
    }
    while (i < count && (codes[i] & 0x7f) != E4M3_NAN)
        i++;
    return i;
}

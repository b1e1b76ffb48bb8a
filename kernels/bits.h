/* binary32 and its bit pattern, and exact powers of two. */
#ifndef FP9_KERNELS_BITS_H
#define FP9_KERNELS_BITS_H

#include <stdint.h>
#include <string.h>

#define BITS_SIGN UINT32_C(0x80000000)
#define BITS_INF UINT32_C(0x7f800000)
#define BITS_NAN UINT32_C(0x7fc00000) /* the canonical NaN */

static inline uint32_t bits_of_f32(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float bits_to_f32(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* 2^e for e in -149 .. 127, without arithmetic, so that MXCSR has no say. */
static inline float bits_pow2(int e)
{
    return bits_to_f32(e >= -126 ? (uint32_t)(e + 127) << 23 : UINT32_C(1) << (e + 149));
}

/* An unaligned element, native order (the formats are little-endian and so are the machines). */
static inline uint16_t bits_load_u16(const uint16_t *at)
{
    uint16_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

#endif

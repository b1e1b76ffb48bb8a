#include "kernels/cpu.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdint.h>

#define LEAF1_ECX_FMA (1u << 12)
#define LEAF1_ECX_OSXSAVE (1u << 27)
#define LEAF1_ECX_AVX (1u << 28)
#define LEAF1_ECX_F16C (1u << 29)
#define LEAF7_EBX_AVX2 (1u << 5)
#define XCR0_SSE_AVX 0x6u

static uint64_t xcr0(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

bool cpu_has_avx2(void)
{
    const unsigned leaf1 = LEAF1_ECX_FMA | LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C;
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1) != leaf1)
        return false;
    if ((xcr0() & XCR0_SSE_AVX) != XCR0_SSE_AVX)
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & LEAF7_EBX_AVX2);
}

#else

bool cpu_has_avx2(void)
{
    return false;
}

#endif

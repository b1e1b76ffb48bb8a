#include "kernels/cpu.h"

#define LEAF1_ECX_FMA (1u << 12)
#define LEAF1_ECX_OSXSAVE (1u << 27)
#define LEAF1_ECX_AVX (1u << 28)
#define LEAF1_ECX_F16C (1u << 29)
#define LEAF7_EBX_AVX2 (1u << 5)
#define LEAF7_EBX_AVX512 (1u << 16 | 1u << 30 | 1u << 31) /* F, BW, VL */
#define XCR0_SSE_AVX 0x6u
#define XCR0_AVX512 0xe0u

unsigned cpu_features_of(const struct cpu_words *words)
{
    const uint32_t leaf1 = LEAF1_ECX_FMA | LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C;

    if ((words->leaf1_ecx & leaf1) != leaf1 || (words->xcr0 & XCR0_SSE_AVX) != XCR0_SSE_AVX || !(words->leaf7_ebx & LEAF7_EBX_AVX2))
        return 0;
    if ((words->leaf7_ebx & LEAF7_EBX_AVX512) != LEAF7_EBX_AVX512 || (words->xcr0 & XCR0_AVX512) != XCR0_AVX512)
        return CPU_AVX2;
    return CPU_AVX2 | CPU_AVX512;
}

#if defined(__x86_64__)

#include <cpuid.h>

static uint64_t xcr0(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

unsigned cpu_features(void)
{
    struct cpu_words words = {0};
    unsigned a, b, c, d;

    if (__get_cpuid(1, &a, &b, &c, &d))
        words.leaf1_ecx = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        words.leaf7_ebx = b;
    if (words.leaf1_ecx & LEAF1_ECX_OSXSAVE)
        words.xcr0 = xcr0();
    return cpu_features_of(&words);
}

#else

unsigned cpu_features(void)
{
    return 0;
}

#endif

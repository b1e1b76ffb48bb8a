/* What this CPU and its operating system let a program use. */
#ifndef FP9_KERNELS_CPU_H
#define FP9_KERNELS_CPU_H

#include <stdint.h>

#define CPU_AVX2 1u   /* AVX2, FMA and F16C in the CPU, and YMM state saved by the operating system (XCR0) */
#define CPU_AVX512 2u /* CPU_AVX2, and AVX-512F, BW, VL with ZMM and mask state saved */

/* What cpuid and xgetbv say: leaf 1 ECX, leaf 7 EBX, XCR0 (0 without OSXSAVE). */
struct cpu_words {
    uint32_t leaf1_ecx, leaf7_ebx;
    uint64_t xcr0;
};

unsigned cpu_features_of(const struct cpu_words *words);
unsigned cpu_features(void);

#endif

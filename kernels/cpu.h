/* What this CPU and its operating system let a program use. */
#ifndef FP9_KERNELS_CPU_H
#define FP9_KERNELS_CPU_H

#include <stdbool.h>

/* AVX2, FMA and F16C in the CPU, and YMM state saved by the operating system (XCR0). */
bool cpu_has_avx2(void);

#endif

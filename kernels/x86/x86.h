/* The x86-64 tiers. Each is a static library of its own, which holds the only copy of its -m flags. */
#ifndef FP9_KERNELS_X86_X86_H
#define FP9_KERNELS_X86_X86_H

#include "kernels/tiers.h"

#if defined(__x86_64__)
#define FP9_KERNELS_X86 1
#else
#define FP9_KERNELS_X86 0
#endif

extern const struct tiers_ops avx2_rp_ops;
extern const struct tiers_ops avx2_rm_ops;
extern const struct tiers_ops avx512_ops;

#endif

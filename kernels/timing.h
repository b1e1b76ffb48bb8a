/* Which of several variants is the fastest on this CPU, found by running them. Within the kernels only. */
#ifndef FP9_KERNELS_TIMING_H
#define FP9_KERNELS_TIMING_H

#include "kernels/tiers.h"

/* One of candidates[count], all of which run here; the first unless another is faster by more than the noise. Takes about half a
 * millisecond; no state, no allocation (40 KiB of stack). */
const struct tiers_variant *timing_fastest(const struct tiers_variant *const *candidates, size_t count);

#endif

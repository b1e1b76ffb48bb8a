/* Monotonic time in nanoseconds. PURE code never calls this: time comes to it in events. */
#ifndef FP9_BASE_CLOCK_H
#define FP9_BASE_CLOCK_H

#include <stdint.h>

#define CLOCK_NS_PER_US UINT64_C(1000)
#define CLOCK_NS_PER_MS UINT64_C(1000000)
#define CLOCK_NS_PER_S UINT64_C(1000000000)

uint64_t clock_now_ns(void);

#endif

/* The two futex calls, within one process. */
#ifndef FP9_DUCK_FUTEX_H
#define FP9_DUCK_FUTEX_H

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"

/* Sleeps while *word is `value`; timeout_ns 0: without end. True when the time is over, false for all else: the caller looks again. */
static inline bool futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    struct timespec time = {.tv_sec = (time_t)(timeout_ns / CLOCK_NS_PER_S), .tv_nsec = (long)(timeout_ns % CLOCK_NS_PER_S)};
    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns ? &time : NULL, NULL, 0) < 0 && errno == ETIMEDOUT;
}

/* Wakes up to `count` sleepers. */
static inline void futex_wake(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

#endif

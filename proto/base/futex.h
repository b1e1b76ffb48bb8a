/* The two futex calls, within one process and between processes. */
#ifndef FP9_BASE_FUTEX_H
#define FP9_BASE_FUTEX_H

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
static inline bool futex_wait_op(_Atomic uint32_t *word, int op, uint32_t value, uint64_t timeout_ns)
{
    struct timespec time = {.tv_sec = (time_t)(timeout_ns / CLOCK_NS_PER_S), .tv_nsec = (long)(timeout_ns % CLOCK_NS_PER_S)};
    return syscall(SYS_futex, word, op, value, timeout_ns ? &time : NULL, NULL, 0) < 0 && errno == ETIMEDOUT;
}

static inline bool futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    return futex_wait_op(word, FUTEX_WAIT_PRIVATE, value, timeout_ns);
}

/* Wakes up to `count` sleepers. */
static inline void futex_wake(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* The same for a word in memory that several processes map. */
static inline bool futex_wait_shared(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    return futex_wait_op(word, FUTEX_WAIT, value, timeout_ns);
}

static inline void futex_wake_shared(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

#endif

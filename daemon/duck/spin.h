/* Waiting for another thread's word without giving up the CPU, for a time that adapts: waits that end within it let it grow to the limit,
 * waits that did not end let it shrink, so that a thread which waits long sleeps early. One waiter owns a struct spin. */
#ifndef FP9_DUCK_SPIN_H
#define FP9_DUCK_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"

#define SPIN_LOOKS 16  /* between two looks at the clock, each of which costs about as much as a look at the word */
#define SPIN_SHRUNK 16 /* a budget is never less than this part of its limit: it must be able to find out that waits became short */

struct spin {
    uint64_t limit_ns; /* 0: never spin */
    uint64_t budget_ns;
};

static inline struct spin spin_init(uint64_t limit_ns)
{
    return (struct spin){.limit_ns = limit_ns, .budget_ns = limit_ns};
}

/* Leaves the core's resources to its other hardware thread, and its power budget to the other cores, for a moment. */
static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Waits until (*word == value) is `equal`. False: the budget is used up and the word is as it was. True: what was written before the word
 * may be read (acquire: pairs with the writer's release). */
static inline bool spin_until(struct spin *spin, const _Atomic uint32_t *word, uint32_t value, bool equal)
{
    if ((atomic_load_explicit(word, memory_order_acquire) == value) == equal)
        return true;
    if (spin->limit_ns == 0)
        return false;
    uint64_t end = 0;
    for (;;) {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            spin_pause();
            if ((atomic_load_explicit(word, memory_order_acquire) == value) == equal) {
                spin->budget_ns = spin->budget_ns * 2 < spin->limit_ns ? spin->budget_ns * 2 : spin->limit_ns;
                return true;
            }
        }
        uint64_t now = clock_now_ns();
        if (end == 0)
            end = now + spin->budget_ns;
        else if (now >= end)
            break;
    }
    spin->budget_ns = spin->budget_ns / 2 > spin->limit_ns / SPIN_SHRUNK ? spin->budget_ns / 2 : spin->limit_ns / SPIN_SHRUNK;
    return false;
}

#endif

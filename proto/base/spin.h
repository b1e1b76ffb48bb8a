/* Waiting for another thread's word without giving up the CPU, for a time that adapts: waits that end within it let it grow to the limit,
 * waits that did not end let it shrink, so that a thread which waits long sleeps early. One waiter owns a struct spin. */
#ifndef FP9_BASE_SPIN_H
#define FP9_BASE_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"

#define SPIN_LOOKS 16  /* between two looks at the clock, each of which costs about as much as a look at the word */
#define SPIN_WINS 8    /* so many waits that ended in time between two looks at the clock by the wary */
#define SPIN_SHRUNK 16 /* a budget is never less than this part of its limit: it must be able to find out that waits became short */

struct spin {
    uint64_t limit_ns; /* 0: never spin */
    uint64_t budget_ns;
    bool wary;               /* once this CPU was taken away while spinning, rest: somebody else wants it, and who sleeps gets it sooner */
    uint64_t rests_until_ns; /* 0: it does not */
    uint32_t wins;
};

#define SPIN_TAKEN_NS (200 * CLOCK_NS_PER_US) /* between two looks at the clock: no interrupt takes so long */
#define SPIN_REST_NS (20 * CLOCK_NS_PER_MS)   /* some slices of the scheduler */

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

/* What a wait that ended in time, or did not, teaches. */
static inline void spin_won(struct spin *spin)
{
    spin->budget_ns = spin->budget_ns * 2 < spin->limit_ns ? spin->budget_ns * 2 : spin->limit_ns;
}

static inline void spin_lost(struct spin *spin)
{
    spin->budget_ns = spin->budget_ns / 2 > spin->limit_ns / SPIN_SHRUNK ? spin->budget_ns / 2 : spin->limit_ns / SPIN_SHRUNK;
}

/* A look at the clock, the one before it at `before`. True: the CPU was taken away, stop now. */
static inline bool spin_taken(struct spin *spin, uint64_t before, uint64_t now)
{
    if (!spin->wary || now - before < SPIN_TAKEN_NS)
        return false;
    spin->rests_until_ns = now + SPIN_REST_NS;
    return true;
}

static inline bool spin_rests(struct spin *spin)
{
    if (!spin->rests_until_ns)
        return false;
    if (clock_now_ns() < spin->rests_until_ns)
        return true;
    spin->rests_until_ns = 0;
    return false;
}

/* Waits until `ready` says so. False: the budget is used up and it does not. Always inlined, so that `ready` costs what it does. */
__attribute__((always_inline)) static inline bool spin_while_not(struct spin *spin, bool (*ready)(void *user), void *user)
{
    if (ready(user))
        return true;
    if (spin->limit_ns == 0 || spin_rests(spin))
        return false;
    uint64_t end = 0, before = 0;
    for (;;) {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            spin_pause();
            if (ready(user)) {
                /* What was waited for may have come while the CPU was away. A few looks at the clock tell that as well as many do, and they
                 * delay what was waited for. */
                bool look = spin->wary && before && ++spin->wins % SPIN_WINS == 0;
                if (!look || !spin_taken(spin, before, clock_now_ns()))
                    spin_won(spin);
                return true;
            }
        }
        uint64_t now = clock_now_ns();
        if (end == 0)
            end = now + spin->budget_ns;
        else if (now >= end || spin_taken(spin, before, now))
            break;
        before = now;
    }
    spin_lost(spin);
    return false;
}

struct spin_word {
    const _Atomic uint32_t *word;
    uint32_t value;
    bool equal;
};

static inline bool spin_word_ready(void *user)
{
    const struct spin_word *word = (const struct spin_word *)user;
    return (atomic_load_explicit(word->word, memory_order_acquire) == word->value) == word->equal;
}

/* Waits until (*word == value) is `equal`. True: what was written before the word may be read (acquire: pairs with the writer's
 * release). */
static inline bool spin_until(struct spin *spin, const _Atomic uint32_t *word, uint32_t value, bool equal)
{
    struct spin_word wait = {.word = word, .value = value, .equal = equal};
    return spin_while_not(spin, spin_word_ready, &wait);
}

#endif

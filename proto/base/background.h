/* Threads that get only the CPU time which nobody else wants. */
#ifndef FP9_BASE_BACKGROUND_H
#define FP9_BASE_BACKGROUND_H

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "proto/base/err.h"

static inline void background_thread(pthread_t thread)
{
    const struct sched_param none = {0};
    (void)pthread_setschedparam(thread, SCHED_IDLE, &none); /* refused at worst by a seccomp filter: then it only competes */
}

/* Starts one, its signals as the caller's. name: as `ps` shows it, at most 15 characters. */
static inline int background_start(const char *name, void *(*run)(void *), void *user, pthread_t *ret_thread, struct err *err)
{
    int r = pthread_create(ret_thread, NULL, run, user);
    if (r != 0)
        return err_set(err, -r, ERR_NO_MEMORY, "thread %s cannot be started: %s", name, strerror(r));
    pthread_setname_np(*ret_thread, name);
    background_thread(*ret_thread);
    return 0;
}

/* Between pieces of work of some 100 us. SCHED_IDLE is a small share, not none: of two that wait, a background thread that got nothing
 * for long may go before the one that matters, and then keeps the CPU until the next tick, which is 4 ms at 250 Hz. Who yields has its
 * time counted, and the scheduler chooses anew. */
static inline void background_yield(void)
{
    (void)sched_yield();
}

#endif

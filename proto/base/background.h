/* Threads that get only the CPU time which nobody else wants. */
#ifndef FP9_BASE_BACKGROUND_H
#define FP9_BASE_BACKGROUND_H

#include <pthread.h>
#include <sched.h>

static inline void background_thread(pthread_t thread)
{
    const struct sched_param none = {0};
    (void)pthread_setschedparam(thread, SCHED_IDLE, &none); /* refused at worst by a seccomp filter: then it only competes */
}

#endif

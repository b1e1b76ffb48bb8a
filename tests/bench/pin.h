/* For measurements that mean nothing without it. */
#ifndef FP9_TESTS_BENCH_PIN_H
#define FP9_TESTS_BENCH_PIN_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* The calling thread stays on `cpu`, or the program ends. */
static inline void pin(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) < 0) {
        perror("sched_setaffinity");
        exit(EXIT_FAILURE);
    }
}

#endif

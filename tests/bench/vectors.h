/* One thread's inputs, outputs and scratch. */
#ifndef FP9_TESTS_BENCH_VECTORS_H
#define FP9_TESTS_BENCH_VECTORS_H

#include "tests/bench/cases.h"

struct vectors {
    uint16_t *x;                   /* BF16, seeded random, the same for every thread */
    float *floats;                 /* the same as binary32, zeros up to a multiple of 128 */
    float *v;                      /* what a gemv reads: made of x by the variant before it is timed */
    float undo;                    /* what its result is to be multiplied by */
    float *y;                      /* added to in place */
    float *gate, *up, *h;          /* a rival's, neurons rounded up to a multiple of 128, padding zero */
    void *scratch;                 /* fp9's */
    float weights[CASE_TOP_K_MAX]; /* of the routed experts */
    void *memory;                  /* of all of them, owned; everything 64-byte aligned */
};

int vectors_init(struct vectors *ret_vectors, const struct bench_case *what, struct err *err);
void vectors_release(struct vectors *vectors);
void vectors_clear_output(struct vectors *vectors, const struct bench_case *what);

#endif

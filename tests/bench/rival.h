/* What stands beside fp9's kernels. A rival says how it keeps one matrix and multiplies by it; rival.c makes experts and layers of that.
 *
 *   seed      the algorithm of the fp9 chapter (8.7), written from its description: the same nine bits, a row in the lanes
 *   raw8      E4M3 bytes as they are, in fp9's order of rows and sums: what the ninth bit costs
 *   openblas  sgemv on the weights as binary32
 */
#ifndef FP9_TESTS_BENCH_RIVAL_H
#define FP9_TESTS_BENCH_RIVAL_H

#include "tests/bench/variant.h"

struct rival {
    const char *name;
    bool exact;
    const char *(*isa)(void);
    int (*check)(struct err *err);

    size_t (*matrix_bytes)(uint32_t rows, uint32_t columns);        /* a multiple of 64 */
    void (*pack)(const struct weights_matrix *matrix, uint8_t *at); /* `at` is zero */
    float (*prepare)(float *v, const float *in, uint32_t columns);  /* both with room up to a multiple of 128; returns undo */
    /* y[row] += weight * undo * (matrix . v)[row] */
    void (*gemv)(const uint8_t *at, uint32_t rows, uint32_t columns, const float *v, float undo, float weight, float *y);
};

/* Ends with NULL; empty where the rivals' instructions do not exist. */
extern const struct rival *const rivals[];

extern const struct rival rival_seed, rival_raw8, rival_openblas;

void rival_begin(const struct rival *rival, const struct bench_case *what, struct vectors *vectors);
void rival_step(const struct rival *rival, const struct bench_case *what, struct vectors *vectors, const uint8_t *items,
                const int32_t *ids);

/* An item is its matrices one after another. */
size_t rival_item_bytes(const struct rival *rival, const struct bench_case *what);
void rival_pack(const struct rival *rival, const struct weights *weights, uint8_t *item);

/* h[i] = silu(gate[i]) * up[i], to the bit of kernels/README section 4; count is rounded up to a multiple of 8. */
void rival_silu(float *h, const float *gate, const float *up, uint32_t count);

/* For check: 0, or -ENOTSUP where AVX2 is missing. */
int rival_needs_avx2(struct err *err);

#endif

/* What is measured: a shape, by name or by numbers.
 *
 * A *step* is one call: one matrix (gemv), one expert (mlp), top_k experts of a layer (moe).
 */
#ifndef FP9_TESTS_BENCH_CASES_H
#define FP9_TESTS_BENCH_CASES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"
#include "proto/base/err.h"

#define CASE_TOP_K_MAX 16

enum case_kind {
    CASE_GEMV,
    CASE_MLP,
    CASE_MOE,
};

struct bench_case {
    char name[64];
    enum case_kind kind;
    uint32_t rows, columns;   /* gemv: N and K; mlp, moe: neurons of one expert's slice and the hidden size */
    uint32_t top_k;           /* experts of a step; 1 but for moe */
    double step_params;       /* weights applied by a step, padding not counted */
    struct layout_mlp layout; /* the slice as fp9 keeps it; of a gemv only the down matrix counts, rows = hidden, columns = neurons */
};

/* A case by name or NxK. -EINVAL for an unknown name (the sentence lists them) or a shape outside the limits. */
int case_init(struct bench_case *ret_case, enum case_kind kind, const char *text, struct err *err);

/* The i-th case that runs when none is named, NULL after the last. */
const char *case_default(enum case_kind kind, size_t i);
/* The i-th named case of a kind, in a buffer of the caller; NULL after the last. */
const char *case_named(enum case_kind kind, size_t i, char text[64]);

/* Length of a step's input vector and of its output. */
uint32_t case_inputs(const struct bench_case *what);
uint32_t case_outputs(const struct bench_case *what);

#endif

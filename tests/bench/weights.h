/* The weights of one matrix or expert, as a checkpoint has them. */
#ifndef FP9_TESTS_BENCH_WEIGHTS_H
#define FP9_TESTS_BENCH_WEIGHTS_H

#include "tests/bench/cases.h"

struct weights_matrix {
    uint32_t rows, columns;
    uint32_t segments; /* columns / 128, rounded up */
    uint8_t *codes;    /* E4M3, rows * columns, owned */
    float *scales;     /* [ceil(rows / 16)][segments], owned */
};

struct weights {
    uint32_t count;                    /* 1 (gemv) or 3 */
    struct weights_matrix matrices[3]; /* gate, up, down; of a gemv the one there is */
};

/* Random normal codes of a trained spread, of which the share `subnormals` (0 .. 1) is subnormal instead; random scales. The same seed
 * gives the same weights. */
int weights_init(struct weights *ret_weights, const struct bench_case *what, double subnormals, uint64_t seed, struct err *err);
void weights_release(struct weights *weights);

/* What the code stands for, without its scale. */
float weights_code_value(uint8_t code);

static inline float weights_scale(const struct weights_matrix *matrix, uint32_t row, uint32_t column)
{
    return matrix->scales[(size_t)(row / LAYOUT_TILE_ROWS) * matrix->segments + column / LAYOUT_BLOCK];
}

#endif

/* Runs a forward in a tier, under guard. */
#ifndef FP9_TESTS_CHECKKERN_RUN_H
#define FP9_TESTS_CHECKKERN_RUN_H

#include "tests/checkkern/check.h"

struct run_input {
    uint32_t tokens, top_k;  /* top_k 0: dense */
    const uint16_t *x;       /* [tokens][hidden], any alignment of a uint16_t */
    const int32_t *ids;
    const float *weights;
    unsigned mxcsr;          /* on entry; 0: as it is */
};

/* y (canonical) into ret_y[tokens * hidden]. Counts a failure for a guard byte written or an MXCSR not restored. */
void run_forward(const struct check_layer *layer, const struct run_input *input, const char *tier, float *ret_y);

/* Reference, then every tier against it by memcmp; false when one differs. ret_y: as the reference has it. */
bool run_compared(const char *what, const struct check_layer *layer, const struct run_input *input, float *ret_y);

/* Every tier, the reference too, entered with hostile settings of MXCSR: the kernels' own environment holds inside, the caller's after. */
void run_mxcsr(const char *what, const struct check_layer *layer, const struct run_input *input, const float *want);

/* y and the bound on its error (2^-20 of the sum of |terms|, through h) in double, from codes and scales, for one token. */
void run_float64(const struct check_layer *layer, const struct run_input *input, uint32_t token, double *ret_y, double *ret_bound);

#endif

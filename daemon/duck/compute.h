/* PURE. One step on one slot: the kernels over its tokens, the partial in the dtype that is wanted. */
#ifndef FP9_DUCK_COMPUTE_H
#define FP9_DUCK_COMPUTE_H

#include <stdatomic.h>

#include "daemon/duck/geometry.h"
#include "proto/wire/msg_step.h"

/* Tokens between two looks at `cancel` and moves of `progress`; also the height of the binary32 result kept aside. */
#define COMPUTE_CHUNK 8

struct compute_job {
    struct kernels_layer layer;
    enum msg_slot_kind kind;
    uint32_t tokens, top_k, hidden;
    enum msg_dtype dtype;
    const uint16_t *x;    /* [tokens][hidden] BF16 */
    const int32_t *ids;   /* [tokens][top_k], checked */
    const float *weights; /* [tokens][top_k] */
    void *partial;        /* [tokens][hidden] of dtype, 4-byte aligned */
};

struct compute_cost {
    uint64_t params;       /* real weights applied */
    uint64_t weight_bytes; /* read from the weight buffer */
};

struct compute_cost compute_cost(const struct compute_job *job);
size_t compute_y_bytes(uint32_t hidden); /* of `y` below, 64-byte aligned */

/* y: compute_y_bytes(hidden); scratch: kernels_scratch_bytes(&job->layer). False when *cancel was seen and the partial is not whole. */
bool compute_run(const struct compute_job *job, float *y, void *scratch, _Atomic uint64_t *progress, const _Atomic bool *cancel);

#endif

/* PURE. One step on one slot: the kernels over its tokens, the partial in the dtype that is wanted.
 *
 * A team runs it in phases (kernels/phases.h): compute_begin by member 0, then phases_run by all members for each of phases_count phases,
 * then compute_cost_of. */
#ifndef FP9_DUCK_COMPUTE_H
#define FP9_DUCK_COMPUTE_H

#include "daemon/duck/geometry.h"
#include "kernels/phases.h"
#include "proto/wire/msg_step.h"

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
    enum phases_mode mode;
    uint64_t params;       /* real weights applied; FLOPs are twice as many */
    uint64_t weight_bytes; /* streamed from the weight buffer: an expert's bytes for each of its tiles */
    uint64_t tiles;        /* passes of an expert's weights with a tile of tokens */
    uint64_t tile_tokens;  /* tokens in all of them: tile_tokens / tiles is the average batch */
};

/* Scratch of a step in phases, 64-byte aligned; room for a session's largest step is room for all of its steps. */
size_t compute_scratch_bytes(const struct kernels_layer *layer, uint32_t tokens, uint32_t top_k, uint32_t members);
/* *job and all that it points to must stay until the last phase is through. */
void compute_begin(struct phases *ret_phases, const struct compute_job *job, uint32_t members, void *scratch);
/* After the last phase. */
struct compute_cost compute_cost_of(const struct phases *phases);

#endif

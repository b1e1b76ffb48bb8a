#include "daemon/duck/compute.h"

size_t compute_scratch_bytes(const struct kernels_layer *layer, uint32_t tokens, uint32_t top_k, uint32_t members)
{
    return phases_scratch_bytes(layer, tokens, top_k, members);
}

void compute_begin(struct phases *ret_phases, const struct compute_job *job, uint32_t members, void *scratch)
{
    struct phases_job words = {
        .layer = &job->layer,
        .dense = job->kind == MSG_SLOT_DENSE,
        .tokens = job->tokens,
        .top_k = job->top_k,
        .x = job->x,
        .ids = job->ids,
        .weights = job->weights,
        .bf16 = job->dtype == MSG_BF16,
        .partial = job->partial,
    };
    phases_begin(ret_phases, &words, members, scratch);
}

struct compute_cost compute_cost_of(const struct phases *phases)
{
    struct phases_cost cost = phases_cost(phases);
    return (struct compute_cost){
        .mode = phases_mode(phases->job.dense, phases->job.tokens, phases->members),
        .params = cost.params,
        .weight_bytes = cost.weight_bytes,
        .tiles = cost.tiles,
        .tile_tokens = cost.tile_tokens,
    };
}

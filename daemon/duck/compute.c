#include "daemon/duck/compute.h"

struct compute_cost compute_cost(const struct compute_job *job)
{
    const struct kernels_layer *layer = &job->layer;
    uint64_t routed = job->kind == MSG_SLOT_DENSE ? job->tokens : 0;
    for (size_t i = 0; job->kind == MSG_SLOT_MOE && i < (size_t)job->tokens * job->top_k; i++)
        routed += job->ids[i] >= 0;
    struct compute_cost cost = {
        .mode = phases_mode(job->kind == MSG_SLOT_DENSE, 1, 1),
        .params = routed * geometry_params(layer->layout),
        .weight_bytes = routed * layer->layout->expert_bytes,
    };
    cost.tiles = cost.tile_tokens = routed + (layer->shared_layout ? job->tokens : 0);
    if (layer->shared_layout) {
        cost.params += job->tokens * geometry_params(layer->shared_layout);
        cost.weight_bytes += job->tokens * layer->shared_layout->expert_bytes;
    }
    return cost;
}

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

size_t compute_y_bytes(uint32_t hidden)
{
    return (size_t)COMPUTE_CHUNK * hidden * sizeof(float);
}

bool compute_run(const struct compute_job *job, float *y, void *scratch, _Atomic uint64_t *progress, const _Atomic bool *cancel)
{
    for (uint32_t first = 0; first < job->tokens; first += COMPUTE_CHUNK) {
        if (atomic_load_explicit(cancel, memory_order_relaxed))
            return false;
        uint32_t tokens = job->tokens - first < COMPUTE_CHUNK ? job->tokens - first : COMPUTE_CHUNK;
        const uint16_t *x = job->x + (size_t)first * job->hidden;
        size_t slots = (size_t)first * job->top_k, count = (size_t)tokens * job->hidden;
        float *to = job->dtype == MSG_F32 ? (float *)job->partial + (size_t)first * job->hidden : y;
        if (job->kind == MSG_SLOT_DENSE)
            kernels_dense(&job->layer, x, tokens, to, scratch);
        else
            kernels_moe(&job->layer, x, job->ids + slots, job->weights + slots, tokens, job->top_k, to, scratch);
        if (job->dtype == MSG_F32)
            kernels_canonical(to, count);
        else
            kernels_to_bf16((uint16_t *)job->partial + (size_t)first * job->hidden, to, count);
        atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    }
    return true;
}

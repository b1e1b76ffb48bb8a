#include "daemon/duck/compute.h"

struct compute_cost compute_cost(const struct compute_job *job)
{
    const struct kernels_layer *layer = &job->layer;
    uint64_t routed = job->kind == MSG_SLOT_DENSE ? job->tokens : 0;
    for (size_t i = 0; job->kind == MSG_SLOT_MOE && i < (size_t)job->tokens * job->top_k; i++)
        routed += job->ids[i] >= 0;
    struct compute_cost cost = {
        .params = routed * geometry_params(layer->layout),
        .weight_bytes = routed * layer->layout->expert_bytes,
    };
    if (layer->shared_layout) {
        cost.params += job->tokens * geometry_params(layer->shared_layout);
        cost.weight_bytes += job->tokens * layer->shared_layout->expert_bytes;
    }
    return cost;
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

#include <string.h>

#include "kernels/phases_parts.h"

static void add_expert(struct phases *phases, const struct layout_mlp *layout, const uint8_t *bytes, uint32_t count)
{
    struct phases_expert *expert = &phases->room.experts[phases->expert_count];
    const struct phases_expert *last = phases->expert_count ? expert - 1 : NULL;

    *expert = (struct phases_expert){
        .layout = layout,
        .bytes = bytes,
        .first = phases->pair_count,
        .count = count,
        .h_stride = h_stride(layout),
        .h = last ? last->h + (size_t)last->count * last->h_stride : phases->room.h,
    };
    phases->room.work[phases->expert_count++] = (struct split_work){.tokens = count, .panels = layout->neuron_panels};
    phases->pair_count += count;
}

/* All tokens of the chunk with weight 1. */
static void add_for_all(struct phases *phases, const struct layout_mlp *layout, const uint8_t *bytes, uint32_t tokens)
{
    struct phases_pair *pair = phases->room.pairs + phases->pair_count;

    add_expert(phases, layout, bytes, tokens);
    for (uint32_t t = 0; t < tokens; t++)
        pair[t] = (struct phases_pair){.token = t, .weight = 1.0f};
}

/* Counting sort: ascending ids, equal ids by token and slot. */
static void add_routed(struct phases *phases, struct phases_chunk chunk)
{
    const struct kernels_layer *layer = phases->job.layer;
    uint32_t top_k = phases->job.top_k, slots = chunk.count * top_k, *counts = phases->room.counts;
    const int32_t *ids = phases->job.ids + (size_t)chunk.first * top_k;
    const float *weights = phases->job.weights + (size_t)chunk.first * top_k;

    memset(counts, 0, layer->expert_count * sizeof(*counts));
    for (uint32_t i = 0; i < slots; i++)
        if (ids[i] >= 0)
            counts[ids[i]]++;
    for (uint32_t e = 0; e < layer->expert_count; e++) {
        uint32_t count = counts[e];

        counts[e] = phases->pair_count; /* from now on: where its next pair goes */
        if (count)
            add_expert(phases, layer->layout, layer->experts + (size_t)e * layer->layout->expert_bytes, count);
    }
    for (uint32_t t = 0, i = 0; t < chunk.count; t++)
        for (uint32_t k = 0; k < top_k; k++, i++)
            if (ids[i] >= 0)
                phases->room.pairs[counts[ids[i]]++] = (struct phases_pair){.token = t, .weight = weights[i]};
}

static uint64_t mlp_weights(const struct layout_mlp *layout)
{
    return UINT64_C(3) * layout->hidden * layout->neurons;
}

uint64_t phases_decode_weights(const struct phases_job *job)
{
    const struct kernels_layer *layer = job->layer;
    uint64_t weights = layer->layout ? mlp_weights(layer->layout) * (job->dense || !job->top_k ? 1 : job->top_k) : 0;

    return weights + (layer->shared_layout && !job->dense ? mlp_weights(layer->shared_layout) : 0);
}

/* Nobody works at either now: the sort is a phase of its own. */
static void set_runs(struct phases *phases)
{
    const struct phases_room *room = &phases->room;
    uint32_t members = phases->members, row_panels = any_layout(phases->job.layer)->down.panels;

    split_runs(room->work, phases->expert_count, phases->tile, members, room->begins);
    for (uint32_t m = 0; m < members; m++) {
        room->gate_up[m].begin = room->begins[m];
        room->gate_up[m].end = room->begins[m + 1];
        room->down[m].begin = split_even(row_panels, members, m);
        room->down[m].end = split_even(row_panels, members, m + 1);
        atomic_store_explicit(&room->gate_up[m].taken, room->gate_up[m].begin, memory_order_relaxed);
        atomic_store_explicit(&room->down[m].taken, room->down[m].begin, memory_order_relaxed);
    }
}

void phases_sort(struct phases *phases, struct phases_chunk chunk)
{
    const struct kernels_layer *layer = phases->job.layer;

    phases->expert_count = phases->pair_count = 0;
    if (phases->job.dense) {
        add_for_all(phases, layer->layout, layer->experts, chunk.count);
    } else {
        if (phases->job.top_k && layer->layout)
            add_routed(phases, chunk);
        if (layer->shared_layout)
            add_for_all(phases, layer->shared_layout, layer->shared, chunk.count);
    }
    phases->rows_least = phases->expert_count ? claim_least(&phases->room.experts->layout->down) : 1;
    phases->tile =
        split_tile(phases->room.work, phases->expert_count, phases->members, phases->budget, gate_up_panel_weights(any_layout(layer)));
    set_runs(phases);
    for (uint32_t i = 0; i < phases->expert_count; i++) {
        const struct phases_expert *expert = &phases->room.experts[i];
        uint32_t tiles = split_tiles(expert->count, phases->tile);

        phases->cost.params += expert->count * mlp_weights(expert->layout);
        phases->cost.weight_bytes += tiles * expert->layout->expert_bytes;
        phases->cost.tiles += tiles;
        phases->cost.tile_tokens += expert->count;
    }
}

#include "kernels/batch.h"
#include "kernels/phases_parts.h"

/* Slots of a token, the shared expert's and a dense layer's included. */
static uint64_t slots_of(const struct kernels_layer *layer, uint32_t top_k)
{
    return (top_k ? top_k : 1) + (layer->shared_layout != NULL);
}

static uint64_t token_bytes(const struct kernels_layer *layer, uint32_t top_k)
{
    uint64_t floats = x_stride(layer) + y_stride(layer) + 1;

    floats += (uint64_t)(top_k ? top_k : 1) * h_stride(layer->layout) + h_stride(layer->shared_layout);
    return floats * sizeof(float) + slots_of(layer, top_k) * sizeof(struct phases_pair);
}

uint32_t phases_room_chunk(const struct kernels_layer *layer, uint32_t tokens, uint32_t top_k)
{
    uint64_t fit = PHASES_CHUNK_BYTES / token_bytes(layer, top_k);
    uint32_t chunk = fit > PHASES_CHUNK ? PHASES_CHUNK : fit < KERNELS_TOKENS_SHARED ? KERNELS_TOKENS_SHARED : (uint32_t)fit;

    return tokens < chunk ? tokens : chunk;
}

#define ARRAYS 11 /* in scratch, each from a multiple of LAYOUT_ALIGN on */

static size_t tables_bytes(const struct kernels_layer *layer, uint32_t members)
{
    size_t expert = sizeof(uint32_t) + sizeof(struct phases_expert) + sizeof(struct split_work);

    return (layer->expert_count + 1) * expert +
           members * (sizeof(struct phases_member) + 2 * sizeof(struct phases_runs) + batch_scratch_bytes()) +
           (members + 1) * sizeof(uint32_t) + ARRAYS * PHASES_LINE;
}

/* Grows with each of its numbers, so that room for the largest is room for all. */
size_t phases_scratch_bytes(const struct kernels_layer *layer, uint32_t tokens, uint32_t top_k, uint32_t members)
{
    uint64_t each = token_bytes(layer, top_k);
    uint64_t want = (tokens < PHASES_CHUNK ? tokens : PHASES_CHUNK) * each;
    uint64_t least = (tokens < KERNELS_TOKENS_SHARED ? tokens : KERNELS_TOKENS_SHARED) * each;

    if (want > PHASES_CHUNK_BYTES)
        want = PHASES_CHUNK_BYTES;
    return (size_t)(want > least ? want : least) + tables_bytes(layer, members);
}

static void *carve(uint8_t **at, size_t bytes, size_t align)
{
    uint8_t *from = (uint8_t *)(((uintptr_t)*at + align - 1) / align * align);

    *at = from + bytes;
    return from;
}

struct phases_room phases_room_of(const struct phases *phases, void *scratch)
{
    const struct kernels_layer *layer = phases->job.layer;
    uint32_t top_k = phases->job.top_k;
    size_t n = phases->chunk, experts = layer->expert_count + 1;
    size_t h_floats = n * ((size_t)(top_k ? top_k : 1) * h_stride(layer->layout) + h_stride(layer->shared_layout));
    uint8_t *at = scratch;
    struct phases_room room;

    room.member = carve(&at, phases->members * sizeof(*room.member), PHASES_LINE);
    room.gate_up = carve(&at, phases->members * sizeof(*room.gate_up), PHASES_LINE);
    room.down = carve(&at, phases->members * sizeof(*room.down), PHASES_LINE);
    room.batch = carve(&at, phases->members * batch_scratch_bytes(), PHASES_LINE);
    room.x = carve(&at, n * x_stride(layer) * sizeof(float), LAYOUT_ALIGN);
    room.h = carve(&at, h_floats * sizeof(float), LAYOUT_ALIGN);
    room.y = carve(&at, n * y_stride(layer) * sizeof(float), LAYOUT_ALIGN);
    room.x_undo = carve(&at, n * sizeof(float), LAYOUT_ALIGN);
    room.pairs = carve(&at, n * slots_of(layer, top_k) * sizeof(*room.pairs), LAYOUT_ALIGN);
    room.experts = carve(&at, experts * sizeof(*room.experts), LAYOUT_ALIGN);
    room.work = carve(&at, experts * sizeof(*room.work), LAYOUT_ALIGN);
    room.begins = carve(&at, (phases->members + 1 + experts) * sizeof(*room.begins), LAYOUT_ALIGN);
    room.counts = room.begins + phases->members + 1;
    return room;
}

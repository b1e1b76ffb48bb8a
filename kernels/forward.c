/* Modes 0 and 1: a token's vector through gate, up and down of the experts that it is routed to. */
#include <string.h>

#include "kernels/bits.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/tiers.h"
#include "proto/base/size.h"

static uint32_t layer_hidden(const struct kernels_layer *layer)
{
    return layer->layout ? layer->layout->hidden : layer->shared_layout->hidden;
}

/* A vector read by a gemv is 16 floats per group, so a group never needs a tail. */
static size_t x_floats(const struct kernels_layer *layer)
{
    const struct layout_mlp *layout = layer->layout ? layer->layout : layer->shared_layout;

    return layout_vector_floats(&layout->gate_up);
}

static size_t h_floats(const struct kernels_layer *layer)
{
    size_t routed = layer->layout ? layout_vector_floats(&layer->layout->down) : 0;
    size_t shared = layer->shared_layout ? layout_vector_floats(&layer->shared_layout->down) : 0;

    return routed > shared ? routed : shared;
}

size_t kernels_scratch_bytes(const struct kernels_layer *layer)
{
    return size_round_up(x_floats(layer) * sizeof(float), LAYOUT_ALIGN) + size_round_up(h_floats(layer) * sizeof(float), LAYOUT_ALIGN);
}

/* One token's state: x normalised once, whatever the number of experts. */
struct token {
    const struct tiers_ops *ops;
    const float *x; /* x' */
    float undo;     /* 2^(e - 15) */
    float *h;
    float *y;
};

/* 2^(e - 15) undoes the 2^-111 of raw weights and the 2^(126 - e) of the vector. */
static float undo_power(int e)
{
    return bits_pow2(e - 15);
}

static void apply_expert(const struct token *token, const struct layout_mlp *layout, const uint8_t *expert, float weight)
{
    /* Panels that hold nothing but padding neurons are not read: their h is 0 by definition. */
    uint32_t neuron_panels = layout->down.groups;
    struct tiers_run gate_up = tiers_run_of(&layout->gate_up, expert, 0, neuron_panels);
    struct tiers_run down = tiers_run_of(&layout->down, expert, 0, layout->down.panels);
    int e;

    token->ops->gate_up(&gate_up, token->x, token->undo, token->h);
    e = token->ops->normalise_f32(token->h, layout_vector_floats(&layout->down), token->h, layout->neurons);
    token->ops->down(&down, token->h, undo_power(e), weight, token->y, layout->hidden);
}

/* Slots with an expert, by ascending id, equal ids in slot order; returns how many. */
static uint32_t sort_slots(uint8_t order[KERNELS_TOP_K_MAX], const int32_t *ids, uint32_t top_k)
{
    uint32_t count = 0;

    for (uint32_t slot = 0; slot < top_k; slot++) {
        uint32_t at = count;

        if (ids[slot] < 0)
            continue;
        for (; at > 0 && ids[order[at - 1]] > ids[slot]; at--)
            order[at] = order[at - 1];
        order[at] = (uint8_t)slot;
        count++;
    }
    return count;
}

static struct token token_begin(const struct kernels_layer *layer, const uint16_t *x, float *y, void *scratch)
{
    uint32_t floats = (uint32_t)x_floats(layer);
    uint32_t hidden = layer_hidden(layer);
    float *normalised = scratch;
    struct token token = {.ops = tiers_active(), .x = normalised, .y = y};

    token.h = normalised + size_round_up(floats * sizeof(float), LAYOUT_ALIGN) / sizeof(float);
    token.undo = undo_power(token.ops->normalise_bf16(normalised, floats, x, hidden));
    memset(y, 0, hidden * sizeof(*y));
    return token;
}

void kernels_dense(const struct kernels_layer *layer, const uint16_t *x, uint32_t tokens, float *y, void *scratch)
{
    fpenv_saved saved = fpenv_enter();
    uint32_t hidden = layer->layout->hidden;

    for (uint32_t t = 0; t < tokens; t++) {
        struct token token = token_begin(layer, x + (size_t)t * hidden, y + (size_t)t * hidden, scratch);

        apply_expert(&token, layer->layout, layer->experts, 1.0f);
    }
    fpenv_leave(saved);
}

void kernels_moe(const struct kernels_layer *layer, const uint16_t *x, const int32_t *ids, const float *weights, uint32_t tokens,
                 uint32_t top_k, float *y, void *scratch)
{
    fpenv_saved saved = fpenv_enter();
    uint32_t hidden = layer_hidden(layer);

    for (uint32_t t = 0; t < tokens; t++) {
        struct token token = token_begin(layer, x + (size_t)t * hidden, y + (size_t)t * hidden, scratch);
        uint8_t order[KERNELS_TOP_K_MAX];
        uint32_t count = sort_slots(order, ids + (size_t)t * top_k, top_k);

        for (uint32_t i = 0; i < count; i++) {
            size_t slot = (size_t)t * top_k + order[i];

            apply_expert(&token, layer->layout, layer->experts + (size_t)ids[slot] * layer->layout->expert_bytes, weights[slot]);
        }
        if (layer->shared_layout)
            apply_expert(&token, layer->shared_layout, layer->shared, 1.0f);
    }
    fpenv_leave(saved);
}

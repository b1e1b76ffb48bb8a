/* Modes 0 and 1: tokens' vectors through gate, up and down of the experts that they are routed to, an expert's weights read once for all
 * tokens of a group that want it. */
#include <string.h>

#include "kernels/bits.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/tiers.h"
#include "proto/base/size.h"

_Static_assert(KERNELS_TOKENS_SHARED == TIERS_TOKENS_MAX, "a group is what a tier takes at once");

static uint32_t layer_hidden(const struct kernels_layer *layer)
{
    return layer->layout ? layer->layout->hidden : layer->shared_layout->hidden;
}

/* A vector read by a gemv is whole groups, so a group never needs a tail. */
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

/* x' of KERNELS_TOKENS_SHARED tokens, then as many h. */
static size_t x_stride(const struct kernels_layer *layer)
{
    return size_round_up(x_floats(layer) * sizeof(float), LAYOUT_ALIGN) / sizeof(float);
}

static size_t h_stride(const struct kernels_layer *layer)
{
    return size_round_up(h_floats(layer) * sizeof(float), LAYOUT_ALIGN) / sizeof(float);
}

size_t kernels_scratch_bytes(const struct kernels_layer *layer)
{
    return KERNELS_TOKENS_SHARED * (x_stride(layer) + h_stride(layer)) * sizeof(float);
}

/* Up to KERNELS_TOKENS_SHARED tokens: x normalised once, whatever the number of experts. */
struct group {
    const struct tiers_ops *ops;
    uint32_t count;
    const float *x[KERNELS_TOKENS_SHARED]; /* x' */
    float undo[KERNELS_TOKENS_SHARED];     /* 2^(e - 15) */
    float *y[KERNELS_TOKENS_SHARED];
    float *h[KERNELS_TOKENS_SHARED]; /* no token's own: of whichever share a pass */
};

/* An expert applied to a token of the group. */
struct use {
    int32_t id;
    uint32_t token;
    float weight;
};

/* 2^(e - 15) undoes the 2^-111 of raw weights and the 2^(126 - e) of the vector. */
static float undo_power(int e)
{
    return bits_pow2(e - 15);
}

/* One pass over an expert's weights. A token may be in `uses` twice: down adds in their order. */
static void apply_expert(const struct group *group, const struct layout_mlp *layout, const uint8_t *expert, const struct use *uses,
                         uint32_t count)
{
    /* Panels that hold nothing but padding neurons are not read: their h is 0 by definition. */
    struct tiers_run gate_up = tiers_run_of(&layout->gate_up, expert, 0, layout->neuron_panels);
    struct tiers_run down = tiers_run_of(&layout->down, expert, 0, layout->down.panels);
    struct tiers_token token[KERNELS_TOKENS_SHARED];

    for (uint32_t i = 0; i < count; i++)
        token[i] = (struct tiers_token){.v = group->x[uses[i].token], .undo = group->undo[uses[i].token], .out = group->h[i]};
    group->ops->gate_up_tokens(&gate_up, token, count);
    for (uint32_t i = 0; i < count; i++) {
        float *h = group->h[i];
        int e = group->ops->normalise_f32(h, layout_vector_floats(&layout->down), h, layout->neurons);

        token[i] = (struct tiers_token){.v = h, .undo = undo_power(e), .weight = uses[i].weight, .out = group->y[uses[i].token]};
    }
    group->ops->down_tokens(&down, token, count, layout->hidden);
}

static void apply_to_all(const struct group *group, const struct layout_mlp *layout, const uint8_t *expert)
{
    struct use uses[KERNELS_TOKENS_SHARED];

    for (uint32_t t = 0; t < group->count; t++)
        uses[t] = (struct use){.token = t, .weight = 1.0f};
    apply_expert(group, layout, expert, uses, group->count);
}

/* Slots with an expert, by ascending id, equal ids by token and slot; returns how many. */
static uint32_t sort_uses(struct use uses[KERNELS_TOKENS_SHARED * KERNELS_TOP_K_MAX], const int32_t *ids, const float *weights,
                          uint32_t tokens, uint32_t top_k)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < tokens * top_k; i++) {
        uint32_t at = count;

        if (ids[i] < 0)
            continue;
        for (; at > 0 && uses[at - 1].id > ids[i]; at--)
            uses[at] = uses[at - 1];
        uses[at] = (struct use){.id = ids[i], .token = i / top_k, .weight = weights[i]};
        count++;
    }
    return count;
}

static struct group group_begin(const struct kernels_layer *layer, const uint16_t *x, uint32_t tokens, float *y, void *scratch)
{
    uint32_t hidden = layer_hidden(layer);
    size_t x_floats_each = x_stride(layer), h_floats_each = h_stride(layer);
    float *at = scratch;
    struct group group = {.ops = tiers_active(), .count = tokens};

    for (uint32_t t = 0; t < tokens; t++, at += x_floats_each) {
        group.x[t] = at;
        group.undo[t] = undo_power(group.ops->normalise_bf16(at, (uint32_t)x_floats(layer), x + (size_t)t * hidden, hidden));
        group.y[t] = y + (size_t)t * hidden;
    }
    for (uint32_t t = 0; t < tokens; t++, at += h_floats_each)
        group.h[t] = at;
    memset(y, 0, (size_t)tokens * hidden * sizeof(*y));
    return group;
}

static uint32_t group_tokens(uint32_t left)
{
    return left < KERNELS_TOKENS_SHARED ? left : KERNELS_TOKENS_SHARED;
}

void kernels_dense(const struct kernels_layer *layer, const uint16_t *x, uint32_t tokens, float *y, void *scratch)
{
    fpenv_saved saved = fpenv_enter();
    size_t hidden = layer->layout->hidden;

    for (uint32_t t = 0; t < tokens; t += KERNELS_TOKENS_SHARED) {
        struct group group = group_begin(layer, x + t * hidden, group_tokens(tokens - t), y + t * hidden, scratch);

        apply_to_all(&group, layer->layout, layer->experts);
    }
    fpenv_leave(saved);
}

static void apply_routed(const struct kernels_layer *layer, const struct group *group, const int32_t *ids, const float *weights,
                         uint32_t top_k)
{
    struct use uses[KERNELS_TOKENS_SHARED * KERNELS_TOP_K_MAX];
    uint32_t count = sort_uses(uses, ids, weights, group->count, top_k);

    for (uint32_t i = 0; i < count;) {
        uint32_t end = i + 1;

        while (end < count && uses[end].id == uses[i].id && end - i < group->count)
            end++;
        apply_expert(group, layer->layout, layer->experts + (size_t)uses[i].id * layer->layout->expert_bytes, uses + i, end - i);
        i = end;
    }
}

void kernels_moe(const struct kernels_layer *layer, const uint16_t *x, const int32_t *ids, const float *weights, uint32_t tokens,
                 uint32_t top_k, float *y, void *scratch)
{
    fpenv_saved saved = fpenv_enter();
    size_t hidden = layer_hidden(layer);

    for (uint32_t t = 0; t < tokens; t += KERNELS_TOKENS_SHARED) {
        struct group group = group_begin(layer, x + t * hidden, group_tokens(tokens - t), y + t * hidden, scratch);

        apply_routed(layer, &group, ids + (size_t)t * top_k, weights + (size_t)t * top_k, top_k);
        if (layer->shared_layout)
            apply_to_all(&group, layer->shared_layout, layer->shared);
    }
    fpenv_leave(saved);
}

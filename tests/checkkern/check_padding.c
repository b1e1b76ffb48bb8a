/* Padding: as much of it as the layout says, and nothing in it changes a result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/checkkern/run.h"

/* An expert of these has ones in every real sign bit and MARK in every real byte; no byte of signs is MARK, for those of a lane are ones
 * from the top. */
#define MARK_CODE 0xfe /* magnitude 0x7e + 0x48 */
#define MARK 0xc6
#define MARK_SCALE 0xc6c6c6c6u

struct sizes {
    const struct layout_mlp *layout;
    struct check_expert marked; /* every weight MARK_CODE, every scale MARK_SCALE */
};

static void sizes_init(struct sizes *sizes, const struct layout_mlp *layout)
{
    *sizes = (struct sizes){.layout = layout};
    for (int m = KERNELS_GATE; m <= KERNELS_DOWN; m++) {
        const struct layout_matrix *matrix = m == KERNELS_DOWN ? &layout->down : &layout->gate_up;
        uint32_t rows = m == KERNELS_DOWN ? layout->hidden : layout->neurons;
        size_t codes = (size_t)rows * matrix->columns, scales = layout_tiles(matrix, 0, rows) * (size_t)matrix->segments * sizeof(float);

        sizes->marked.codes[m] = malloc(codes);
        sizes->marked.scales[m] = malloc(scales);
        memset(sizes->marked.codes[m], MARK_CODE, codes);
        memset(sizes->marked.scales[m], MARK, scales);
    }
}

static void sizes_release(struct sizes *sizes)
{
    for (int m = KERNELS_GATE; m <= KERNELS_DOWN; m++) {
        free(sizes->marked.codes[m]);
        free(sizes->marked.scales[m]);
    }
}

/* Ones in every bit that holds something real. */
static uint8_t *real_bits(const struct sizes *sizes)
{
    uint8_t *mask = aligned_alloc(64, (size_t)sizes->layout->expert_bytes);

    kernels_pack_begin(sizes->layout, mask);
    check_pack(sizes->layout, &sizes->marked, mask);
    for (uint64_t i = 0; i < sizes->layout->expert_bytes; i++)
        if (mask[i] == MARK)
            mask[i] = 0xff;
    return mask;
}

/* The bits are those of the weights and scales, no more and no less, and layout.h's arithmetic has their number. */
static void check_real(const struct sizes *sizes, const uint8_t *mask, const char *tier)
{
    const struct layout_mlp *layout = sizes->layout;
    uint64_t bits = 0, params = UINT64_C(3) * layout->hidden * layout->neurons;

    for (uint64_t i = 0; i < layout->expert_bytes; i++)
        bits += (unsigned)__builtin_popcount(mask[i]);
    if (bits != 9 * params + 8 * layout_scale_bytes(layout))
        check_fail("padding: %s: %llu bits hold something, 9 for each of %llu weights and %llu bytes of scales should", tier,
                   (unsigned long long)bits, (unsigned long long)params, (unsigned long long)layout_scale_bytes(layout));
    if (layout_real_bytes(layout) != (9 * params + 7) / 8 + layout_scale_bytes(layout))
        check_fail("padding: layout_real_bytes");
}

/* Bytes that packing writes: all of every tile that has a real row. Twice over different contents; what is the same then was written. */
static void check_touched(const struct sizes *sizes, const char *tier)
{
    const struct layout_mlp *layout = sizes->layout;
    size_t bytes = (size_t)layout->expert_bytes;
    uint8_t *zeros = aligned_alloc(64, bytes), *ones = aligned_alloc(64, bytes);
    uint64_t touched = 0, want = layout_panel_offset(&layout->gate_up, layout->neuron_panels) + layout_scale_bytes(layout) +
                                 layout_tiles(&layout->down, 0, layout->hidden) * (layout->down.panel_bytes / 2);
    bool whole = layout->neurons == layout->neurons_padded && layout->hidden % LAYOUT_PANEL_ROWS == 0;

    memset(zeros, 0, bytes);
    memset(ones, 0xff, bytes);
    check_pack(layout, &sizes->marked, zeros);
    check_pack(layout, &sizes->marked, ones);
    for (size_t i = 0; i < bytes; i++)
        touched += zeros[i] == ones[i];
    if (touched != want)
        check_fail("padding: %s packs %llu bytes, %llu are computed", tier, (unsigned long long)touched, (unsigned long long)want);
    /* Slices that end where their neurons end pay for nothing but the ends of the expert's four parts. */
    if (whole && (touched != layout_real_bytes(layout) || bytes - touched >= 4 * LAYOUT_ALIGN))
        check_fail("padding: %llu of %zu bytes are packed, %llu real", (unsigned long long)touched, bytes,
                   (unsigned long long)layout_real_bytes(layout));
    free(zeros);
    free(ones);
}

/* Everything that is not real becomes ones: magnitudes 0xff, signs, NaN scales. */
static void poison(uint8_t *expert, const struct layout_mlp *layout, const uint8_t *mask)
{
    for (uint64_t i = 0; i < layout->expert_bytes; i++)
        expert[i] |= (uint8_t)~mask[i];
}

static void check_poisoned(struct check_layer *layer, const struct check_shape *shape, uint32_t top_k, struct check_random *random,
                           const uint8_t *mask, const uint8_t *shared_mask)
{
    enum { TOKENS = 5 }; /* a pass of four and one of one */
    size_t count = TOKENS * (size_t)shape->hidden;
    uint16_t *x = malloc(count * sizeof(*x));
    float *clean = malloc(count * sizeof(*clean)), *poisoned = malloc(count * sizeof(*poisoned));
    uint8_t *packed = layer->packed, *shared_packed = layer->shared_packed;
    size_t bytes = shape->experts * (size_t)layer->layout.expert_bytes;
    int32_t ids[TOKENS * 2];
    float weights[TOKENS * 2];
    struct run_input input = {TOKENS, top_k, x, ids, weights, 0};

    for (size_t i = 0; i < count; i++)
        x[i] = kernels_bf16_of_f32(check_float(random));
    for (uint32_t i = 0; i < TOKENS * 2; i++) {
        ids[i] = (int32_t)check_below(random, shape->experts + 1) - 1;
        weights[i] = check_float(random);
    }
    run_compared("before poison", layer, &input, clean);
    if (packed) {
        layer->packed = aligned_alloc(64, bytes);
        memcpy(layer->packed, packed, bytes);
        for (uint32_t i = 0; i < shape->experts; i++)
            poison(layer->packed + i * layer->layout.expert_bytes, &layer->layout, mask);
        layer->layer.experts = layer->packed;
    }
    if (shared_packed) {
        layer->shared_packed = aligned_alloc(64, (size_t)layer->shared_layout.expert_bytes);
        memcpy(layer->shared_packed, shared_packed, (size_t)layer->shared_layout.expert_bytes);
        poison(layer->shared_packed, &layer->shared_layout, shared_mask);
        layer->layer.shared = layer->shared_packed;
    }
    run_compared("poisoned padding", layer, &input, poisoned);
    check_same("poisoned padding", "ref", poisoned, clean, count * sizeof(*clean));
    if (packed)
        free(layer->packed);
    if (shared_packed)
        free(layer->shared_packed);
    layer->layer.experts = layer->packed = packed;
    layer->layer.shared = layer->shared_packed = shared_packed;
    free(x);
    free(clean);
    free(poisoned);
}

static uint8_t *check_sizes(const struct layout_mlp *layout)
{
    struct sizes sizes;
    uint8_t *mask = NULL;
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);

    sizes_init(&sizes, layout);
    for (size_t i = 0; i < count; i++) {
        if (!kernels_tier_available(variants[i].tier))
            continue;
        free(mask);
        kernels_select(variants[i].name, NULL);
        mask = real_bits(&sizes);
        check_real(&sizes, mask, variants[i].name);
        check_touched(&sizes, variants[i].name);
    }
    sizes_release(&sizes);
    return mask;
}

void check_padding(struct check_random *random)
{
    for (size_t i = 0; i < check_shapes_count; i++) {
        const struct check_shape *shape = &check_shapes[i];
        unsigned failed = check_failed;
        uint8_t *mask = NULL, *shared_mask = NULL;
        struct check_layer layer;

        check_layer_init(&layer, shape, CHECK_SCALES_USUAL, random);
        if (shape->experts)
            mask = check_sizes(&layer.layout);
        if (shape->shared_neurons)
            shared_mask = check_sizes(&layer.shared_layout);
        check_poisoned(&layer, shape, 2, random, mask, shared_mask);
        if (shape->experts)
            check_poisoned(&layer, shape, 0, random, mask, shared_mask);
        if (check_failed != failed)
            printf("     with hidden %u, neurons %u .. %u padded to %u, %u experts, shared %u\n", shape->hidden, shape->begin,
                   shape->begin + shape->neurons, shape->pad_to, shape->experts, shape->shared_neurons);
        check_layer_release(&layer);
        free(mask);
        free(shared_mask);
    }
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/checkkern/check.h"

static void *need(void *memory)
{
    if (!memory) {
        fputs("checkkern: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* Mostly usual magnitudes, with every code now and then. */
static uint8_t random_code(struct check_random *random)
{
    uint64_t bits = check_u64(random);
    uint8_t code = (uint8_t)(bits >> 8);

    if (bits & 0x0f)
        code = (uint8_t)((code & 0x80) | (0x20 + (code & 0x1f)));
    return (code & 0x7f) == 0x7f ? 0x80 : code;
}

static float random_scale(enum check_scales kind, struct check_random *random)
{
    static const float hostile[] = {0.0f, 1e-38f, 1e-23f, 1e20f, 0x1p80f, -0x1p80f, -1.0f, -0x1p-7f, 1e-40f, -0.0f};

    if (kind == CHECK_SCALES_HOSTILE && check_below(random, 2))
        return hostile[check_below(random, sizeof(hostile) / sizeof(hostile[0]))];
    return check_float(random) * 0x1p-7f;
}

static void expert_init(struct check_expert *expert, const struct layout_mlp *layout, enum check_scales scales, struct check_random *random)
{
    for (int m = KERNELS_GATE; m <= KERNELS_DOWN; m++) {
        const struct layout_matrix *matrix = m == KERNELS_DOWN ? &layout->down : &layout->gate_up;
        uint32_t rows = m == KERNELS_DOWN ? layout->hidden : layout->neurons;
        size_t codes = (size_t)rows * matrix->columns, tiles = layout_tiles(matrix, 0, rows) * (size_t)matrix->segments;

        expert->codes[m] = need(malloc(codes));
        expert->scales[m] = need(malloc(tiles * sizeof(float)));
        for (size_t i = 0; i < codes; i++)
            expert->codes[m][i] = random_code(random);
        for (size_t i = 0; i < tiles; i++)
            expert->scales[m][i] = random_scale(scales, random);
    }
}

void check_pack(const struct layout_mlp *layout, const struct check_expert *expert, uint8_t *to)
{
    for (int m = KERNELS_DOWN; m >= KERNELS_GATE; m--) {
        struct kernels_rows rows = {
            .matrix = (enum kernels_matrix)m,
            .rows = m == KERNELS_DOWN ? layout->hidden : layout->neurons,
            .codes = expert->codes[m],
            .scales = expert->scales[m],
        };
        struct err err;

        if (kernels_pack(layout, to, &rows, &err) < 0)
            check_fail("pack: %s", err.message);
    }
}

static void check_unpacked(const struct layout_mlp *layout, const struct check_expert *expert, const uint8_t *packed)
{
    for (int m = KERNELS_GATE; m <= KERNELS_DOWN; m++) {
        const struct layout_matrix *matrix = m == KERNELS_DOWN ? &layout->down : &layout->gate_up;
        uint32_t rows = m == KERNELS_DOWN ? layout->hidden : layout->neurons;

        for (uint32_t row = 0; row < rows; row++)
            for (uint32_t column = 0; column < matrix->columns; column++) {
                uint32_t segment = (matrix->column_origin + column) / 128;
                float scale, want = expert->scales[m][(size_t)layout_tile(matrix, row) * matrix->segments + segment];
                uint16_t have = kernels_unpack(layout, packed, (enum kernels_matrix)m, row, column, &scale);

                if (have != kernels_fp9_of_e4m3(expert->codes[m][(size_t)row * matrix->columns + column]) ||
                    memcmp(&scale, &want, sizeof(scale)) != 0) {
                    check_fail("unpack: %s[%u, %u] came back as 0x%03x, scale %g", kernels_matrix_name((enum kernels_matrix)m), row, column,
                               have, (double)scale);
                    return;
                }
            }
    }
}

/* Packs by the reference and by each tier into poisoned memory: the same bytes, padding and all. */
static void pack_compared(const struct layout_mlp *layout, const struct check_expert *expert, uint8_t *to)
{
    const struct tiers_variant *variant;
    size_t bytes = (size_t)layout->expert_bytes;

    kernels_select("ref", NULL);
    kernels_pack_begin(layout, to);
    check_pack(layout, expert, to);
    check_unpacked(layout, expert, to);
    for (size_t i = 0; check_tier(i, &variant); i++) {
        struct check_guarded other = check_guarded_new(bytes, 0);

        kernels_select(variant->name, NULL);
        kernels_pack_begin(layout, other.data);
        check_pack(layout, expert, other.data);
        check_same("pack", variant->name, other.data, to, bytes);
        if (!check_guarded_free(&other))
            check_fail("pack: %s wrote outside the expert", variant->name);
    }
}

void check_layer_init(struct check_layer *layer, const struct check_shape *shape, enum check_scales scales, struct check_random *random)
{
    struct err err;

    *layer = (struct check_layer){.count = shape->experts + (shape->shared_neurons > 0)};
    if (layout_mlp_init(&layer->layout, shape->hidden, shape->begin, shape->neurons, shape->pad_to, &err) < 0 ||
        (shape->shared_neurons &&
         layout_mlp_init(&layer->shared_layout, shape->hidden, shape->begin, shape->shared_neurons, shape->pad_to, &err) < 0)) {
        printf("checkkern: %s\n", err.message);
        exit(1);
    }
    layer->experts = need(calloc(layer->count, sizeof(*layer->experts)));
    if (shape->experts)
        layer->packed = need(aligned_alloc(64, shape->experts * (size_t)layer->layout.expert_bytes));
    for (uint32_t i = 0; i < shape->experts; i++) {
        expert_init(&layer->experts[i], &layer->layout, scales, random);
        pack_compared(&layer->layout, &layer->experts[i], layer->packed + i * layer->layout.expert_bytes);
    }
    if (shape->shared_neurons) {
        layer->shared_packed = need(aligned_alloc(64, (size_t)layer->shared_layout.expert_bytes));
        expert_init(&layer->experts[shape->experts], &layer->shared_layout, scales, random);
        pack_compared(&layer->shared_layout, &layer->experts[shape->experts], layer->shared_packed);
    }
    layer->layer = (struct kernels_layer){
        .layout = &layer->layout,
        .experts = layer->packed,
        .expert_count = shape->experts,
        .shared_layout = shape->shared_neurons ? &layer->shared_layout : NULL,
        .shared = layer->shared_packed,
    };
}

void check_layer_release(struct check_layer *layer)
{
    for (uint32_t i = 0; i < layer->count; i++)
        for (int m = 0; m < 3; m++) {
            free(layer->experts[i].codes[m]);
            free(layer->experts[i].scales[m]);
        }
    free(layer->experts);
    free(layer->packed);
    free(layer->shared_packed);
    *layer = (struct check_layer){0};
}

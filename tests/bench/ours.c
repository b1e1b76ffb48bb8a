#include "tests/bench/ours.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/bits.h"
#include "proto/base/cleanup.h"
#include "proto/base/size.h"

/* A gemv's item is an expert's down matrix alone, which stands at its end. */
static size_t item_offset(const struct bench_case *what)
{
    return what->kind == CASE_GEMV ? (size_t)what->layout.down.scales_offset : 0;
}

size_t ours_item_bytes(const struct bench_case *what)
{
    return (size_t)what->layout.expert_bytes - item_offset(what);
}

int ours_pack(const struct bench_case *what, const struct weights *weights, uint8_t *item, struct err *err)
{
    const struct layout_mlp *layout = &what->layout;
    _cleanup_(freep) uint8_t *expert = aligned_alloc(LAYOUT_ALIGN, (size_t)size_round_up(layout->expert_bytes, LAYOUT_ALIGN));

    if (!expert)
        return err_no_memory(err, "one expert", (size_t)layout->expert_bytes);
    kernels_pack_begin(layout, expert);
    for (uint32_t m = 0; m < weights->count; m++) {
        const struct weights_matrix *matrix = &weights->matrices[m];
        struct kernels_rows rows = {
            .matrix = weights->count == 1 ? KERNELS_DOWN : (enum kernels_matrix)m,
            .rows = matrix->rows,
            .codes = matrix->codes,
            .scales = matrix->scales,
        };
        int r = kernels_pack(layout, expert, &rows, err);

        if (r < 0)
            return r;
    }
    memcpy(item, expert + item_offset(what), ours_item_bytes(what));
    return 0;
}

const char *ours_isa(const struct tiers_variant *tier)
{
    return tier->tier == KERNELS_REF ? "ref" : strncmp(tier->name, "avx512", 6) == 0 ? "avx512" : "avx2";
}

void ours_begin(const struct tiers_variant *tier, const struct bench_case *what, struct vectors *vectors)
{
    const struct layout_matrix *down = &what->layout.down;

    kernels_select(tier->name, NULL); /* variant_check was passed, so that it cannot fail */
    if (what->kind == CASE_GEMV)
        vectors->undo = bits_pow2(tier->ops->normalise_bf16(vectors->v, layout_vector_floats(down), vectors->x, down->columns) - 15);
}

void ours_step(const struct tiers_variant *tier, const struct bench_case *what, struct vectors *vectors, const uint8_t *items,
               uint32_t count, const int32_t *ids)
{
    const struct layout_mlp *layout = &what->layout;
    struct kernels_layer layer = {.layout = layout, .experts = items, .expert_count = count};

    switch (what->kind) {
    case CASE_GEMV: {
        const uint8_t *expert = items + (size_t)ids[0] * ours_item_bytes(what) - item_offset(what);
        struct tiers_run run = tiers_run_of(&layout->down, expert, 0, layout->down.panels);

        tier->ops->down(&run, vectors->v, vectors->undo, 1.0f, vectors->y, layout->hidden);
        break;
    }
    case CASE_MLP:
        layer.experts += (size_t)ids[0] * ours_item_bytes(what);
        kernels_dense(&layer, vectors->x, 1, vectors->y, vectors->scratch);
        break;
    case CASE_MOE: kernels_moe(&layer, vectors->x, ids, vectors->weights, 1, what->top_k, vectors->y, vectors->scratch); break;
    }
}

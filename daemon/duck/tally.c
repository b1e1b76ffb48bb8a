#include "daemon/duck/tally.h"

#include <stdlib.h>

#include "proto/base/size.h"

static uint32_t matrix_tiles(const struct layout_mlp *layout, enum kernels_matrix matrix)
{
    return layout_tiles(geometry_matrix(layout, matrix), 0, geometry_rows(layout, matrix));
}

static uint32_t expert_tiles(const struct layout_mlp *layout)
{
    return 2 * matrix_tiles(layout, KERNELS_GATE) + matrix_tiles(layout, KERNELS_DOWN);
}

int tally_init(struct tally *tally, const struct geometry *geometry, struct err *err)
{
    struct tally made = {.experts = geometry->experts, .expert_tiles = expert_tiles(&geometry->layout)};
    made.shared_tiles = geometry->has_shared ? expert_tiles(&geometry->shared) : 0;
    made.tiles_left = (uint64_t)made.expert_tiles * made.experts + made.shared_tiles;
    size_t words = size_ceil_div(made.tiles_left, 64);
    made.arrived = calloc(words, sizeof *made.arrived);
    made.left = calloc((size_t)made.experts + 1, sizeof *made.left);
    if (!made.arrived || !made.left) {
        tally_release(&made);
        return err_no_memory(err, "prepare", words * sizeof *made.arrived + made.experts);
    }
    for (uint32_t i = 0; i <= made.experts; i++)
        made.left[i] = i < made.experts ? made.expert_tiles : made.shared_tiles;
    *tally = made;
    return 0;
}

void tally_release(struct tally *tally)
{
    free(tally->arrived);
    free(tally->left);
}

static uint32_t matrix_first_tile(const struct layout_mlp *layout, enum kernels_matrix matrix)
{
    return (uint32_t)(matrix - KERNELS_GATE) * matrix_tiles(layout, KERNELS_GATE); /* gate and up have as many */
}

static uint64_t expert_first_tile(const struct tally *tally, uint32_t index)
{
    return (uint64_t)tally->expert_tiles * index;
}

static bool bit(const uint64_t *bits, uint64_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

/* Tiles [first, first + count) of the matrix, which are bits from *ret_at on. */
static uint32_t tiles_of(const struct tally *tally, const struct tally_rows *rows, uint32_t *ret_first, uint64_t *ret_at)
{
    const struct layout_matrix *shape = geometry_matrix(rows->layout, rows->matrix);
    *ret_first = layout_tile(shape, rows->first_row);
    *ret_at = expert_first_tile(tally, rows->index) + matrix_first_tile(rows->layout, rows->matrix) + *ret_first;
    return layout_tiles(shape, rows->first_row, rows->rows);
}

bool tally_find(const struct tally *tally, const struct tally_rows *rows, uint32_t *ret_row)
{
    uint32_t first;
    uint64_t at;
    uint32_t count = tiles_of(tally, rows, &first, &at);
    for (uint32_t i = 0; i < count; i++)
        if (bit(tally->arrived, at + i)) {
            *ret_row = layout_tile_row(geometry_matrix(rows->layout, rows->matrix), first + i);
            return true;
        }
    return false;
}

void tally_take(struct tally *tally, const struct tally_rows *rows, bool *ret_begin, bool *ret_end)
{
    uint32_t first, *left = &tally->left[rows->index];
    uint64_t at;
    uint32_t count = tiles_of(tally, rows, &first, &at);
    for (uint32_t i = 0; i < count; i++)
        tally->arrived[(at + i) / 64] |= UINT64_C(1) << (at + i) % 64;
    tally->tiles_left -= count;
    *ret_begin = *left == (rows->index == tally->experts ? tally->shared_tiles : tally->expert_tiles);
    *ret_end = (*left -= count) == 0;
}

struct tally_missing tally_first_missing(const struct tally *tally, const struct geometry *geometry)
{
    uint64_t at = 0;
    while (bit(tally->arrived, at))
        at++;
    bool shared = at >= expert_first_tile(tally, tally->experts);
    uint32_t index = shared ? tally->experts : (uint32_t)(at / tally->expert_tiles);
    const struct layout_mlp *layout = shared ? &geometry->shared : &geometry->layout;
    uint32_t tile = (uint32_t)(at - expert_first_tile(tally, index));
    enum kernels_matrix matrix = KERNELS_DOWN;
    while (matrix > KERNELS_GATE && tile < matrix_first_tile(layout, matrix))
        matrix--;
    uint32_t row = layout_tile_row(geometry_matrix(layout, matrix), tile - matrix_first_tile(layout, matrix));
    return (struct tally_missing){.index = index, .matrix = matrix, .row = row};
}

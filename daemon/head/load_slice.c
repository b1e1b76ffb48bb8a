#include "daemon/head/load_slice.h"

uint32_t load_slice_scales(const struct checkpoint_matrix *matrix, const struct layout_mlp *layout, enum kernels_matrix which,
                           uint32_t first_row, uint32_t rows, float *ret_scales)
{
    bool down = which == KERNELS_DOWN;
    const struct layout_matrix *shape = down ? &layout->down : &layout->gate_up;
    uint32_t begin = down ? 0 : layout->begin; /* in the checkpoint's rows */
    uint32_t column_block = down ? layout->begin / LAYOUT_BLOCK : 0;
    uint32_t tile = layout_tile(shape, first_row), end = tile + layout_tiles(shape, first_row, rows), at = 0;
    for (; tile < end; tile++) {
        uint32_t block = (matrix->row_origin + begin + layout_tile_row(shape, tile)) / LAYOUT_BLOCK;
        for (uint32_t segment = 0; segment < shape->segments; segment++)
            ret_scales[at++] = matrix->scales[(size_t)block * matrix->scale_columns + column_block + segment];
    }
    return at;
}

uint32_t load_slice_rows_at_once(const struct checkpoint_matrix *matrix, size_t bytes)
{
    uint32_t rows = (uint32_t)(bytes / matrix->columns / LAYOUT_TILE_ROWS * LAYOUT_TILE_ROWS);
    return rows ? rows : LAYOUT_TILE_ROWS;
}

uint32_t load_slice_next_rows(uint32_t begin, uint32_t neurons, uint32_t row, uint32_t most)
{
    uint32_t rows = most - (begin + row) % LAYOUT_TILE_ROWS;
    return neurons - row < rows ? neurons - row : rows;
}

#include "kernels/layout.h"

#include <errno.h>

#include "proto/base/size.h"

static void matrix_init(struct layout_matrix *matrix, uint32_t columns, uint32_t origin, uint32_t panels)
{
    matrix->columns = columns;
    matrix->column_origin = origin;
    matrix->segments = (uint32_t)size_ceil_div((uint64_t)origin + columns, LAYOUT_BLOCK);
    /* Origins are multiples of 16, so only the last segment can have a group that is not full. */
    matrix->groups = (uint32_t)size_ceil_div(columns, LAYOUT_GROUP_COLUMNS);
    matrix->panels = panels;
    matrix->panel_bytes = (uint64_t)matrix->groups * LAYOUT_GROUP_BYTES;
}

/* Puts the matrix's scales and panels at `offset` and returns the first byte after them. */
static uint64_t matrix_place(struct layout_matrix *matrix, uint64_t offset)
{
    uint64_t scales = (uint64_t)matrix->panels * matrix->segments * (LAYOUT_PANEL_ROWS / LAYOUT_TILE_ROWS) * sizeof(float);

    matrix->scales_offset = offset;
    matrix->panels_offset = offset + size_round_up(scales, LAYOUT_ALIGN);
    return matrix->panels_offset + size_round_up(matrix->panels * matrix->panel_bytes, LAYOUT_ALIGN);
}

int layout_mlp_init(struct layout_mlp *ret_layout, uint32_t hidden, uint32_t begin, uint32_t neurons, uint32_t pad_to,
                    struct err *err)
{
    struct layout_mlp layout = {.hidden = hidden, .begin = begin, .neurons = neurons};
    int r = 0;

    if (hidden == 0 || hidden > LAYOUT_HIDDEN_MAX)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "hidden size %u is outside 1 .. %u", hidden, LAYOUT_HIDDEN_MAX);
    else if (neurons == 0 || neurons > LAYOUT_NEURONS_MAX || begin > LAYOUT_NEURONS_MAX - neurons)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "a slice of %u neurons from %u on is outside 1 .. %u neurons", neurons, begin,
                    LAYOUT_NEURONS_MAX);
    else if (begin % LAYOUT_TILE_ROWS != 0)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "a slice begins at neuron %u, which is no multiple of %u", begin, LAYOUT_TILE_ROWS);
    else if (pad_to == 0 || pad_to > LAYOUT_NEURONS_MAX || pad_to % LAYOUT_TILE_ROWS != 0)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "slices are padded to %u neurons, which is no multiple of %u up to %u", pad_to,
                    LAYOUT_TILE_ROWS, LAYOUT_NEURONS_MAX);
    if (r < 0) {
        err_value_int(err, "hidden", hidden);
        err_value_int(err, "begin", begin);
        err_value_int(err, "neurons", neurons);
        err_value_int(err, "pad_to", pad_to);
        return r;
    }

    layout.neurons_padded = (uint32_t)size_round_up(neurons, pad_to);
    matrix_init(&layout.gate_up, hidden, 0, layout.neurons_padded / LAYOUT_TILE_ROWS);
    matrix_init(&layout.down, neurons, begin % LAYOUT_BLOCK, (uint32_t)size_ceil_div(hidden, LAYOUT_PANEL_ROWS));
    layout.expert_bytes = matrix_place(&layout.down, matrix_place(&layout.gate_up, 0));
    *ret_layout = layout;
    return 0;
}

struct layout_segment layout_segment(const struct layout_matrix *matrix, uint32_t i)
{
    uint64_t first = i == 0 ? 0 : (uint64_t)i * LAYOUT_BLOCK - matrix->column_origin;
    uint64_t end = (uint64_t)(i + 1) * LAYOUT_BLOCK - matrix->column_origin;

    if (end > matrix->columns)
        end = matrix->columns;
    return (struct layout_segment){
        .first = (uint32_t)first,
        .length = (uint32_t)(end - first),
        .first_group = (uint32_t)(first / LAYOUT_GROUP_COLUMNS),
    };
}

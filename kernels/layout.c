#include "kernels/layout.h"

#include <errno.h>

#include "proto/base/size.h"

#define FP9_BITS 9

/* Where K lies: `padded` columns from `origin` on, cut at the blocks. All are multiples of 8, so that a segment's rest is none or a half
 * group; those in the middle are whole blocks. */
static void matrix_columns(struct layout_matrix *matrix, uint32_t columns, uint32_t padded, uint32_t origin)
{
    uint32_t segments = (uint32_t)size_ceil_div((uint64_t)origin + columns, LAYOUT_BLOCK);
    uint32_t first = segments == 1 ? 0 : LAYOUT_BLOCK - origin; /* of a single segment all is "last" */
    uint32_t middle = segments > 2 ? (segments - 2) * LAYOUT_BLOCK : 0;
    uint32_t last = padded - first - middle;

    matrix->columns = columns;
    matrix->columns_padded = padded;
    matrix->column_origin = origin;
    matrix->segments = segments;
    matrix->groups = first / LAYOUT_GROUP_COLUMNS + middle / LAYOUT_GROUP_COLUMNS + last / LAYOUT_GROUP_COLUMNS;
    matrix->first_half = first % LAYOUT_GROUP_COLUMNS != 0;
    matrix->last_half = last % LAYOUT_GROUP_COLUMNS != 0;
    matrix->panel_bytes =
        (uint64_t)matrix->groups * LAYOUT_GROUP_BYTES + (uint64_t)(matrix->first_half + matrix->last_half) * LAYOUT_HALF_BYTES;
}

/* Puts the matrix's scales and panels at `offset` and returns the first byte after them. */
static uint64_t matrix_place(struct layout_matrix *matrix, uint64_t offset)
{
    uint64_t scales = (uint64_t)matrix->panels * matrix->segments * (LAYOUT_PANEL_ROWS / LAYOUT_TILE_ROWS) * sizeof(float);

    matrix->scales_offset = offset;
    matrix->panels_offset = offset + size_round_up(scales, LAYOUT_ALIGN);
    return matrix->panels_offset + size_round_up(layout_panel_offset(matrix, matrix->panels), LAYOUT_ALIGN);
}

static int check(uint32_t hidden, uint32_t begin, uint32_t neurons, uint32_t pad_to, struct err *err)
{
    int r;

    if (hidden == 0 || hidden > LAYOUT_HIDDEN_MAX)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "hidden size %u is outside 1 .. %u", hidden, LAYOUT_HIDDEN_MAX);
    else if (neurons == 0 || neurons > LAYOUT_NEURONS_MAX || begin > LAYOUT_NEURONS_MAX - neurons)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "a slice of %u neurons from %u on is outside 1 .. %u neurons", neurons, begin,
                    LAYOUT_NEURONS_MAX);
    else if (begin % LAYOUT_UNIT != 0)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "a slice begins at neuron %u, which is no multiple of %u", begin, LAYOUT_UNIT);
    else if (pad_to == 0 || pad_to > LAYOUT_NEURONS_MAX || pad_to % LAYOUT_UNIT != 0)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "slices are padded to %u neurons, which is no multiple of %u up to %u", pad_to,
                    LAYOUT_UNIT, LAYOUT_NEURONS_MAX);
    else
        return 0;
    err_value_int(err, "hidden", hidden);
    err_value_int(err, "begin", begin);
    err_value_int(err, "neurons", neurons);
    err_value_int(err, "pad_to", pad_to);
    return r;
}

int layout_mlp_init(struct layout_mlp *ret_layout, uint32_t hidden, uint32_t begin, uint32_t neurons, uint32_t pad_to, struct err *err)
{
    struct layout_mlp layout = {.hidden = hidden, .begin = begin, .neurons = neurons};
    struct layout_matrix *gate_up = &layout.gate_up;
    uint32_t end, real_end;
    int r = check(hidden, begin, neurons, pad_to, err);

    if (r < 0)
        return r;
    layout.neurons_padded = (uint32_t)size_round_up(neurons, pad_to);
    gate_up->row_origin = begin % LAYOUT_TILE_ROWS;
    end = gate_up->row_origin + layout.neurons_padded;
    gate_up->panels = (uint32_t)size_ceil_div(end, LAYOUT_TILE_ROWS);
    gate_up->head_half = gate_up->row_origin != 0;
    gate_up->tail_half = end % LAYOUT_TILE_ROWS != 0;
    layout.neuron_panels = layout_tiles(gate_up, 0, neurons);
    real_end = layout.neuron_panels == gate_up->panels ? end : layout.neuron_panels * LAYOUT_TILE_ROWS;

    matrix_columns(gate_up, hidden, (uint32_t)size_round_up(hidden, LAYOUT_GROUP_COLUMNS), 0);
    layout.down.panels = (uint32_t)size_ceil_div(hidden, LAYOUT_PANEL_ROWS);
    matrix_columns(&layout.down, neurons, real_end - gate_up->row_origin, begin % LAYOUT_BLOCK);
    layout.expert_bytes = matrix_place(&layout.down, matrix_place(gate_up, 0));
    *ret_layout = layout;
    return 0;
}

uint64_t layout_scale_bytes(const struct layout_mlp *layout)
{
    uint64_t gate_up = UINT64_C(2) * layout->neuron_panels * layout->gate_up.segments;
    uint64_t down = size_ceil_div(layout->hidden, LAYOUT_TILE_ROWS) * layout->down.segments;

    return (gate_up + down) * sizeof(float);
}

uint64_t layout_real_bytes(const struct layout_mlp *layout)
{
    return size_ceil_div(UINT64_C(3) * layout->hidden * layout->neurons * FP9_BITS, 8) + layout_scale_bytes(layout);
}

double layout_bytes_per_param(const struct layout_mlp *layout)
{
    return (double)layout->expert_bytes / (double)(UINT64_C(3) * layout->hidden * layout->neurons);
}

struct layout_segment layout_segment(const struct layout_matrix *matrix, uint32_t i)
{
    bool last = i == matrix->segments - 1;
    uint32_t first = i == 0 ? 0 : i * LAYOUT_BLOCK - matrix->column_origin;
    uint32_t next = (i + 1) * LAYOUT_BLOCK - matrix->column_origin;
    uint32_t width = (last ? matrix->columns_padded : next) - first;
    bool half_before = i > 0 && matrix->first_half;
    uint32_t first_group = (first - half_before * LAYOUT_UNIT) / LAYOUT_GROUP_COLUMNS;

    return (struct layout_segment){
        .first = first,
        .length = (last ? matrix->columns : next) - first,
        .first_group = first_group,
        .groups = width / LAYOUT_GROUP_COLUMNS,
        .half = width % LAYOUT_GROUP_COLUMNS != 0,
        .offset = (uint64_t)first_group * LAYOUT_GROUP_BYTES + (uint64_t)half_before * LAYOUT_HALF_BYTES,
    };
}

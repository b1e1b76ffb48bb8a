/* Where the bytes of an expert's slice are (kernels/README.md, section 7). Pure arithmetic. */
#ifndef FP9_KERNELS_LAYOUT_H
#define FP9_KERNELS_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"

#define LAYOUT_VERSION 1

#define LAYOUT_BLOCK 128 /* rows and columns of one weight_scale_inv block */
#define LAYOUT_TILE_ROWS 16
#define LAYOUT_PANEL_ROWS 32
#define LAYOUT_GROUP_COLUMNS 16
#define LAYOUT_GROUP_BYTES 576
#define LAYOUT_UNIT 8         /* slices begin and end at multiples of it */
#define LAYOUT_HALF_BYTES 288 /* a half group of a panel, a group of a half panel */
#define LAYOUT_ALIGN 64

/* Limits on what may be asked for; every product of them fits in 64 bits. */
#define LAYOUT_HIDDEN_MAX 65536
#define LAYOUT_NEURONS_MAX 262144

/* One matrix of a slice as it lies in memory. */
struct layout_matrix {
    uint32_t columns;        /* K, real columns */
    uint32_t columns_padded; /* as laid out: a multiple of 8 */
    uint32_t column_origin;  /* the slice's first column within the checkpoint's 128-blocks: 0 .. 127 */
    uint32_t row_origin;     /* the slice's first row within a tile: 8 when gate and up begin with a half panel, else 0 */
    uint32_t segments;       /* per row */
    uint32_t groups;         /* whole ones per panel: sum over segments of floor(width / 16) */
    bool first_half;         /* segment 0 ends in a half group, and is not the last */
    bool last_half;          /* the last segment ends in a half group */
    uint32_t panels;         /* half panels counted */
    bool head_half;          /* panel 0 is a half panel */
    bool tail_half;          /* the last panel is one (never both of a single panel) */
    uint64_t scales_offset;  /* bytes from the expert's start */
    uint64_t panels_offset;  /* bytes from the expert's start */
    uint64_t panel_bytes;    /* groups * 576 + half groups * 288; a half panel has half of it */
};

/* One expert's (or dense MLP's) slice on one rank. */
struct layout_mlp {
    uint32_t hidden;              /* H: columns of gate and up, rows of down */
    uint32_t begin;               /* the slice's first neuron in the whole intermediate dimension; multiple of 8 */
    uint32_t neurons;             /* real neurons held here (padding of a short last unit not counted) */
    uint32_t neurons_padded;      /* multiple_of padding counted: multiple of 8 */
    uint32_t neuron_panels;       /* the first panels of gate_up, those that hold a real neuron; the others are never read */
    struct layout_matrix gate_up; /* rows cut at the checkpoint's multiples of 16; columns = hidden, origin 0 */
    struct layout_matrix down;    /* panels = ceil(hidden / 32); columns = neurons, origin = begin % 128; padded to the end of the
                                   * last panel of gate_up that holds a real neuron */
    uint64_t expert_bytes;        /* multiple of 64 */
};

/* neurons_padded is neurons rounded up to `pad_to` (the plan's multiple_of, a multiple of 8).
 * -EINVAL BAD_SHAPE with the numbers when a limit is passed, neurons or hidden is 0, begin or pad_to is no multiple of 8. */
int layout_mlp_init(struct layout_mlp *ret_layout, uint32_t hidden, uint32_t begin, uint32_t neurons, uint32_t pad_to, struct err *err);

/* Scales of tiles that hold a real row, one per tile and segment; what a cold load sends of them, too. */
uint64_t layout_scale_bytes(const struct layout_mlp *layout);

/* The expert's bytes that hold a real weight's magnitude or sign (9 bits each, rounded up over all) or a scale that is used; the other
 * bytes are padding. Divided by the parameters, 3 * hidden * neurons, expert_bytes are the bytes per parameter, padding included. */
uint64_t layout_real_bytes(const struct layout_mlp *layout);
double layout_bytes_per_param(const struct layout_mlp *layout);

/* Segment i of a matrix: its first column (of the slice) and its length in real columns, then where it lies in a panel: `groups` whole
 * groups, after them a half group if there is one. i < segments. */
struct layout_segment {
    uint32_t first;
    uint32_t length;
    uint32_t first_group; /* whole groups before it in the panel */
    uint32_t groups;
    bool half;
    uint64_t offset; /* bytes from the panel's first; in a half panel half of it */
};
struct layout_segment layout_segment(const struct layout_matrix *matrix, uint32_t i);

/* Floats in the buffer of a vector that a gemv over this matrix reads: columns_padded, rounded up to whole groups. */
static inline uint32_t layout_vector_floats(const struct layout_matrix *matrix)
{
    return (matrix->columns_padded + LAYOUT_GROUP_COLUMNS - 1) / LAYOUT_GROUP_COLUMNS * LAYOUT_GROUP_COLUMNS;
}

/* ---- tiles of rows: all that have one scale per segment. Gate, up: tile i is in panel i; down: in panel i / 2. ---- */

static inline uint32_t layout_tile(const struct layout_matrix *matrix, uint32_t row)
{
    return (matrix->row_origin + row) / LAYOUT_TILE_ROWS;
}

/* The first row of a tile. Of gate and up also the first neuron of a panel, whose h stands there. */
static inline uint32_t layout_tile_row(const struct layout_matrix *matrix, uint32_t tile)
{
    return tile == 0 ? 0 : tile * LAYOUT_TILE_ROWS - matrix->row_origin;
}

static inline bool layout_tile_begins(const struct layout_matrix *matrix, uint32_t row)
{
    return layout_tile_row(matrix, layout_tile(matrix, row)) == row;
}

/* How many tiles rows [first, first + rows) lie in; rows > 0. */
static inline uint32_t layout_tiles(const struct layout_matrix *matrix, uint32_t first, uint32_t rows)
{
    return layout_tile(matrix, first + rows - 1) - layout_tile(matrix, first) + 1;
}

/* ---- panels ---- */

static inline bool layout_panel_is_half(const struct layout_matrix *matrix, uint32_t panel)
{
    return (matrix->head_half && panel == 0) || (matrix->tail_half && panel + 1 == matrix->panels);
}

/* Bytes from panels_offset to a panel (up to and with the end: panel <= panels). */
static inline uint64_t layout_panel_offset(const struct layout_matrix *matrix, uint32_t panel)
{
    uint32_t halves = 2 * panel - (matrix->head_half && panel > 0) - (matrix->tail_half && panel == matrix->panels);

    return halves * (matrix->panel_bytes / 2);
}

#endif

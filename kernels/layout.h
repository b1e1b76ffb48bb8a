/* Where the bytes of an expert's slice are (kernels/README.md, section 7). Pure arithmetic. */
#ifndef FP9_KERNELS_LAYOUT_H
#define FP9_KERNELS_LAYOUT_H

#include <stdint.h>

#include "proto/base/err.h"

#define LAYOUT_VERSION 1

#define LAYOUT_BLOCK 128      /* rows and columns of one weight_scale_inv block */
#define LAYOUT_TILE_ROWS 16
#define LAYOUT_PANEL_ROWS 32
#define LAYOUT_GROUP_COLUMNS 16
#define LAYOUT_GROUP_BYTES 576
#define LAYOUT_ALIGN 64

/* Limits on what may be asked for; every product of them fits in 64 bits. */
#define LAYOUT_HIDDEN_MAX 65536
#define LAYOUT_NEURONS_MAX 262144

/* One matrix of a slice as it lies in memory. */
struct layout_matrix {
    uint32_t columns;        /* K, real columns */
    uint32_t column_origin;  /* the slice's first column within the checkpoint's 128-blocks: 0 .. 127 */
    uint32_t segments;       /* per row */
    uint32_t groups;         /* per panel: sum over segments of ceil(length / 16) */
    uint32_t panels;
    uint64_t scales_offset;  /* bytes from the expert's start */
    uint64_t panels_offset;  /* bytes from the expert's start */
    uint64_t panel_bytes;    /* groups * 576 */
};

/* One expert's (or dense MLP's) slice on one rank. */
struct layout_mlp {
    uint32_t hidden;         /* H: columns of gate and up, rows of down */
    uint32_t begin;          /* the slice's first neuron in the whole intermediate dimension; multiple of 8 */
    uint32_t neurons;        /* real neurons held here (padding of a short last unit not counted) */
    uint32_t neurons_padded; /* multiple_of padding and 16-row tiles counted: multiple of 16 */
    struct layout_matrix gate_up; /* panels = neurons_padded / 16; columns = hidden, origin 0 */
    struct layout_matrix down;    /* panels = ceil(hidden / 32); columns = neurons, origin = begin % 128 */
    uint64_t expert_bytes;        /* multiple of 64 */
};

/* neurons_padded is neurons rounded up to `pad_to` (the plan's multiple_of, a multiple of 16).
 * -EINVAL BAD_SHAPE with the numbers when a limit is passed, neurons or hidden is 0, begin is no multiple of 16. */
int layout_mlp_init(struct layout_mlp *ret_layout, uint32_t hidden, uint32_t begin, uint32_t neurons, uint32_t pad_to,
                    struct err *err);

/* Segment i of a matrix: its first column (of the slice) and its length in columns. i < segments. */
struct layout_segment {
    uint32_t first;
    uint32_t length;
    uint32_t first_group; /* within the panel */
};
struct layout_segment layout_segment(const struct layout_matrix *matrix, uint32_t i);

/* Floats in the padded vector that a gemv over this matrix reads: 16 per group. */
static inline uint32_t layout_vector_floats(const struct layout_matrix *matrix)
{
    return matrix->groups * LAYOUT_GROUP_COLUMNS;
}

#endif

/* PURE. How a rank's slice is cut out of the checkpoint's matrices. */
#ifndef FP9_HEAD_LOAD_SLICE_H
#define FP9_HEAD_LOAD_SLICE_H

#include "daemon/model/checkpoint.h"
#include "daemon/model/plan.h"

/* Scales of rows [first_row, first_row + rows) of a slice: [tile][segment], as kernels_rows wants them. Returns their count. */
uint32_t load_slice_scales(const struct checkpoint_matrix *matrix, const struct layout_mlp *layout, enum kernels_matrix which,
                           uint32_t first_row, uint32_t rows, float *ret_scales);

/* Rows of a matrix that make about `bytes`, whole tiles. */
uint32_t load_slice_rows_at_once(const struct checkpoint_matrix *matrix, size_t bytes);

/* How many rows of a slice of gate or up to take from `row` on, at most `most` (whole tiles): up to where a tile begins, as tiles are cut
 * at the checkpoint's multiples of 16 wherever the slice begins. */
uint32_t load_slice_next_rows(uint32_t begin, uint32_t neurons, uint32_t row, uint32_t most);

#endif

/* PURE. Which rows of a slot have arrived, each exactly once: a bit a tile. Experts are known by their index in the slot, the shared one
 * stands behind the routed ones. */
#ifndef FP9_DUCK_TALLY_H
#define FP9_DUCK_TALLY_H

#include "daemon/duck/geometry.h"

struct tally {
    uint32_t experts;      /* routed */
    uint32_t expert_tiles; /* of one routed expert: 16-row tiles of gate, up and down */
    uint32_t shared_tiles;
    uint64_t tiles_left; /* not arrived yet, all experts */
    uint64_t *arrived;   /* owned; experts in order */
    uint32_t *left;      /* owned; [experts + 1], tiles of each that have not arrived */
};

/* Rows of a matrix of one expert, from where a tile begins to where one ends. */
struct tally_rows {
    const struct layout_mlp *layout; /* the expert's */
    uint32_t index;
    enum kernels_matrix matrix;
    uint32_t first_row, rows;
};

int tally_init(struct tally *tally, const struct geometry *geometry, struct err *err);
void tally_release(struct tally *tally); /* zero-initialised is fine */

/* True when some of them were there already; the first of these. */
bool tally_find(const struct tally *tally, const struct tally_rows *rows, uint32_t *ret_row);
/* They arrive. *ret_begin: as the first rows of their expert, *ret_end: as the last. */
void tally_take(struct tally *tally, const struct tally_rows *rows, bool *ret_begin, bool *ret_end);

/* While tiles_left > 0: the first row that has not arrived. */
struct tally_missing {
    uint32_t index;
    enum kernels_matrix matrix;
    uint32_t row;
};
struct tally_missing tally_first_missing(const struct tally *tally, const struct geometry *geometry);

#endif

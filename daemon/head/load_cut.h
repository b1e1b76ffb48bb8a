/* Rows of a matrix that were read, cut for the ranks that miss them and framed; or told of, where a duck sees the stage that they were read
 * into. Bulk worker. */
#ifndef FP9_HEAD_LOAD_CUT_H
#define FP9_HEAD_LOAD_CUT_H

#include "daemon/head/load_parcels.h"
#include "daemon/model/checkpoint.h"
#include "daemon/model/plan.h"

/* A rank's missing slot while it is being sent. */
struct load_target {
    uint32_t rank, duck;
    uint64_t request;
    bool staged;           /* its duck is shown rows where they were read to */
    uint32_t expert_first; /* of those it holds */
    struct layout_mlp layout;
    bool has_shared;
    struct layout_mlp shared;
};
/* expert: a number, or ARCH_EXPERT_SHARED, ARCH_EXPERT_DENSE. */
const struct layout_mlp *load_target_layout(const struct load_target *target, int expert);

/* Rows [first, first + rows) of a matrix, in the piece. */
struct load_rows {
    const struct checkpoint_matrix *matrix;
    int expert;
    enum kernels_matrix which;
    struct load_piece *piece;
    uint32_t first, rows;
};

struct load_cutter {
    struct load_parcels *parcels; /* borrowed */
    float *scales;                /* owned; room for those of the most rows that are cut at once */
    const uint8_t *stage;         /* of targets that are staged: where it begins */
    uint64_t ticket;              /* of the last rows told of */
};

/* What of the rows is the target's, in as many frames as it takes; nothing is fine. A frame may outlive the call: of a staged target it is
 * lent the piece until the duck has taken its rows. */
int load_cut_send(struct load_cutter *cutter, const struct load_target *target, const struct load_rows *rows, struct err *err);

#endif

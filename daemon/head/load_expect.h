/* What the slots of a layer should hold, worked out here from the checkpoint: for `cache verify --full`. Packs each expert of each rank as
 * a duck does and checksums it; nothing is sent. Bulk worker. */
#ifndef FP9_HEAD_LOAD_EXPECT_H
#define FP9_HEAD_LOAD_EXPECT_H

#include "daemon/model/checkpoint.h"
#include "daemon/model/plan.h"

struct load_expect {
    const struct arch *arch; /* borrowed, all */
    const struct plan *plan;
    struct checkpoint *checkpoint;
    const _Atomic bool *cancelled;
    _Atomic uint64_t *read_bytes; /* counts up */
};

/* sums[plan->tp]: the checksum of each rank's slot. Takes memory for one expert of one rank and for one matrix (LOAD_EXPECT_MATRIX_MAX at
 * most, larger ones are read in pieces). */
#define LOAD_EXPECT_MATRIX_MAX (64u * 1024 * 1024)
int load_expect_layer(const struct load_expect *expect, uint32_t layer, uint64_t *ret_sums, struct err *err);

#endif

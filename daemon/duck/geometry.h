/* PURE. From the words of PREPARE_BEGIN to layouts, sizes and the kernels' view of a slot. */
#ifndef FP9_DUCK_GEOMETRY_H
#define FP9_DUCK_GEOMETRY_H

#include "kernels/kernels.h"
#include "proto/wire/msg_prepare.h"

struct geometry {
    enum msg_slot_kind kind;
    uint32_t experts;                     /* routed, held here; 1 for dense */
    uint32_t expert_first, experts_total; /* the layer's id of the first of them, and how many the layer has */
    bool has_shared;
    struct layout_mlp layout;
    struct layout_mlp shared; /* valid when has_shared */
    uint64_t shared_offset;   /* bytes from the slot's start: the shared expert stands after the routed ones */
    uint64_t bytes;           /* of the slot, a multiple of 64 */
};

/* -EINVAL BAD_SHAPE or BAD_REQUEST with the numbers when the words make no slot; sizes beyond 63 bits are refused. */
int geometry_init(const struct msg_prepare_begin *words, struct geometry *ret_geometry, struct err *err);

/* Ids of the layer's experts, each -1 or below experts_total, become those of the experts held here, and -1 for the others. */
void geometry_own_ids(const struct geometry *geometry, int32_t *ids, size_t count);

/* `geometry` and `data` (geometry->bytes, 64-byte aligned) must outlive the result. NULL data: for questions of size only. */
struct kernels_layer geometry_layer(const struct geometry *geometry, const uint8_t *data);

/* Rows of a matrix of one expert: neurons for gate and up, hidden for down. */
uint32_t geometry_rows(const struct layout_mlp *layout, enum kernels_matrix matrix);
const struct layout_matrix *geometry_matrix(const struct layout_mlp *layout, enum kernels_matrix matrix);

#endif

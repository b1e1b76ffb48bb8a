/* PREPARE_BEGIN, PREPARE_DATA, PREPARE_TAKEN, PREPARE_SOURCES, PREPARE_END, PREPARE_ABORT, SLOT_DONE, DROP, DROPPED, SLOTS_GET, SLOTS.
 * What is done to finished slots is in msg_cache.h. */
#ifndef FP9_WIRE_MSG_PREPARE_H
#define FP9_WIRE_MSG_PREPARE_H

#include "proto/base/digest.h"
#include "proto/wire/frame.h"

enum msg_slot_kind {
    MSG_SLOT_DENSE = 0,
    MSG_SLOT_MOE = 1,
};

enum msg_slot_state {
    MSG_SLOT_FILLING = 1,
    MSG_SLOT_FINISHED = 2,
};

/* One slice, the arguments of layout_mlp_init. */
struct msg_slice {
    uint32_t hidden;
    uint32_t begin;
    uint32_t neurons;
    uint32_t pad_to;
};

/* One layer on one rank: everything the duck must know to lay it out and to run it. */
struct msg_prepare_begin {
    uint8_t model_key[DIGEST_SIZE];
    uint32_t layout_version;
    uint32_t tp, rank, multiple_of;
    uint32_t layer;
    enum msg_slot_kind kind;
    uint32_t experts;       /* routed experts held here; 1 for dense */
    uint32_t expert_first;  /* the layer's id of the first of them; their rows are sent by numbers from 0 on all the same */
    uint32_t experts_total; /* of the layer; more than those held here only to a duck with WIRE_FEATURE_EXPERTS; 0: as many */
    struct msg_slice slice; /* of the dense MLP or of each routed expert */
    bool has_shared;
    struct msg_slice shared;      /* valid when has_shared */
    uint8_t sources[DIGEST_SIZE]; /* digest over the source tensors; zeros while unknown */
};

#define MSG_EXPERT_SHARED UINT32_C(0xffffffff)

struct msg_prepare_data {
    uint32_t expert; /* of those held here, from 0 on; 0 for dense; MSG_EXPERT_SHARED */
    uint8_t matrix;  /* enum kernels_matrix */
    uint32_t first_row, rows, columns;
    uint32_t scale_count;
    const uint8_t *scales; /* scale_count little-endian binary32, unaligned view; order as kernels_rows.scales */
    const uint8_t *codes;  /* rows * columns bytes, view */
};

struct msg_slot {
    uint8_t model_key[DIGEST_SIZE];
    uint32_t tp, rank, multiple_of;
    uint32_t layer;
    enum msg_slot_kind kind;
    enum msg_slot_state state;
    uint64_t bytes;
    uint64_t checksum; /* XXH3-64 of the slot's bytes; 0 while filling */
    uint8_t sources[DIGEST_SIZE];
};

struct msg_drop {
    bool all; /* else only model_key */
    uint8_t model_key[DIGEST_SIZE];
};

int msg_prepare_begin_encode(struct buf *buf, uint64_t request, const struct msg_prepare_begin *msg);
int msg_prepare_begin_decode(const struct frame *frame, struct msg_prepare_begin *ret_msg, struct err *err);
/* Appends header, fields and scales (host floats) and reserves rows * columns bytes for the codes, which the caller fills: *ret_codes. */
int msg_prepare_data_encode(struct buf *buf, uint64_t request, const struct msg_prepare_data *msg, const float *scales,
                            uint8_t **ret_codes);
int msg_prepare_data_decode(const struct frame *frame, struct msg_prepare_data *ret_msg, struct err *err);
/* PREPARE_END, PREPARE_ABORT, SLOTS_GET have no payload. */
int msg_empty_encode(struct buf *buf, enum wire_type type, uint64_t request);
int msg_empty_decode(const struct frame *frame, struct err *err); /* refuses left-over bytes */
int msg_prepare_sources_encode(struct buf *buf, uint64_t request, const uint8_t sources[DIGEST_SIZE]);
int msg_prepare_sources_decode(const struct frame *frame, uint8_t ret_sources[DIGEST_SIZE], struct err *err);
/* bytes: of PREPARE_DATA frames, headers counted, that take no room any more since the last PREPARE_TAKEN. */
int msg_prepare_taken_encode(struct buf *buf, uint64_t request, uint64_t bytes);
int msg_prepare_taken_decode(const struct frame *frame, uint64_t *ret_bytes, struct err *err);
int msg_slot_done_encode(struct buf *buf, uint64_t request, const struct msg_slot *msg);
int msg_slot_done_decode(const struct frame *frame, struct msg_slot *ret_msg, struct err *err);
int msg_drop_encode(struct buf *buf, uint64_t request, const struct msg_drop *msg);
int msg_drop_decode(const struct frame *frame, struct msg_drop *ret_msg, struct err *err);
int msg_dropped_encode(struct buf *buf, uint64_t request, uint64_t freed_bytes);
int msg_dropped_decode(const struct frame *frame, uint64_t *ret_freed_bytes, struct err *err);
int msg_slots_encode(struct buf *buf, uint64_t request, const struct msg_slot *slots, size_t count);
/* *ret_slots is malloced; count <= WIRE_SLOTS_MAX. */
int msg_slots_decode(const struct frame *frame, struct msg_slot **ret_slots, size_t *ret_count, struct err *err);

#endif

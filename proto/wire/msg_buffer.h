/* STAMP, REVOKE, REVOKED, ROOM: what a weight buffer knows beside its slots. Both ends have WIRE_FEATURE_BUFFER.
 *
 * Stamps are fp9d's time, nanoseconds of the wall clock made to grow: never less than any that a duck has told of. A slot carries the stamp
 * of the load that prepared it or put it under its key; a revoked key kills slots of lesser stamps only, so that what was prepared again
 * later stays, whatever order ducks come back in. */
#ifndef FP9_WIRE_MSG_BUFFER_H
#define FP9_WIRE_MSG_BUFFER_H

#include "proto/base/digest.h"
#include "proto/wire/frame.h"

#define MSG_REVOKED_MAX 64 /* of one buffer; then the oldest is forgotten */
#define MSG_ROOM_MAX 8000  /* free ranges in a ROOM; more than a table of 4096 slots can leave */

struct msg_revoked {
    uint64_t stamp;
    bool all; /* else only model_key */
    uint8_t model_key[DIGEST_SIZE];
    char boot_id[WIRE_NAME_MAX]; /* of the only weight buffer it is about; "" every one's */
};

int msg_stamp_encode(struct buf *buf, uint64_t request, uint64_t stamp);
int msg_stamp_decode(const struct frame *frame, uint64_t *ret_stamp, struct err *err);
int msg_revoke_encode(struct buf *buf, uint64_t request, const struct msg_revoked *msg);
int msg_revoke_decode(const struct frame *frame, struct msg_revoked *ret_msg, struct err *err);
/* stamp: the greatest that the buffer knows. */
int msg_revoked_encode(struct buf *buf, uint64_t request, uint64_t stamp, const struct msg_revoked *list, size_t count);
int msg_revoked_decode(const struct frame *frame, uint64_t *ret_stamp, struct msg_revoked ret_list[MSG_REVOKED_MAX], size_t *ret_count,
                       struct err *err);
/* Bytes of the free ranges, in the order in which the duck tries them. */
int msg_room_encode(struct buf *buf, uint64_t request, const uint64_t *ranges, size_t count);
/* *ret_ranges is malloced; NULL when there are none. */
int msg_room_decode(const struct frame *frame, uint64_t **ret_ranges, size_t *ret_count, struct err *err);

#endif

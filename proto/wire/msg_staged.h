/* PREPARE_STAGED, STAGED_TAKEN: rows that a local duck reads where fp9d has read them to, in the stage, which is one memory of both.
 *
 * The head writes a part of the stage, tells ducks of the rows in it, and leaves it as it is until each of them has said the ticket of each
 * frame, or its process has ended: a link that is closed is not enough, since frames that came before may still be read. */
#ifndef FP9_WIRE_MSG_STAGED_H
#define FP9_WIRE_MSG_STAGED_H

#include "proto/wire/msg_prepare.h"

struct msg_prepare_staged {
    struct msg_prepare_data rows; /* codes: NULL, they are in the stage */
    uint64_t ticket;              /* the head's */
    uint64_t offset;              /* of the first row's first column, in bytes */
    uint32_t stride;              /* bytes from a row to the next, `columns` or more */
};

int msg_prepare_staged_encode(struct buf *buf, uint64_t request, const struct msg_prepare_staged *msg, const float *scales);
/* Refuses rows that do not lie within a stage of `stage_bytes`. */
int msg_prepare_staged_decode(const struct frame *frame, uint64_t stage_bytes, struct msg_prepare_staged *ret_msg, struct err *err);
int msg_staged_taken_encode(struct buf *buf, uint64_t request, uint64_t ticket);
int msg_staged_taken_decode(const struct frame *frame, uint64_t *ret_ticket, struct err *err);

#endif

/* What a link is to carry, in two queues: a bulk frame (prepare) is only begun when no step frame waits, so that loading never delays a
 * step by more than one bulk frame. At most WIRE_PREPARE_WINDOW bytes of rows are under way that the duck has not packed: so it reads its
 * link at once, whatever comes, and a step never waits behind rows there. Loop thread only. */
#ifndef FP9_HEAD_OUTBOX_H
#define FP9_HEAD_OUTBOX_H

#include <stdint.h>

#include "daemon/head/outgoing.h"
#include "proto/base/err.h"
#include "proto/wire/transport.h"

/* Zero-initialised is empty. */
struct outbox {
    struct outgoing_queue step, bulk;
    struct outgoing *now; /* being written; from one of the queues */
    size_t now_sent;
    struct outgoing *held; /* of staged rows, written: the duck may be reading them */
    uint64_t unpacked;     /* bytes of rows sent that the duck has not told of */
};

/* The link is closed and what it did not carry dropped; what is held stays. */
void outbox_reset(struct outbox *outbox);
/* Nothing can be written any more, but the duck may still tell what it has packed. */
void outbox_drop(struct outbox *outbox);
/* The duck reads no staged rows any more: its process has ended. */
void outbox_let_go(struct outbox *outbox);
/* After the other two: frees what is left. */
void outbox_release(struct outbox *outbox);

/* Takes a reference of its own. */
void outbox_put(struct outbox *outbox, struct outgoing *out, bool bulk);
/* Writes until all is out or the socket is full, or rows have had their turn: steps of other ducks wait for this thread. windowed: the duck
 * tells what it has packed. *ret_more: to be called again when the link takes more. Negative: the link's errno. */
int outbox_flush(struct outbox *outbox, struct transport *transport, bool windowed, bool *ret_more);
/* The duck has packed so many bytes of rows: there may be more to write. */
int outbox_packed(struct outbox *outbox, uint64_t bytes, struct err *err);
/* The duck reads the staged rows of this ticket no more. */
int outbox_staged_taken(struct outbox *outbox, uint64_t ticket, struct err *err);

#endif

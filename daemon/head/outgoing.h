/* Encoded frames on their way out, and queues of them. Loop thread only. */
#ifndef FP9_HEAD_OUTGOING_H
#define FP9_HEAD_OUTGOING_H

#include "daemon/head/loop.h"
#include "proto/base/buf.h"
#include "proto/wire/frame.h"

/* Encoded frames shared by several queues (a step goes to all ranks from one copy). */
struct outgoing {
    unsigned refs;
    struct buf buf;
    loop_fn sent; /* called with `user` when the last byte is written or given up, by whoever wrote it; may be NULL */
    void *user;
    /* Of PREPARE_STAGED: `sent` comes when the duck has said the ticket, or its process has ended. It goes to one peer only. */
    bool staged;
    uint64_t ticket;
    struct outgoing *next; /* the outbox's */
};

struct outgoing *outgoing_new(void); /* one reference; aborts when out of memory */
void outgoing_unref(struct outgoing *out);

/* Oldest first. Zero-initialised is empty; `items` is freed by the owner. */
struct outgoing_queue {
    struct outgoing **items; /* ring */
    size_t first, count, capacity;
};
void outgoing_push(struct outgoing_queue *queue, struct outgoing *out); /* takes the reference; aborts when out of memory */
struct outgoing *outgoing_pop(struct outgoing_queue *queue);            /* NULL: empty */
void outgoing_drop(struct outgoing_queue *queue);                       /* all of them */
/* Drops the one that begins with such a frame; the others keep their order. False: there is none. */
bool outgoing_withdraw(struct outgoing_queue *queue, enum wire_type type, uint64_t request);

#endif

/* The client's side of a step ring; proto/control/ring.h has its layout and the order of its words. */
#ifndef FP9_CLIENT_RING_H
#define FP9_CLIENT_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/spin.h"
#include "proto/client/fp9.h"
#include "proto/control/ring.h"

struct fp9_conn;

struct ring_client {
    struct ring *memory; /* mapped with the session's arena */
    int doorbell;        /* owned */
    uint32_t submitted, cancels;
    uint32_t done[RING_SLOTS];  /* answers that were seen */
    uint64_t calls[RING_SLOTS]; /* id of the call whose step is in the slot; 0: free */
    struct spin spin;
};

/* Takes doorbell. */
void ring_init(struct ring_client *ring, struct ring *memory, int doorbell, uint32_t spin_us);
void ring_release(struct ring_client *ring);
/* RING_SLOTS: none is free. */
uint32_t ring_free_slot(const struct ring_client *ring);
/* The step of call `id` is handed over in a free slot. `notified`: its answer is to be told over the connection. */
void ring_submit(struct ring_client *ring, uint32_t slot, uint64_t id, const struct ring_call *call, bool notified);
/* The step in the slot is not wanted any more. */
void ring_cancel(struct ring_client *ring, uint32_t slot);
/* Calls of the connection's sessions that were answered through their rings are done. True: there were some. */
bool ring_collect(struct fp9_conn *conn);
/* Waits until the call in the slot is answered, the ring has ended or the connection is broken. */
void ring_until(struct fp9_conn *conn, struct ring_client *ring, uint32_t slot);
/* Of a slot that was answered: 0 and the timing (but job_time_us), or the error. The slot is free then. */
int ring_take(struct ring_client *ring, uint32_t slot, struct fp9_timing *ret_timing, struct err *err);
/* A poll() of the connection from now on wakes for every answer while steps are in flight. False: one is there already. */
bool ring_arm(struct fp9_conn *conn);

#endif

/* Step rings: requests of clients that call once a layer, taken from memory they share with fp9d (proto/control/ring.h has the layout and
 * the order of its words).
 *
 * A poller of the loop looks whether steps were handed over, one step a look, the rings in turn. While steps come in quick succession the
 * loop spins for the next; then it sleeps, and the client rings the ring's doorbell. That is an eventfd whose every writing wakes the loop
 * and which nobody reads: a client may do to it what it likes. Loop thread only. */
#ifndef FP9_HEAD_RING_H
#define FP9_HEAD_RING_H

#include "daemon/head/session.h"

struct ring_host;

/* Once, with the head's loop. */
int ring_begin(struct head *head, struct err *err);
/* For a session whose arena is mapped with ring_bytes() behind it. */
int ring_new(struct head *head, struct session *session, struct ring_host **ret_ring, struct err *err);
/* Steps in flight get `why`, and so does who waits for it; NULL: nobody looks at it any more. The memory stays the session's. */
void ring_free(struct head *head, struct ring_host *ring, const struct err *why);

uint64_t ring_bytes(void);                       /* whole pages */
int ring_doorbell(const struct ring_host *ring); /* for the client; stays the ring's */

/* The step that came through the ring and was in flight in a lane of the session is over: done, or with its err. */
void ring_step_done(struct head *head, struct session *session, uint32_t lane, const struct core_step *step);
void ring_step_failed(struct head *head, struct session *session, uint32_t lane, const struct err *err);

#endif

/* The thread that converts weights: does fill's work in the order it was posted, on CPU time that kernels and the link leave (SCHED_IDLE),
 * so that neither a step nor a PONG is delayed by a load. One owner thread.
 */
#ifndef FP9_DUCK_PACKER_H
#define FP9_DUCK_PACKER_H

#include "daemon/duck/fill.h"

struct packer;

int packer_new(struct packer **ret_packer, struct err *err);
/* packer_stop first; nothing may be left. */
void packer_free(struct packer *packer);
CLEANUP_DEFINE(struct packer *, packer_free);
/* Ends the thread after the work at hand. */
void packer_stop(struct packer *packer);

/* Readable when work is done. */
int packer_event_fd(const struct packer *packer);
/* Never blocks; the work is the packer's until packer_take gives it back. */
void packer_post(struct packer *packer, struct fill_work *work);
/* The next work that is done, NULL when there is none (the event is cleared then). */
struct fill_work *packer_take(struct packer *packer);
/* Waits until all that was posted is done. */
void packer_drain(struct packer *packer);
/* After packer_stop: work that was posted, done or not; NULL when none is left. */
struct fill_work *packer_left(struct packer *packer);

#endif

/* Checksums of finished slots, computed again: on a thread of their own that only gets what kernels leave (SCHED_IDLE) and yields between
 * pieces (proto/base/background.h), so that a step is never delayed by it. The owner posts slots, pins them until their result is taken,
 * and keeps the order: results come as they were posted. One owner thread.
 */
#ifndef FP9_DUCK_VERIFY_H
#define FP9_DUCK_VERIFY_H

#include "daemon/duck/wbuf.h"
#include "proto/base/checksum.h"
#include "proto/wire/msg_cache.h"

#define VERIFY_QUEUE_MAX 4096

struct verify;

struct verify_result {
    uint64_t request;
    uint32_t slot;
    struct msg_verify words;
    struct msg_verified found; /* verdict without regard to what happened to the slot meanwhile */
};

int verify_new(struct verify **ret_verify, struct err *err);
/* Ends the thread, after the piece that it is reading. Then verify_left gives the slots that were posted and not taken, one a call. */
void verify_stop(struct verify *verify);
bool verify_left(struct verify *verify, uint32_t *ret_slot);
void verify_free(struct verify *verify);
CLEANUP_DEFINE(struct verify *, verify_free);

int verify_event_fd(const struct verify *verify); /* readable when a result waits */
/* What `sums` points to stays until the result is taken. -EBUSY when VERIFY_QUEUE_MAX wait. */
int verify_post(struct verify *verify, uint64_t request, uint32_t slot, const struct msg_verify *words, const struct wbuf_sums *sums,
                struct err *err);
/* True and the oldest result; false when none waits, and the eventfd is empty then. */
bool verify_take(struct verify *verify, struct verify_result *ret_result);

/* The computation itself, with a checksum that nobody else uses meanwhile. *stop is looked at between pieces, and the thread yields there;
 * true: the result means nothing. */
void verify_sums(struct checksum *sum, const struct wbuf_sums *sums, const struct msg_verify *words, const _Atomic bool *stop,
                 struct msg_verified *ret_found);

#endif

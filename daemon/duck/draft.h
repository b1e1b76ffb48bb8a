/* What the packing thread knows of a slot that is being filled, from one piece of work to the next.
 *
 * An expert's rows come one after another. They are packed into a draft, which stays in the processor's cache; when the expert is whole it
 * is summed there and written to the slot. So the slot's memory, which the system would clear first, is touched once. Experts too large for
 * a draft, those begun while it holds another, and slots whose pages are there already are packed in place and summed while they are warm.
 *
 * Owner: the thread of the fill. It makes drafts, hands them out with work and lets go of them; the packing thread has the rest. */
#ifndef FP9_DUCK_DRAFT_H
#define FP9_DUCK_DRAFT_H

#include "daemon/duck/wbuf.h"

#define DRAFT_BYTES_MAX (UINT64_C(8) << 20) /* of an expert; some caches hold as much */

struct fill_work;

struct draft {
    uint32_t users; /* the owner's: the fill, and work that is out */
    struct wbuf_pages pages;
    struct wbuf_sums sums;
    uint8_t *memory; /* owned */
    uint64_t room;   /* of it; 0: everything is packed in place */
    /* the packing thread's */
    uint32_t summed;        /* parts, from the first on */
    struct checksum *whole; /* owned; of them. NULL: none yet */
};

/* For a slot that was just reserved. memory: of one before, taken, or NULL. NULL: out of memory. */
struct draft *draft_new(struct wbuf *wbuf, uint32_t slot, uint8_t *memory, uint64_t room);
/* A use ends. With the last one it is freed but for its memory, which comes back, or NULL. */
uint8_t *draft_unref(struct draft *draft, uint64_t *ret_room);

/* Packing thread: the work's rows, its expert begun before and ended after them where the work says so. */
int draft_rows(struct fill_work *work);
/* The slot's checksum, when all rows are in it. */
int draft_sum(struct draft *draft, uint64_t *ret_checksum, struct err *err);

#endif

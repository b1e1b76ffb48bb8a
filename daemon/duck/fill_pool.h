/* Memory that fills use again and again, so that it need not be taken from the system for every frame: of work with rows, and of drafts. */
#ifndef FP9_DUCK_FILL_POOL_H
#define FP9_DUCK_FILL_POOL_H

#include "daemon/duck/fill.h"

/* Zero-initialised is empty. */
struct fill_pool {
    struct fill_work *idle; /* owned */
    size_t idle_bytes;
    uint8_t *draft_memory; /* owned; of the last draft, for the next */
    uint64_t draft_room;
};

/* What is out is nobody's business here; the pool may be used on. */
void fill_pool_release(struct fill_pool *pool);

/* Work with memory of `room` bytes at least; nothing else of it is set. NULL: out of memory. */
struct fill_work *fill_pool_take(struct fill_pool *pool, size_t room);
void fill_pool_give(struct fill_pool *pool, struct fill_work *work);

/* As draft_new and draft_unref; NULL is fine for the second. */
struct draft *fill_pool_draft(struct fill_pool *pool, struct wbuf *wbuf, uint32_t slot);
void fill_pool_undraft(struct fill_pool *pool, struct draft *draft);

#endif

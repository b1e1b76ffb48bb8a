/* What wbuf.c and wbuf_range.c share: the buffer as this process knows it. */
#ifndef FP9_DUCK_WBUF_STATE_H
#define FP9_DUCK_WBUF_STATE_H

#include "daemon/duck/wbuf_format.h"
#include "daemon/duck/wbuf_huge.h"
#include "daemon/duck/wbuf_stale.h"
#include "proto/base/size.h"

struct wbuf_aux {
    struct geometry geometry; /* valid while the slot is in use */
    uint32_t pins;
    /* [offset, offset + bytes) is in use, the parts' checksums with it: the header may be written over by anybody who has the memfd. */
    bool held;
    bool doomed;   /* dropped while pinned */
    bool finished; /* nobody writes into it any more */
    bool zero;     /* it has no pages yet: they will be zero */
    uint64_t offset, bytes;
    struct wbuf_slot seen; /* the description as it was found sound last: as long as it is that, it is sound */
};

struct wbuf {
    int fd;       /* owned */
    uint8_t *map; /* owned, `size` bytes, shared */
    uint64_t size;
    struct wbuf_header *header; /* = map */
    struct wbuf_aux aux[WBUF_SLOTS_MAX];
    uint32_t order[WBUF_SLOTS_MAX]; /* slots that hold a range, by offset */
    uint32_t order_count;
    uint32_t found;   /* index in `order` of what was looked for last */
    uint64_t stamp;   /* of slots begun or put under another key now */
    uint64_t changes; /* of order */
    bool keep_pages;  /* of dropped slots */
    struct wbuf_stale stale;
    struct wbuf_huge_state huge;
};

static inline uint64_t wbuf_slot_begin(const struct wbuf *wbuf, uint32_t slot)
{
    return wbuf->aux[slot].offset;
}

/* Of the range that it holds: whole pages. */
static inline uint64_t wbuf_slot_pages(const struct wbuf *wbuf, uint32_t slot)
{
    return size_round_up(wbuf->aux[slot].bytes, WBUF_SLOT_ALIGN);
}

static inline uint64_t wbuf_slot_end(const struct wbuf *wbuf, uint32_t slot)
{
    return wbuf_slot_begin(wbuf, slot) + wbuf_slot_pages(wbuf, slot);
}

/* ---- wbuf_range.c ---- */

/* A slot whose description is whole holds its range from now on; or no more. */
void wbuf_range_insert(struct wbuf *wbuf, uint32_t slot);
void wbuf_range_remove(struct wbuf *wbuf, uint32_t slot);
/* The first free range of at least `pages` bytes. */
bool wbuf_range_find(const struct wbuf *wbuf, uint64_t pages, uint64_t *ret_offset, uint64_t *ret_largest);
/* Nobody holds [begin, end) any more: its pages go back, later, in pieces. With it what huge pages took of free ranges beside it. */
void wbuf_range_free(struct wbuf *wbuf, uint64_t begin, uint64_t end);
/* A slot has been written: what huge pages took of ranges beside it that became free meanwhile goes back. */
void wbuf_range_written(struct wbuf *wbuf, uint32_t slot);
/* A range that was free is held now. True when its pages are certain to be zero and not there. */
bool wbuf_range_take(struct wbuf *wbuf, uint32_t slot);

#endif

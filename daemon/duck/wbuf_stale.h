/* PURE. Which ranges of the weight buffer hold pages of slots that are no more: disjoint, by offset, neighbours merged. Private to
 * wbuf.c. */
#ifndef FP9_DUCK_WBUF_STALE_H
#define FP9_DUCK_WBUF_STALE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/duck/wbuf.h"

/* No more are added beyond half of them: what is in use can cut each range once more. */
#define WBUF_STALE_MAX (2 * WBUF_SLOTS_MAX)

struct wbuf_stale {
    struct wbuf_stale_range {
        uint64_t begin, end;
    } ranges[WBUF_STALE_MAX];
    uint32_t count;
    uint64_t bytes;
};

/* A range that is in none of them. False, and nothing, when there are too many already. */
bool wbuf_stale_add(struct wbuf_stale *stale, uint64_t begin, uint64_t end);
/* Takes a range out. True when any of it was in one of them. */
bool wbuf_stale_cut(struct wbuf_stale *stale, uint64_t begin, uint64_t end);
/* Takes out a piece of at most `most` bytes, up to a multiple of that (huge pages are given back whole); false when there is none. */
bool wbuf_stale_take(struct wbuf_stale *stale, uint64_t most, uint64_t *ret_begin, uint64_t *ret_end);

#endif

/* The weight buffer's huge pages: its file's blocks of 2 MiB become one page each while slots are written, when little of a block is there
 * to be moved. Private to wbuf.c and wbuf_pages.c.
 *
 * A block lies within slots wholly or stays small: a huge page over a free range would take memory that nobody asked for. So it is made by
 * the last of the slots that it belongs to. Should one of them be dropped meanwhile, what the block has there goes back when that slot has
 * been written (wbuf_range_written).
 */
#ifndef FP9_DUCK_WBUF_HUGE_H
#define FP9_DUCK_WBUF_HUGE_H

#include <stdatomic.h>

#include "daemon/duck/wbuf.h"

#define WBUF_HUGE_WAIT_MAX 256 /* a refusal costs the kernel time: after many no more than a block in four times this is asked for */
/* A virtual machine's host may have taken back what was free and be slow to give it again: 2 MiB are cleared in 0.1 to 0.4 ms, and come
 * from such a host in 7. Small pages are then taken from what the machine still has, so that a load is several times as fast. */
#define WBUF_HUGE_SLOW_NS UINT64_C(1500000)

struct wbuf_huge_state {
    bool wanted, insisted;
    int told; /* of the reasons why */
    /* written by the threads that take pages */
    _Atomic uint64_t made, refused; /* blocks */
    _Atomic int why;                /* of the last refusal, for wbuf_huge_reason */
    _Atomic uint32_t left_out;      /* blocks, until one is asked for again */
    _Atomic uint32_t wait;          /* blocks left out after each that is asked for: 0 until one was refused or slow */
};

/* Whether they will be asked for; the kernel is asked to give them by itself, too. A refusal goes into `note` (WBUF_NOTE_MAX). */
void wbuf_huge_ask(struct wbuf_huge_state *state, int fd, uint8_t *map, uint64_t size, enum wbuf_huge huge, char *note);

/* Of a slot's pages: their bytes from `begin` on have just been written or taken. Makes those blocks that begin in them. */
void wbuf_huge_pages(const struct wbuf_pages *pages, uint64_t begin, uint64_t bytes);

#endif

/* Ranges of the weight buffer: who holds which, what is free, what of it the system is to have back. */
#include <string.h>

#include "daemon/duck/wbuf_file.h"
#include "daemon/duck/wbuf_state.h"
#include "proto/base/huge.h"

void wbuf_range_insert(struct wbuf *wbuf, uint32_t slot)
{
    struct wbuf_aux *aux = &wbuf->aux[slot];
    aux->held = true;
    aux->finished = wbuf->header->slots[slot].state == MSG_SLOT_FINISHED;
    aux->offset = wbuf->header->slots[slot].offset;
    aux->bytes = wbuf_format_span(&wbuf->header->slots[slot]);
    uint32_t at = wbuf->order_count;
    while (at > 0 && wbuf_slot_begin(wbuf, wbuf->order[at - 1]) > wbuf_slot_begin(wbuf, slot)) {
        wbuf->order[at] = wbuf->order[at - 1];
        at--;
    }
    wbuf->order[at] = slot;
    wbuf->order_count++;
    wbuf->changes++;
}

void wbuf_range_remove(struct wbuf *wbuf, uint32_t slot)
{
    uint32_t at = 0;
    wbuf->aux[slot].held = false;
    while (wbuf->order[at] != slot)
        at++;
    memmove(&wbuf->order[at], &wbuf->order[at + 1], (wbuf->order_count - at - 1) * sizeof wbuf->order[0]);
    wbuf->order_count--;
    wbuf->changes++;
}

bool wbuf_range_find(const struct wbuf *wbuf, uint64_t pages, uint64_t *ret_offset, uint64_t *ret_largest)
{
    uint64_t at = WBUF_DATA_OFFSET, end = wbuf->size - wbuf->size % WBUF_SLOT_ALIGN;
    *ret_largest = 0;
    for (uint32_t i = 0; i <= wbuf->order_count; i++) {
        uint64_t until = i < wbuf->order_count ? wbuf_slot_begin(wbuf, wbuf->order[i]) : end;
        uint64_t range = until > at ? until - at : 0;
        if (range >= pages) {
            *ret_offset = at;
            return true;
        }
        if (range > *ret_largest)
            *ret_largest = range;
        if (i < wbuf->order_count)
            at = until + wbuf_slot_pages(wbuf, wbuf->order[i]);
    }
    return false;
}

static void give_back(struct wbuf *wbuf, uint64_t begin, uint64_t end)
{
    end = end > wbuf->size ? wbuf->size : end;
    if (wbuf->keep_pages || begin >= end)
        return;
    (void)wbuf_stale_cut(&wbuf->stale, begin, end);
    if (!wbuf_stale_add(&wbuf->stale, begin, end))
        (void)wbuf_file_give_back(wbuf->fd, begin, end - begin);
}

/* As far as the blocks of [*begin, *end) reach into free ranges beside it. */
static void widen(const struct wbuf *wbuf, uint64_t *begin, uint64_t *end)
{
    uint64_t low = WBUF_DATA_OFFSET, high = wbuf->size;
    for (uint32_t i = 0; i < wbuf->order_count; i++) {
        uint32_t slot = wbuf->order[i];
        if (wbuf_slot_end(wbuf, slot) <= *begin)
            low = wbuf_slot_end(wbuf, slot);
        else if (wbuf_slot_begin(wbuf, slot) >= *end && wbuf_slot_begin(wbuf, slot) < high)
            high = wbuf_slot_begin(wbuf, slot);
    }
    uint64_t first = *begin / HUGE_PAGE * HUGE_PAGE, last = size_round_up(*end, HUGE_PAGE);
    *begin = first > low ? first : low;
    *end = last < high ? last : high;
}

void wbuf_range_free(struct wbuf *wbuf, uint64_t begin, uint64_t end)
{
    if (wbuf->huge.made)
        widen(wbuf, &begin, &end);
    give_back(wbuf, begin, end);
}

void wbuf_range_written(struct wbuf *wbuf, uint32_t slot)
{
    uint64_t slot_begin = wbuf_slot_begin(wbuf, slot), slot_end = wbuf_slot_end(wbuf, slot), begin = slot_begin, end = slot_end;
    if (!wbuf->huge.made)
        return;
    widen(wbuf, &begin, &end);
    give_back(wbuf, begin, slot_begin);
    give_back(wbuf, slot_end, end);
}

bool wbuf_range_take(struct wbuf *wbuf, uint32_t slot)
{
    uint64_t begin = wbuf_slot_begin(wbuf, slot), end = wbuf_slot_end(wbuf, slot);
    uint64_t first = wbuf->huge.made ? size_round_up(begin, HUGE_PAGE) : begin, last = wbuf->huge.made ? end / HUGE_PAGE * HUGE_PAGE : end;
    /* Pages of a slot before are used again as they are, but for a neighbour's at the ends. Else the range was given back, which may have
     * failed: only now it is certain. */
    bool used = first < last && wbuf_stale_cut(&wbuf->stale, first, last);
    (void)wbuf_stale_cut(&wbuf->stale, begin, end);
    return !wbuf->keep_pages && !used && wbuf_file_give_back(wbuf->fd, begin, end - begin);
}

uint64_t wbuf_stale(const struct wbuf *wbuf)
{
    return wbuf->stale.bytes;
}

void wbuf_reclaim(struct wbuf *wbuf)
{
    uint64_t begin, end;
    if (wbuf_stale_take(&wbuf->stale, WBUF_RECLAIM_BYTES, &begin, &end))
        (void)wbuf_file_give_back(wbuf->fd, begin, end - begin);
}

struct wbuf_pages wbuf_pages(struct wbuf *wbuf, uint32_t i)
{
    const struct wbuf_aux *aux = &wbuf->aux[i];
    uint32_t at = 0;
    while (wbuf->order[at] != i)
        at++;
    uint32_t first = at, last = at;
    while (first > 0 && wbuf_slot_end(wbuf, wbuf->order[first - 1]) == wbuf_slot_begin(wbuf, wbuf->order[first]))
        first--;
    while (last + 1 < wbuf->order_count && wbuf_slot_end(wbuf, wbuf->order[last]) == wbuf_slot_begin(wbuf, wbuf->order[last + 1]))
        last++;
    return (struct wbuf_pages){
        .fd = wbuf->fd,
        .map = wbuf->map + aux->offset,
        .offset = aux->offset,
        .bytes = aux->bytes,
        .zero = aux->zero,
        .huge = &wbuf->huge,
        .used_begin = wbuf_slot_begin(wbuf, wbuf->order[first]),
        .used_end = wbuf_slot_end(wbuf, wbuf->order[last]),
    };
}

struct wbuf_pages wbuf_all_pages(struct wbuf *wbuf)
{
    return (struct wbuf_pages){.fd = wbuf->fd, .map = wbuf->map, .bytes = wbuf->size, .huge = &wbuf->huge, .used_end = wbuf->size};
}

void wbuf_keep_pages(struct wbuf *wbuf)
{
    wbuf->keep_pages = true;
    wbuf->stale.count = 0;
    wbuf->stale.bytes = 0;
}

uint32_t wbuf_ranges(const struct wbuf *wbuf, uint64_t *ret_ranges)
{
    uint64_t at = WBUF_DATA_OFFSET, end = wbuf->size - wbuf->size % WBUF_SLOT_ALIGN;
    uint32_t count = 0;
    for (uint32_t i = 0; i <= wbuf->order_count; i++) {
        uint64_t until = i < wbuf->order_count ? wbuf_slot_begin(wbuf, wbuf->order[i]) : end;
        if (until > at)
            ret_ranges[count++] = until - at;
        if (i < wbuf->order_count)
            at = until + wbuf_slot_pages(wbuf, wbuf->order[i]);
    }
    return count;
}

uint64_t wbuf_changes(const struct wbuf *wbuf)
{
    return wbuf->changes;
}

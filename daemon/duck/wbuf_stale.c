#include "daemon/duck/wbuf_stale.h"

#include <string.h>

typedef struct wbuf_stale_range range;

/* The first range that ends after `offset`. */
static uint32_t find(const struct wbuf_stale *stale, uint64_t offset)
{
    uint32_t low = 0, high = stale->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (stale->ranges[middle].end > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void insert(struct wbuf_stale *stale, uint32_t at, uint64_t begin, uint64_t end)
{
    memmove(&stale->ranges[at + 1], &stale->ranges[at], (stale->count - at) * sizeof(range));
    stale->ranges[at] = (range){begin, end};
    stale->count++;
}

static void erase(struct wbuf_stale *stale, uint32_t first, uint32_t count)
{
    memmove(&stale->ranges[first], &stale->ranges[first + count], (stale->count - first - count) * sizeof(range));
    stale->count -= count;
}

bool wbuf_stale_add(struct wbuf_stale *stale, uint64_t begin, uint64_t end)
{
    uint32_t at = find(stale, begin);
    bool after = at > 0 && stale->ranges[at - 1].end == begin, before = at < stale->count && stale->ranges[at].begin == end;
    if (!after && !before && stale->count >= WBUF_STALE_MAX / 2)
        return false;
    stale->bytes += end - begin;
    if (after && before) {
        stale->ranges[at - 1].end = stale->ranges[at].end;
        erase(stale, at, 1);
    } else if (after) {
        stale->ranges[at - 1].end = end;
    } else if (before) {
        stale->ranges[at].begin = begin;
    } else {
        insert(stale, at, begin, end);
    }
    return true;
}

bool wbuf_stale_cut(struct wbuf_stale *stale, uint64_t begin, uint64_t end)
{
    uint32_t first = find(stale, begin), last = first;
    while (last < stale->count && stale->ranges[last].begin < end)
        last++;
    if (last == first)
        return false;
    range left = {stale->ranges[first].begin, begin}, right = {end, stale->ranges[last - 1].end};
    for (uint32_t i = first; i < last; i++)
        stale->bytes -= stale->ranges[i].end - stale->ranges[i].begin;
    erase(stale, first, last - first);
    if (right.end > right.begin) {
        insert(stale, first, right.begin, right.end);
        stale->bytes += right.end - right.begin;
    }
    if (left.end > left.begin) {
        insert(stale, first, left.begin, left.end);
        stale->bytes += left.end - left.begin;
    }
    return true;
}

bool wbuf_stale_take(struct wbuf_stale *stale, uint64_t most, uint64_t *ret_begin, uint64_t *ret_end)
{
    if (!stale->count)
        return false;
    range *last = &stale->ranges[stale->count - 1];
    *ret_end = last->end;
    uint64_t aligned = (last->end - 1) / most * most;
    *ret_begin = aligned > last->begin ? aligned : last->begin;
    stale->bytes -= *ret_end - *ret_begin;
    last->end = *ret_begin;
    if (last->end == last->begin)
        stale->count--;
    return true;
}

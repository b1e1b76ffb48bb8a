/* Checksums of a slot: of the whole and, behind its bytes, of its parts. */
#include "daemon/duck/wbuf_format.h"
#include "proto/base/checksum.h"
#include "proto/base/size.h"

struct wbuf_sums wbuf_sums(struct wbuf *wbuf, uint32_t i)
{
    const struct wbuf_slot *slot = &wbuf_header(wbuf)->slots[i];
    const struct geometry *geometry = wbuf_geometry(wbuf, i);
    const uint8_t *data = wbuf_data(wbuf, i);
    uint64_t sums_offset = size_round_up(geometry->bytes, sizeof(uint64_t));
    return (struct wbuf_sums){
        .data = data,
        .bytes = geometry->bytes,
        .checksum = slot->checksum,
        .parts = (uint32_t)((wbuf_pages(wbuf, i).bytes - sums_offset) / sizeof(uint64_t)),
        .part_sums = (const uint64_t *)(const void *)(data + sums_offset),
        .part_bytes = geometry->layout.expert_bytes,
        .shared_offset = geometry->shared_offset,
        .expert_first = geometry->expert_first,
        .shared_bytes = geometry->has_shared ? geometry->shared.expert_bytes : 0,
        .moe = slot->kind == MSG_SLOT_MOE,
        .has_shared = geometry->has_shared,
    };
}

static uint64_t part_begin(const struct wbuf_sums *sums, uint32_t part)
{
    return sums->has_shared && part + 1 == sums->parts ? sums->shared_offset : part * sums->part_bytes;
}

static uint64_t part_length(const struct wbuf_sums *sums, uint32_t part)
{
    return sums->has_shared && part + 1 == sums->parts ? sums->shared_bytes : sums->part_bytes;
}

/* Each part is in the cache when it goes into the whole's checksum, too. */
void wbuf_sum_part(const struct wbuf_sums *sums, uint32_t part, const uint8_t *bytes, struct checksum *whole)
{
    uint64_t *to = (uint64_t *)sums->part_sums, length = part_length(sums, part);
    to[part] = checksum_of(bytes, length);
    checksum_update(whole, bytes, length);
}

uint64_t wbuf_sum_rest(const struct wbuf_sums *sums, uint32_t first, struct checksum *whole)
{
    for (uint32_t part = first; part < sums->parts; part++)
        wbuf_sum_part(sums, part, sums->data + part_begin(sums, part), whole);
    return checksum_finish(whole);
}

uint64_t wbuf_sum(const struct wbuf_sums *sums)
{
    struct checksum *whole = checksum_new();
    uint64_t sum = whole ? wbuf_sum_rest(sums, 0, whole) : 0;
    checksum_free(whole);
    return sum;
}

void wbuf_finish(struct wbuf *wbuf, uint32_t i)
{
    const struct wbuf_sums sums = wbuf_sums(wbuf, i);
    wbuf_finish_summed(wbuf, i, wbuf_sum(&sums));
}

#include "daemon/duck/draft.h"

#include <stdlib.h>

#include "daemon/duck/fill.h"
#include "proto/base/checksum.h"
#include "proto/base/size.h"

#define DRAFT_ALIGN 4096

struct draft *draft_new(struct wbuf *wbuf, uint32_t slot, uint8_t *memory, uint64_t room)
{
    const struct geometry *geometry = wbuf_geometry(wbuf, slot);
    uint64_t routed = geometry->layout.expert_bytes, shared = geometry->has_shared ? geometry->shared.expert_bytes : 0;
    uint64_t wanted = shared > routed && shared <= DRAFT_BYTES_MAX ? shared : routed;
    struct draft *draft = calloc(1, sizeof *draft);
    if (!draft) {
        free(memory);
        return NULL;
    }
    *draft = (struct draft){.users = 1, .pages = wbuf_pages(wbuf, slot), .sums = wbuf_sums(wbuf, slot), .memory = memory};
    draft->room = memory ? room : 0;
    if (!draft->pages.zero || wanted > DRAFT_BYTES_MAX) {
        draft->room = 0;
    } else if (draft->room < wanted) {
        free(draft->memory);
        draft->memory = aligned_alloc(DRAFT_ALIGN, size_round_up(wanted, DRAFT_ALIGN));
        draft->room = draft->memory ? wanted : 0;
    }
    return draft;
}

uint8_t *draft_unref(struct draft *draft, uint64_t *ret_room)
{
    if (--draft->users)
        return NULL;
    uint8_t *memory = draft->memory;
    *ret_room = draft->room;
    if (!draft->room) {
        free(memory);
        memory = NULL;
    }
    checksum_free(draft->whole);
    free(draft);
    return memory;
}

/* The parts' checksums have a place behind the last part. */
static int take_sums(struct draft *draft, struct err *err)
{
    uint64_t begin = (uint64_t)((const uint8_t *)draft->sums.part_sums - draft->pages.map);
    int r = draft->whole ? 0 : wbuf_take_pages(&draft->pages, begin, draft->pages.bytes - begin, err);
    if (r == 0 && !draft->whole)
        draft->whole = checksum_new();
    return r < 0 || draft->whole ? r : err_no_memory(err, "checksum", 0);
}

static int begin_expert(struct fill_work *work, uint8_t *to)
{
    int r = 0;
    if (!work->drafted)
        r = wbuf_take_pages(&work->draft->pages, (uint64_t)(work->expert - work->draft->pages.map), work->layout.expert_bytes, &work->err);
    if (r == 0 && (work->drafted || !work->draft->pages.zero))
        kernels_pack_begin(&work->layout, to);
    return r;
}

static int end_expert(struct fill_work *work, const uint8_t *from)
{
    struct draft *draft = work->draft;
    int r = 0;
    if (work->drafted)
        r = wbuf_write_pages(&draft->pages, (uint64_t)(work->expert - draft->pages.map), from, work->layout.expert_bytes, &work->err);
    if (r < 0 || work->part != draft->summed)
        return r;
    r = take_sums(draft, &work->err);
    if (r < 0)
        return r;
    wbuf_sum_part(&draft->sums, draft->summed++, from, draft->whole);
    return 0;
}

int draft_rows(struct fill_work *work)
{
    uint8_t *to = work->drafted ? work->draft->memory : work->expert;
    int r = work->begin ? begin_expert(work, to) : 0;
    if (r < 0)
        return r;
    r = kernels_pack(&work->layout, to, &work->rows, &work->err);
    if (r < 0)
        return err_prefix(&work->err, "%s", work->name[0] ? work->name : "dense MLP");
    return work->end ? end_expert(work, to) : 0;
}

int draft_sum(struct draft *draft, uint64_t *ret_checksum, struct err *err)
{
    int r = take_sums(draft, err);
    if (r == 0)
        *ret_checksum = wbuf_sum_rest(&draft->sums, draft->summed, draft->whole);
    return r;
}

#include "daemon/duck/wbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/duck/wbuf_file.h"
#include "daemon/duck/wbuf_state.h"
#include "proto/base/huge.h"
#include "proto/base/size.h"

/* ---- opening ---------------------------------------------------------------------------------- */

/* Takes over what the buffer holds. */
static int attach(struct wbuf *wbuf, char *note, struct err *err)
{
    _cleanup_(freep) struct geometry *geometries = calloc(WBUF_SLOTS_MAX, sizeof *geometries);
    if (!geometries)
        return err_no_memory(err, "weight buffer", WBUF_SLOTS_MAX * sizeof *geometries);
    uint32_t dropped, bad;
    struct err why;
    int r = wbuf_format_check(wbuf->header, wbuf->size, geometries, &dropped, &bad, &why, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        const struct wbuf_slot *slot = &wbuf->header->slots[i];
        if (slot->state != MSG_SLOT_FINISHED)
            continue;
        wbuf->aux[i].geometry = geometries[i];
        wbuf_range_insert(wbuf, i);
        /* Pages are there already unless somebody punched them; then they must not be missing at the first read. */
        r = wbuf_take_file(wbuf->fd, slot->offset, wbuf_format_span(slot), err);
        if (r < 0)
            return r;
    }
    /* Whatever lies between finished slots is given back: unfinished ones, and pages that a process killed between two steps of a drop
     * or an alloc has left to nobody. */
    uint64_t at = WBUF_DATA_OFFSET;
    for (uint32_t i = 0; i <= wbuf->order_count; i++) {
        uint64_t until = i < wbuf->order_count ? wbuf_slot_begin(wbuf, wbuf->order[i]) : wbuf->size;
        if (until > at)
            (void)wbuf_file_give_back(wbuf->fd, at, until - at);
        at = i < wbuf->order_count ? until + wbuf_slot_pages(wbuf, wbuf->order[i]) : until;
    }
    snprintf(note, WBUF_NOTE_MAX, "attached: %u finished slots, %u unfinished ones dropped", wbuf->order_count, dropped);
    if (bad) {
        size_t length = strlen(note);
        snprintf(note + length, WBUF_NOTE_MAX - length, ", %u bad ones dropped: %.300s", bad, why.message);
    }
    return 0;
}

static int format(struct wbuf *wbuf, struct err *err)
{
    (void)wbuf_file_give_back(wbuf->fd, WBUF_DATA_OFFSET, wbuf->size - WBUF_DATA_OFFSET);
    return wbuf_format_init(wbuf->header, wbuf->size, err);
}

static bool all_zero(const void *data, size_t length)
{
    const uint8_t *bytes = data;
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0;
}

int wbuf_open(int fd, uint64_t bytes, enum wbuf_huge huge, struct wbuf **ret_wbuf, char *ret_note, struct err *err)
{
    _cleanup_(closep) int own = -1;
    uint64_t size = 0;
    int r = fd < 0 ? wbuf_file_own(bytes, &own, err) : 0;
    if (r < 0)
        return r;
    r = wbuf_file_size(fd < 0 ? own : fd, bytes, &size, err);
    if (r == 0)
        r = wbuf_file_lock(fd < 0 ? own : fd, err);
    if (r < 0)
        return r;
    _cleanup_(wbuf_freep) struct wbuf *wbuf = calloc(1, sizeof *wbuf);
    if (!wbuf)
        return err_no_memory(err, "weight buffer", sizeof *wbuf);
    wbuf->fd = -1;
    r = wbuf_take_file(fd < 0 ? own : fd, 0, WBUF_DATA_OFFSET, err);
    if (r < 0)
        return r;
    void *map = huge_map(fd < 0 ? own : fd, 0, size, PROT_READ | PROT_WRITE);
    if (map == MAP_FAILED)
        return err_errno(err, "weight buffer: %" PRIu64 " bytes cannot be mapped", size);
    wbuf->map = map;
    wbuf->size = size;
    wbuf->header = map;
    wbuf->fd = fd < 0 ? own : fd;
    if (all_zero(wbuf->header, sizeof *wbuf->header)) {
        snprintf(ret_note, WBUF_NOTE_MAX, "new");
        r = format(wbuf, err);
    } else {
        r = attach(wbuf, ret_note, err);
        if (r == -EBADMSG) {
            snprintf(ret_note, WBUF_NOTE_MAX, "formatted anew: %.400s", err ? err->message : "");
            r = format(wbuf, err);
        }
    }
    if (r < 0) {
        wbuf->fd = -1; /* the caller's, or closed with `own` */
        return r;
    }
    own = -1;
    wbuf->stamp = wbuf_stamp(wbuf);
    uint32_t buried = wbuf_bury(wbuf);
    if (buried) {
        size_t length = strlen(ret_note);
        snprintf(ret_note + length, WBUF_NOTE_MAX - length, ", %u of revoked keys dropped", buried);
    }
    wbuf_huge_ask(&wbuf->huge, wbuf->fd, wbuf->map, wbuf->size, huge, ret_note);
    *ret_wbuf = STEAL(wbuf);
    return 0;
}

void wbuf_free(struct wbuf *wbuf)
{
    if (!wbuf)
        return;
    if (wbuf->map)
        munmap(wbuf->map, wbuf->size);
    closep(&wbuf->fd);
    free(wbuf);
}

/* ---- facts ------------------------------------------------------------------------------------ */

int wbuf_fd(const struct wbuf *wbuf)
{
    return wbuf->fd;
}

const char *wbuf_boot_id(const struct wbuf *wbuf)
{
    return wbuf->header->boot_id;
}

uint64_t wbuf_capacity(const struct wbuf *wbuf)
{
    return wbuf->size - WBUF_DATA_OFFSET;
}

uint64_t wbuf_used(const struct wbuf *wbuf)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < wbuf->order_count; i++)
        used += wbuf_slot_pages(wbuf, wbuf->order[i]);
    return used;
}

bool wbuf_taken(const struct wbuf *wbuf, uint32_t slot)
{
    const struct wbuf_aux *aux = &wbuf->aux[slot];
    return aux->held && !aux->doomed && wbuf->header->slots[slot].state != 0;
}

bool wbuf_sound(const struct wbuf *wbuf, uint32_t i)
{
    const struct wbuf_aux *aux = &wbuf->aux[i];
    const struct wbuf_slot *slot = &wbuf->header->slots[i];
    if (!wbuf_taken(wbuf, i) || slot->offset != aux->offset || slot->bytes != aux->geometry.bytes || wbuf_format_span(slot) != aux->bytes)
        return false;
    return slot->state == MSG_SLOT_FILLING || (slot->state == MSG_SLOT_FINISHED && slot->finish == wbuf_format_finish(slot));
}

/* As wbuf_sound of a finished slot, for steps: a checksum each time would cost as much as all else that is looked up. */
static bool still_sound(struct wbuf *wbuf, uint32_t i)
{
    struct wbuf_aux *aux = &wbuf->aux[i];
    struct wbuf_slot now = wbuf->header->slots[i];
    if (memcmp(&now, &aux->seen, sizeof now) == 0)
        return wbuf_taken(wbuf, i);
    if (now.state != MSG_SLOT_FINISHED || now.finish != wbuf_format_finish(&now) || !wbuf_sound(wbuf, i))
        return false;
    aux->seen = now;
    return true;
}

/* Looks first where it found something last, and behind that: steps ask for one layer after the other. */
static uint32_t find(struct wbuf *wbuf, const uint8_t *model_key, uint32_t layer, bool finished)
{
    for (uint32_t n = 0, i = wbuf->found; n < wbuf->order_count; n++, i++) {
        if (i >= wbuf->order_count)
            i = 0;
        uint32_t at = wbuf->order[i];
        const struct wbuf_slot *slot = &wbuf->header->slots[at];
        if (slot->layer == layer && (finished ? slot->state == MSG_SLOT_FINISHED : slot->state != 0) &&
            memcmp(slot->model_key, model_key, DIGEST_SIZE) == 0 && (finished ? still_sound(wbuf, at) : wbuf_taken(wbuf, at))) {
            wbuf->found = i;
            return at;
        }
    }
    return WBUF_NONE;
}

uint32_t wbuf_find(struct wbuf *wbuf, const uint8_t model_key[DIGEST_SIZE], uint32_t layer)
{
    return find(wbuf, model_key, layer, true);
}

uint32_t wbuf_find_any(struct wbuf *wbuf, const uint8_t model_key[DIGEST_SIZE], uint32_t layer)
{
    return find(wbuf, model_key, layer, false);
}

uint8_t *wbuf_data(const struct wbuf *wbuf, uint32_t slot)
{
    return wbuf->map + wbuf_slot_begin(wbuf, slot);
}

uint64_t wbuf_offset(const struct wbuf *wbuf, uint32_t slot)
{
    return wbuf_slot_begin(wbuf, slot);
}

const struct geometry *wbuf_geometry(const struct wbuf *wbuf, uint32_t slot)
{
    return &wbuf->aux[slot].geometry;
}

struct msg_prepare_begin wbuf_words(const struct wbuf *wbuf, uint32_t slot)
{
    return wbuf_format_words(&wbuf->header->slots[slot]);
}

struct msg_slot wbuf_describe(const struct wbuf *wbuf, uint32_t slot)
{
    return wbuf_format_describe(&wbuf->header->slots[slot]);
}

/* ---- slots ------------------------------------------------------------------------------------ */

static int no_room(const struct wbuf *wbuf, uint64_t bytes, uint64_t largest, struct err *err)
{
    uint64_t left = wbuf_capacity(wbuf) - wbuf_used(wbuf);
    char needs[32], has[32], range[32];
    err_set(err, -ENOMEM, ERR_NO_MEMORY, "weight buffer: needs %" PRIu64 " bytes (%s), has %" PRIu64 " (%s) free, the largest range %s%s",
            bytes, size_format(bytes, needs, sizeof needs), left, size_format(left, has, sizeof has),
            size_format(largest, range, sizeof range), wbuf_doomed(wbuf) ? "; dropped slots wait for a running step" : "");
    err_value_int(err, "needs", (long long)bytes);
    err_value_int(err, "has", (long long)left);
    return -ENOMEM;
}

/* Leaves the range to whoever pins it, or gives it back. Its slot in the header is free. */
static uint64_t let_go(struct wbuf *wbuf, uint32_t i)
{
    struct wbuf_aux *aux = &wbuf->aux[i];
    uint64_t pages = wbuf_slot_pages(wbuf, i);
    aux->doomed = aux->pins > 0;
    if (!aux->doomed) {
        wbuf_range_remove(wbuf, i);
        wbuf_range_free(wbuf, aux->offset, aux->offset + pages);
    }
    return pages;
}

/* Slots that somebody has written over in the header can never be found again: their memory must not stay with them. */
static void let_go_unsound(struct wbuf *wbuf)
{
    for (uint32_t n = wbuf->order_count; n-- > 0;) {
        uint32_t i = wbuf->order[n];
        if (!wbuf->aux[i].finished || wbuf->aux[i].doomed || wbuf_sound(wbuf, i))
            continue;
        __atomic_store_n(&wbuf->header->slots[i].state, 0, __ATOMIC_RELEASE);
        memset(&wbuf->header->slots[i], 0, sizeof wbuf->header->slots[i]);
        let_go(wbuf, i);
    }
}

int wbuf_reserve(struct wbuf *wbuf, const struct msg_prepare_begin *words, uint32_t *ret_slot, struct err *err)
{
    struct geometry geometry;
    int r = geometry_init(words, &geometry, err);
    if (r < 0)
        return r;
    uint64_t offset, largest = 0;
    const struct wbuf_slot shape = {.bytes = geometry.bytes, .experts = (uint16_t)geometry.experts, .has_shared = geometry.has_shared};
    uint64_t pages = size_round_up(wbuf_format_span(&shape), WBUF_SLOT_ALIGN);
    let_go_unsound(wbuf);
    if (geometry.bytes > wbuf->size)
        return no_room(wbuf, geometry.bytes, wbuf_capacity(wbuf) - wbuf_used(wbuf), err);
    if (!wbuf_range_find(wbuf, pages, &offset, &largest))
        return no_room(wbuf, geometry.bytes, largest, err);
    uint32_t i = 0;
    while (i < WBUF_SLOTS_MAX && (wbuf->header->slots[i].state != 0 || wbuf->aux[i].held))
        i++;
    if (i == WBUF_SLOTS_MAX)
        return err_set(err, -ENOSPC, ERR_NO_MEMORY, "weight buffer: all %d slots are in use", WBUF_SLOTS_MAX);
    struct wbuf_slot *slot = &wbuf->header->slots[i];
    struct wbuf_slot fresh = {
        .kind = (uint32_t)words->kind,
        .tp = words->tp,
        .rank = words->rank,
        .multiple_of = words->multiple_of,
        .layer = words->layer,
        .experts = (uint16_t)geometry.experts,
        .expert_first = (uint16_t)geometry.expert_first,
        .experts_more = (uint16_t)(geometry.experts_total - geometry.experts),
        .has_shared = geometry.has_shared,
        .slice = words->slice,
        .offset = offset,
        .bytes = geometry.bytes,
    };
    if (words->has_shared)
        fresh.shared = words->shared;
    memcpy(fresh.model_key, words->model_key, DIGEST_SIZE);
    memcpy(fresh.sources, words->sources, DIGEST_SIZE);
    *slot = fresh;
    wbuf->header->stamps[i] = wbuf->stamp;
    __atomic_store_n(&slot->state, MSG_SLOT_FILLING, __ATOMIC_RELEASE);
    wbuf->aux[i].geometry = geometry;
    wbuf_range_insert(wbuf, i);
    wbuf->aux[i].zero = wbuf_range_take(wbuf, i);
    *ret_slot = i;
    return 0;
}

int wbuf_alloc(struct wbuf *wbuf, const struct msg_prepare_begin *words, uint32_t *ret_slot, struct err *err)
{
    uint32_t slot;
    int r = wbuf_reserve(wbuf, words, &slot, err);
    if (r < 0)
        return r;
    const struct wbuf_pages pages = wbuf_pages(wbuf, slot);
    if (!pages.zero && !wbuf->keep_pages)
        (void)wbuf_file_give_back(wbuf->fd, pages.offset, size_round_up(pages.bytes, WBUF_SLOT_ALIGN));
    r = wbuf_take_pages(&pages, 0, pages.bytes, err);
    if (r < 0) {
        wbuf_drop(wbuf, slot);
        return r;
    }
    *ret_slot = slot;
    return 0;
}

void wbuf_set_sources(struct wbuf *wbuf, uint32_t i, const uint8_t sources[DIGEST_SIZE])
{
    memcpy(wbuf->header->slots[i].sources, sources, DIGEST_SIZE);
}

void wbuf_rekey(struct wbuf *wbuf, uint32_t i, const uint8_t model_key[DIGEST_SIZE])
{
    struct wbuf_slot *slot = &wbuf->header->slots[i];
    __atomic_store_n(&slot->state, MSG_SLOT_FILLING, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* nothing of what follows may be written before */
    memcpy(slot->model_key, model_key, DIGEST_SIZE);
    wbuf->header->stamps[i] = wbuf->stamp;
    __atomic_store_n(&slot->finish, wbuf_format_finish(slot), __ATOMIC_RELEASE);
    __atomic_store_n(&slot->state, MSG_SLOT_FINISHED, __ATOMIC_RELEASE);
}

void wbuf_finish_summed(struct wbuf *wbuf, uint32_t i, uint64_t checksum)
{
    struct wbuf_slot *slot = &wbuf->header->slots[i];
    slot->checksum = checksum;
    wbuf->aux[i].finished = true;
    wbuf_range_written(wbuf, i);
    /* A process killed between these two stores leaves a slot in state FILLING: dropped, as it must be. */
    __atomic_store_n(&slot->finish, wbuf_format_finish(slot), __ATOMIC_RELEASE);
    __atomic_store_n(&slot->state, MSG_SLOT_FINISHED, __ATOMIC_RELEASE);
}

uint64_t wbuf_drop(struct wbuf *wbuf, uint32_t i)
{
    struct wbuf_slot *slot = &wbuf->header->slots[i];
    if (!wbuf_taken(wbuf, i))
        return 0;
    __atomic_store_n(&slot->state, 0, __ATOMIC_RELEASE);
    memset(slot, 0, sizeof *slot);
    return let_go(wbuf, i);
}

void wbuf_pin(struct wbuf *wbuf, uint32_t slot)
{
    wbuf->aux[slot].pins++;
}

void wbuf_unpin(struct wbuf *wbuf, uint32_t slot)
{
    struct wbuf_aux *aux = &wbuf->aux[slot];
    if (--aux->pins > 0 || !aux->doomed)
        return;
    wbuf_range_remove(wbuf, slot);
    wbuf_range_free(wbuf, wbuf_slot_begin(wbuf, slot), wbuf_slot_end(wbuf, slot));
    aux->doomed = false;
}

bool wbuf_is_doomed(const struct wbuf *wbuf, uint32_t slot)
{
    return wbuf->aux[slot].doomed;
}

uint32_t wbuf_doomed(const struct wbuf *wbuf)
{
    uint32_t doomed = 0;
    for (uint32_t i = 0; i < wbuf->order_count; i++)
        doomed += wbuf->aux[wbuf->order[i]].doomed;
    return doomed;
}

void wbuf_set_stamp(struct wbuf *wbuf, uint64_t stamp)
{
    if (stamp > wbuf->stamp)
        wbuf->stamp = stamp;
}

struct wbuf_header *wbuf_header(const struct wbuf *wbuf)
{
    return wbuf->header;
}

struct wbuf_huge_state *wbuf_huge(struct wbuf *wbuf)
{
    return &wbuf->huge;
}

#include "daemon/duck/wbuf_format.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "proto/base/checksum.h"
#include "proto/base/size.h"

uint32_t wbuf_format_parts(const struct wbuf_slot *slot)
{
    return slot->experts + (slot->has_shared != 0);
}

uint64_t wbuf_format_span(const struct wbuf_slot *slot)
{
    return size_round_up(slot->bytes, sizeof(uint64_t)) + (uint64_t)wbuf_format_parts(slot) * sizeof(uint64_t);
}

uint64_t wbuf_format_finish(const struct wbuf_slot *slot)
{
    struct wbuf_slot copy = *slot;
    copy.state = MSG_SLOT_FINISHED;
    uint64_t finish = checksum_of(&copy, offsetof(struct wbuf_slot, finish));
    return finish ? finish : 1;
}

struct msg_prepare_begin wbuf_format_words(const struct wbuf_slot *slot)
{
    struct msg_prepare_begin words = {
        .layout_version = LAYOUT_VERSION,
        .tp = slot->tp,
        .rank = slot->rank,
        .multiple_of = slot->multiple_of,
        .layer = slot->layer,
        .kind = (enum msg_slot_kind)slot->kind,
        .experts = slot->experts,
        .expert_first = slot->expert_first,
        .experts_total = (uint32_t)slot->experts + slot->experts_more,
        .slice = slot->slice,
        .has_shared = slot->has_shared != 0,
        .shared = slot->shared,
    };
    memcpy(words.model_key, slot->model_key, DIGEST_SIZE);
    memcpy(words.sources, slot->sources, DIGEST_SIZE);
    return words;
}

struct msg_slot wbuf_format_describe(const struct wbuf_slot *from)
{
    struct msg_slot to = {
        .tp = from->tp,
        .rank = from->rank,
        .multiple_of = from->multiple_of,
        .layer = from->layer,
        .kind = (enum msg_slot_kind)from->kind,
        .state = (enum msg_slot_state)from->state,
        .bytes = from->bytes,
        .checksum = from->state == MSG_SLOT_FINISHED ? from->checksum : 0,
    };
    memcpy(to.model_key, from->model_key, DIGEST_SIZE);
    memcpy(to.sources, from->sources, DIGEST_SIZE);
    return to;
}

static int random_uuid(char text[WBUF_BOOT_ID_SIZE], struct err *err)
{
    uint8_t b[16];
    if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b)
        return err_errno(err, "boot id: getrandom");
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    snprintf(text, WBUF_BOOT_ID_SIZE, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4],
             b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return 0;
}

int wbuf_format_init(struct wbuf_header *header, uint64_t size, struct err *err)
{
    char boot_id[WBUF_BOOT_ID_SIZE] = "";
    int r = random_uuid(boot_id, err);
    if (r < 0)
        return r;
    __atomic_store_n(&header->magic, 0, __ATOMIC_RELEASE);
    memset(header, 0, sizeof *header);
    header->version = WBUF_VERSION;
    header->layout_version = LAYOUT_VERSION;
    header->size = size;
    memcpy(header->boot_id, boot_id, sizeof boot_id);
    header->slot_count = WBUF_SLOTS_MAX;
    __atomic_store_n(&header->magic, WBUF_MAGIC, __ATOMIC_RELEASE);
    return 0;
}

static bool boot_id_sound(const char *text)
{
    size_t length = strnlen(text, WBUF_BOOT_ID_SIZE);
    return length == 36 && strspn(text, "0123456789abcdef-") == length;
}

#define BAD(...) err_set(err, -EBADMSG, ERR_INTERNAL, __VA_ARGS__)

static int check_finished(const struct wbuf_slot *slot, uint32_t i, uint64_t size, struct geometry *ret_geometry, struct err *err)
{
    if (slot->finish != wbuf_format_finish(slot))
        return BAD("slot %u: its finish flag does not fit its description", i);
    struct msg_prepare_begin words = wbuf_format_words(slot);
    if (geometry_init(&words, ret_geometry, err) < 0)
        return BAD("slot %u: %.400s", i, err ? err->message : "");
    if (slot->bytes != ret_geometry->bytes)
        return BAD("slot %u: %" PRIu64 " bytes, its geometry needs %" PRIu64, i, slot->bytes, ret_geometry->bytes);
    if (slot->offset < WBUF_DATA_OFFSET || slot->offset % WBUF_SLOT_ALIGN || slot->offset > size ||
        wbuf_format_span(slot) > size - slot->offset)
        return BAD("slot %u: %" PRIu64 " bytes at %" PRIu64 " do not lie in a file of %" PRIu64, i, slot->bytes, slot->offset, size);
    return 0;
}

struct range {
    uint64_t begin, end;
    uint32_t slot;
};

static int by_begin(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Which of two that overlap lies cannot be told: both are bad. */
static int mark_overlaps(const struct wbuf_header *header, bool *bad, struct err *why, struct err *err)
{
    _cleanup_(freep) struct range *ranges = calloc(WBUF_SLOTS_MAX, sizeof *ranges);
    if (!ranges)
        return err_no_memory(err, "weight buffer", WBUF_SLOTS_MAX * sizeof *ranges);
    size_t count = 0;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        const struct wbuf_slot *slot = &header->slots[i];
        if (slot->state == MSG_SLOT_FINISHED && !bad[i])
            ranges[count++] = (struct range){slot->offset, slot->offset + size_round_up(wbuf_format_span(slot), WBUF_SLOT_ALIGN), i};
    }
    qsort(ranges, count, sizeof *ranges, by_begin);
    size_t furthest = 0;
    for (size_t i = 1; i < count; i++) {
        if (ranges[i].begin < ranges[furthest].end) {
            err_set(why, -EBADMSG, ERR_INTERNAL, "slots %u and %u overlap", ranges[furthest].slot, ranges[i].slot);
            bad[ranges[furthest].slot] = bad[ranges[i].slot] = true;
        }
        if (ranges[i].end > ranges[furthest].end)
            furthest = i;
    }
    return 0;
}

int wbuf_format_check(struct wbuf_header *header, uint64_t size, struct geometry *ret_geometries, uint32_t *ret_dropped, uint32_t *ret_bad,
                      struct err *ret_why, struct err *err)
{
    if (header->magic != WBUF_MAGIC)
        return BAD("no weight buffer: it begins with 0x%016" PRIx64, header->magic);
    if (header->version != WBUF_VERSION)
        return BAD("header version %u, this duck has %d", header->version, WBUF_VERSION);
    if (header->layout_version != LAYOUT_VERSION)
        return BAD("layout version %u, this duck has %d", header->layout_version, LAYOUT_VERSION);
    if (header->size != size)
        return BAD("made for %" PRIu64 " bytes, the file has %" PRIu64, header->size, size);
    if (header->slot_count != WBUF_SLOTS_MAX || header->zero != 0)
        return BAD("a table of %u slots, this duck has %d", header->slot_count, WBUF_SLOTS_MAX);
    if (!boot_id_sound(header->boot_id))
        return BAD("its boot id is no uuid");
    bool bad[WBUF_SLOTS_MAX] = {false};
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        const struct wbuf_slot *slot = &header->slots[i];
        if (slot->state > MSG_SLOT_FINISHED)
            bad[i] = err_set(ret_why, -EBADMSG, ERR_INTERNAL, "slot %u: state %u", i, slot->state) < 0;
        else if (slot->state == MSG_SLOT_FINISHED)
            bad[i] = check_finished(slot, i, size, &ret_geometries[i], ret_why) < 0;
    }
    int r = mark_overlaps(header, bad, ret_why, err);
    if (r < 0)
        return r;
    *ret_dropped = *ret_bad = 0;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        struct wbuf_slot *slot = &header->slots[i];
        *ret_bad += bad[i];
        *ret_dropped += slot->state == MSG_SLOT_FILLING;
        if (bad[i] || slot->state == MSG_SLOT_FILLING)
            memset(slot, 0, sizeof *slot);
    }
    return 0;
}

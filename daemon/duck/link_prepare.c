/* Loads on a link: frames become work of the packing thread, what comes of it becomes answers. */
#include <errno.h>
#include <string.h>

#include "daemon/duck/link_state.h"
#include "proto/base/log.h"
#include "proto/wire/msg_staged.h"

#define PACK_BYTES_MAX (2u * WIRE_PREPARE_WINDOW)

static int say_taken(struct link *link, uint64_t request, uint64_t bytes, struct err *err)
{
    return link->tells_taken ? link_sent(msg_prepare_taken_encode(link->out, request, bytes), err) : 0;
}

static int say_staged_taken(struct link *link, uint64_t request, uint64_t ticket, struct err *err)
{
    return link_sent(msg_staged_taken_encode(link->out, request, ticket), err);
}

static void post(struct link *link, struct fill_work *work)
{
    if (work->kind == FILL_ROWS)
        link->pack_bytes += work->frame_bytes;
    packer_post(link->packer, work);
}

/* The slot is whole either way. */
static void tell_refused(struct link *link)
{
    bool insisted = false;
    int why = wbuf_huge_refusal(link->wbuf, &insisted);
    if (why)
        log_write(insisted ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "duck", "weight buffer: not all of it is in huge pages: %s",
                  wbuf_huge_reason(why));
}

static int answer(struct link *link, struct fill_work *work, struct err *err)
{
    struct msg_slot slot;
    struct err why = {0};
    bool staged = work->kind == FILL_ROWS && work->staged;
    uint64_t request = work->request, bytes = work->kind == FILL_ROWS ? work->frame_bytes : 0, ticket = work->ticket;
    int r = fill_done(link->fills, work, &slot, &why), sent = 0;
    link->pack_bytes -= bytes;
    if (staged)
        sent = say_staged_taken(link, request, ticket, err);
    else if (bytes)
        sent = say_taken(link, request, bytes, err);
    if (sent == 0 && r < 0)
        sent = link_fail(link, request, &why, err);
    if (r > 0)
        tell_refused(link);
    if (sent == 0 && r > 0)
        sent = link_sent(msg_slot_done_encode(link->out, request, &slot), err);
    return sent;
}

int link_pack_fd(const struct link *link)
{
    return packer_event_fd(link->packer);
}

int link_pack_event(struct link *link, struct err *err)
{
    int r = 0;
    for (struct fill_work *work; r == 0 && (work = packer_take(link->packer));)
        r = answer(link, work, err);
    if (r == 0)
        r = link_answer_drops(link, err);
    return r == 0 ? link_tell_room(link, err) : r;
}

bool link_full(const struct link *link)
{
    return link->pack_bytes > PACK_BYTES_MAX;
}

int link_prepare_begin(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_prepare_begin words;
    int r = msg_prepare_begin_decode(frame, &words, err);
    if (r < 0)
        return r;
    struct err why = {0};
    r = fill_begin(link->fills, frame->request, &words, &why);
    if ((r == -ENOMEM || r == -ENOSPC) && fills_out(link->fills) && wbuf_doomed(link->wbuf)) {
        /* Room that a dropped slot still holds for the rows at hand: some MiB of them at most. */
        packer_drain(link->packer);
        r = link_pack_event(link, err);
        if (r < 0)
            return r;
        r = fill_begin(link->fills, frame->request, &words, &why);
    }
    return r < 0 ? link_fail(link, frame->request, &why, err) : 0;
}

int link_prepare_data(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_prepare_data data;
    int r = msg_prepare_data_decode(frame, &data, err);
    if (r < 0)
        return r;
    struct err why = {0};
    struct fill_work *work;
    uint64_t bytes = WIRE_FRAME_HEADER + (uint64_t)frame->length;
    r = fill_data(link->fills, frame->request, &data, &work, &why);
    if (r == 0 && work) {
        work->frame_bytes = bytes;
        post(link, work);
        return 0;
    }
    if (r < 0)
        r = link_fail(link, frame->request, &why, err);
    return r < 0 ? r : say_taken(link, frame->request, bytes, err);
}

int link_prepare_staged(struct link *link, const struct frame *frame, struct err *err)
{
    const struct stage *stage = link->facts.stage;
    struct msg_prepare_staged msg;
    int r = msg_prepare_staged_decode(frame, stage ? stage->size : 0, &msg, err);
    if (r < 0)
        return r;
    struct err why = {0};
    struct fill_work *work;
    r = fill_staged(link->fills, frame->request, &msg.rows, stage->bytes + msg.offset, msg.stride, &work, &why);
    if (r == 0 && work) {
        work->frame_bytes = WIRE_FRAME_HEADER + (uint64_t)frame->length;
        work->ticket = msg.ticket;
        post(link, work);
        return 0;
    }
    if (r < 0)
        r = link_fail(link, frame->request, &why, err);
    return r < 0 ? r : say_staged_taken(link, frame->request, msg.ticket, err);
}

int link_prepare_sources(struct link *link, const struct frame *frame, struct err *err)
{
    uint8_t sources[DIGEST_SIZE];
    int r = msg_prepare_sources_decode(frame, sources, err);
    if (r < 0)
        return r;
    struct err why = {0};
    r = fill_sources(link->fills, frame->request, sources, &why);
    return r < 0 ? link_fail(link, frame->request, &why, err) : 0;
}

int link_prepare_end(struct link *link, const struct frame *frame, struct err *err)
{
    int r = msg_empty_decode(frame, err);
    if (r < 0)
        return r;
    struct err why = {0};
    struct fill_work *work;
    r = fill_end(link->fills, frame->request, &work, &why);
    if (r < 0)
        return link_fail(link, frame->request, &why, err);
    if (work)
        post(link, work);
    return 0;
}

int link_prepare_abort(struct link *link, const struct frame *frame, struct err *err)
{
    int r = msg_empty_decode(frame, err);
    if (r == 0)
        fill_abort(link->fills, frame->request);
    return r;
}

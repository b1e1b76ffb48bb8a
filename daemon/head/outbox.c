#include "daemon/head/outbox.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/wire/msg_prepare.h"

#define FLUSH_ROWS (128u * 1024) /* bytes of rows written before others have the thread */

void outbox_drop(struct outbox *outbox)
{
    outgoing_unref(STEAL(outbox->now));
    outgoing_drop(&outbox->step);
    outgoing_drop(&outbox->bulk);
}

void outbox_reset(struct outbox *outbox)
{
    outbox->unpacked = 0;
    outbox_drop(outbox);
}

/* Takes the first out of a list. */
static struct outgoing *first_of(struct outgoing **at)
{
    struct outgoing *out = *at;
    *at = out->next;
    return out;
}

void outbox_let_go(struct outbox *outbox)
{
    while (outbox->held)
        outgoing_unref(first_of(&outbox->held));
}

void outbox_release(struct outbox *outbox)
{
    free(outbox->step.items);
    free(outbox->bulk.items);
}

void outbox_put(struct outbox *outbox, struct outgoing *out, bool bulk)
{
    out->refs++;
    outgoing_push(bulk ? &outbox->bulk : &outbox->step, out);
}

static bool is_rows(const struct outgoing *out)
{
    struct bytes_reader r = bytes_reader_init(out->buf.data + 4, 2);
    return bytes_read_u16(&r) == WIRE_PREPARE_DATA;
}

/* The next bulk frame, if the duck has packed enough of those before it. */
static struct outgoing *next_bulk(struct outbox *outbox, bool windowed)
{
    if (!outbox->bulk.count)
        return NULL;
    const struct outgoing *next = outbox->bulk.items[outbox->bulk.first];
    if (!windowed || !is_rows(next))
        return outgoing_pop(&outbox->bulk);
    uint64_t bytes = next->buf.length;
    if (outbox->unpacked && outbox->unpacked + bytes > WIRE_PREPARE_WINDOW)
        return NULL;
    outbox->unpacked += bytes;
    return outgoing_pop(&outbox->bulk);
}

int outbox_flush(struct outbox *outbox, struct transport *transport, bool windowed, bool *ret_more)
{
    size_t rows = 0;
    while (rows < FLUSH_ROWS) {
        if (!outbox->now) {
            outbox->now = outgoing_pop(&outbox->step);
            if (!outbox->now)
                outbox->now = next_bulk(outbox, windowed);
            outbox->now_sent = 0;
            if (!outbox->now)
                break;
        }
        const struct buf *buf = &outbox->now->buf;
        struct iovec part = {.iov_base = buf->data + outbox->now_sent, .iov_len = buf->length - outbox->now_sent};
        ssize_t n = transport->writev(transport, &part, 1);
        if (n == -EAGAIN)
            break;
        if (n < 0)
            return (int)n;
        outbox->now_sent += (size_t)n;
        rows += is_rows(outbox->now) ? (size_t)n : 0;
        if (outbox->now_sent < buf->length)
            continue;
        struct outgoing *done = STEAL(outbox->now);
        if (done->staged) {
            done->next = outbox->held;
            outbox->held = done;
        } else {
            outgoing_unref(done);
        }
    }
    *ret_more = outbox->now || outbox->step.count || (rows >= FLUSH_ROWS && outbox->bulk.count);
    return 0;
}

int outbox_packed(struct outbox *outbox, uint64_t bytes, struct err *err)
{
    if (bytes > outbox->unpacked)
        return err_set(err, -EPROTO, ERR_INTERNAL, "it took %" PRIu64 " bytes of rows, %" PRIu64 " were sent", bytes, outbox->unpacked);
    outbox->unpacked -= bytes;
    return 0;
}

int outbox_staged_taken(struct outbox *outbox, uint64_t ticket, struct err *err)
{
    struct outgoing **at = &outbox->held;
    while (*at && (*at)->ticket != ticket)
        at = &(*at)->next;
    if (!*at)
        return err_set(err, -EPROTO, ERR_INTERNAL, "it took rows of ticket %" PRIu64 ", which it does not have", ticket);
    outgoing_unref(first_of(at));
    return 0;
}

#include "daemon/head/outgoing.h"

#include <stdlib.h>

struct outgoing *outgoing_new(void)
{
    struct outgoing *out = calloc(1, sizeof *out);
    if (!out)
        abort();
    out->refs = 1;
    return out;
}

void outgoing_unref(struct outgoing *out)
{
    if (!out || --out->refs)
        return;
    if (out->sent)
        out->sent(out->user);
    buf_release(&out->buf);
    free(out);
}

void outgoing_push(struct outgoing_queue *queue, struct outgoing *out)
{
    if (queue->count == queue->capacity) {
        size_t capacity = queue->capacity ? queue->capacity * 2 : 64;
        struct outgoing **items = calloc(capacity, sizeof *items);
        if (!items)
            abort();
        for (size_t i = 0; i < queue->count; i++)
            items[i] = queue->items[(queue->first + i) % queue->capacity];
        free(queue->items);
        *queue = (struct outgoing_queue){.items = items, .count = queue->count, .capacity = capacity};
    }
    queue->items[(queue->first + queue->count++) % queue->capacity] = out;
}

struct outgoing *outgoing_pop(struct outgoing_queue *queue)
{
    if (!queue->count)
        return NULL;
    struct outgoing *out = queue->items[queue->first];
    queue->first = (queue->first + 1) % queue->capacity;
    queue->count--;
    return out;
}

void outgoing_drop(struct outgoing_queue *queue)
{
    for (struct outgoing *out; (out = outgoing_pop(queue));)
        outgoing_unref(out);
}

bool outgoing_withdraw(struct outgoing_queue *queue, enum wire_type type, uint64_t request)
{
    size_t i = 0;
    struct frame frame = {0};
    for (; i < queue->count; i++) {
        const struct outgoing *out = queue->items[(queue->first + i) % queue->capacity];
        if (frame_header_parse(out->buf.data, &frame, NULL) == 0 && frame.type == type && frame.request == request)
            break;
    }
    if (i == queue->count)
        return false;
    outgoing_unref(queue->items[(queue->first + i) % queue->capacity]);
    for (queue->count--; i < queue->count; i++)
        queue->items[(queue->first + i) % queue->capacity] = queue->items[(queue->first + i + 1) % queue->capacity];
    return true;
}

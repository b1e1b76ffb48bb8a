#include "proto/wire/transport.h"

#include <errno.h>

/* Memory that a burst took is given back once it is idle; the usual answer fits below this. */
#define QUEUE_KEEP (8u * 1024 * 1024)

int transport_fill(struct transport *transport, struct frame_reader *reader, struct err *err)
{
    size_t room;
    uint8_t *to = frame_reader_room(reader, &room);
    if (!to)
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "link: out of memory for an incoming frame");
    ssize_t n = transport->read(transport, to, room);
    if (n == -EAGAIN)
        return 0;
    if (n == 0)
        return err_set(err, -ECONNRESET, ERR_DUCK_LOST, "link: closed by the peer");
    if (n < 0) {
        errno = (int)-n;
        return err_errno(err, "link: read");
    }
    frame_reader_added(reader, (size_t)n);
    return 1;
}

int transport_flush(struct transport *transport, struct transport_queue *queue, struct err *err)
{
    while (!transport_queue_empty(queue)) {
        struct iovec part = {.iov_base = queue->buf.data + queue->sent, .iov_len = queue->buf.length - queue->sent};
        ssize_t n = transport->writev(transport, &part, 1);
        if (n == -EAGAIN) {
            /* The sent part is dropped when it is the larger one, so that a slow reader costs at most twice what it has not read. */
            if (queue->sent > queue->buf.length / 2) {
                buf_consume(&queue->buf, queue->sent);
                queue->sent = 0;
            }
            return 0;
        }
        if (n < 0) {
            errno = (int)-n;
            return err_errno(err, "link: write");
        }
        queue->sent += (size_t)n;
    }
    queue->sent = queue->buf.length = 0;
    if (queue->buf.capacity > QUEUE_KEEP)
        buf_release(&queue->buf);
    return 1;
}

void transport_queue_release(struct transport_queue *queue)
{
    buf_release(&queue->buf);
    queue->sent = 0;
}

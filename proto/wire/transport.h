/* What carries frames: a byte stream with a descriptor to poll. A stream socket is the first kind (transport_socket.h); TLS over TCP
 * and RDMA are to fit behind the same five functions.
 *
 * Nothing here blocks. EINTR never comes out: calls are retried. A peer that is gone gives an error or end of stream, never a signal.
 * Threads: one at a time; a transport has no lock.
 */
#ifndef FP9_WIRE_TRANSPORT_H
#define FP9_WIRE_TRANSPORT_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "proto/base/cleanup.h"
#include "proto/wire/frame.h"

struct transport {
    /* Bytes read (> 0), 0 at the orderly end of the stream, -EAGAIN when nothing is there, another negative errno when it is broken.
     * Call until -EAGAIN before polling again: bytes that a transport holds inside (TLS) do not show at the descriptor. */
    ssize_t (*read)(struct transport *transport, void *to, size_t size);
    /* Bytes taken (> 0, perhaps fewer than given), -EAGAIN when none fit now, another negative errno when it is broken. What was taken
     * is copied; the caller may reuse its memory. After -EAGAIN the same bytes must be offered again. */
    ssize_t (*writev)(struct transport *transport, const struct iovec *parts, int count);
    /* To poll; stays the same for the transport's life. */
    int (*fd)(const struct transport *transport);
    /* The poll events to wait for when the caller wants to read always and to write when want_write. */
    short (*events)(const struct transport *transport, bool want_write);
    /* Closes and frees. */
    void (*close)(struct transport *transport);
};

static inline void transport_close(struct transport *transport)
{
    if (transport)
        transport->close(transport);
}
CLEANUP_DEFINE(struct transport *, transport_close);

/* Reads once into the reader. 1 something came, 0 nothing there now, -ECONNRESET at end of stream ("closed by the peer"), others as
 * read. */
int transport_fill(struct transport *transport, struct frame_reader *reader, struct err *err);

/* Frames on their way out. Encoders append to `buf`; zero-initialised is empty. */
struct transport_queue {
    struct buf buf;
    size_t sent; /* bytes at the front that the transport has taken */
};

static inline bool transport_queue_empty(const struct transport_queue *queue)
{
    return queue->sent == queue->buf.length;
}
/* Writes what fits. 1 all is sent, 0 the rest must wait for POLLOUT, negative errno when the transport is broken. */
int transport_flush(struct transport *transport, struct transport_queue *queue, struct err *err);
void transport_queue_release(struct transport_queue *queue);

#endif

#include "proto/wire/transport_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

struct transport_socket {
    struct transport base; /* first: the interface's pointer is this one's */
    int fd;                /* owned */
};

static ssize_t socket_read(struct transport *transport, void *to, size_t size)
{
    struct transport_socket *s = (struct transport_socket *)transport;
    ssize_t n;
    do
        n = recv(s->fd, to, size, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    return n;
}

static ssize_t socket_writev(struct transport *transport, const struct iovec *parts, int count)
{
    struct transport_socket *s = (struct transport_socket *)transport;
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    ssize_t n;
    do
        n = sendmsg(s->fd, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    /* A full UNIX socket may say ENOBUFS under memory pressure; it empties like any other. */
    if (n < 0)
        return errno == EWOULDBLOCK || errno == ENOBUFS ? -EAGAIN : -errno;
    return n;
}

static int socket_fd(const struct transport *transport)
{
    return ((const struct transport_socket *)transport)->fd;
}

static short socket_events(const struct transport *transport, bool want_write)
{
    (void)transport;
    return want_write ? POLLIN | POLLOUT : POLLIN;
}

static void socket_close(struct transport *transport)
{
    struct transport_socket *s = (struct transport_socket *)transport;
    close(s->fd);
    free(s);
}

int transport_socket_new(int fd, struct transport **ret_transport, struct err *err)
{
    int type;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0)
        return err_errno(err, "descriptor %d is no socket", fd);
    if (type != SOCK_STREAM)
        return err_set(err, -ENOTSOCK, ERR_BAD_REQUEST, "descriptor %d is a socket, but no stream socket", fd);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return err_errno(err, "descriptor %d cannot be made non-blocking", fd);
    struct transport_socket *s = calloc(1, sizeof *s);
    if (!s)
        return err_no_memory(err, "transport", sizeof *s);
    s->base =
        (struct transport){.read = socket_read, .writev = socket_writev, .fd = socket_fd, .events = socket_events, .close = socket_close};
    s->fd = fd;
    *ret_transport = &s->base;
    return 0;
}

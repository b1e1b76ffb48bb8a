#include "daemon/duck/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/base/log.h"
#include "proto/wire/msg_hello.h"
#include "proto/wire/transport_tcp.h"

#define BACKLOG 16
#define LEAVING_MAX 8

struct listen {
    int fd; /* owned */
    /* Refused, their FAIL on its way. Closed at once, with a HELLO unread, it would be destroyed by the reset that follows. A ring. */
    int leaving[LEAVING_MAX];
    unsigned next;
};

static int bound(const struct addrinfo *at, int *ret_fd)
{
    _cleanup_(closep) int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 || bind(fd, at->ai_addr, at->ai_addrlen) < 0 ||
        listen(fd, BACKLOG) < 0)
        return -errno;
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int listen_open(const char *address, struct listen **ret_listen, struct err *err)
{
    char host[TRANSPORT_TCP_HOST_MAX], port[TRANSPORT_TCP_PORT_MAX];
    int r = transport_tcp_split(address, host, port, err);
    if (r < 0)
        return err_prefix(err, "listen");
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    r = getaddrinfo(host, port, &hints, &found);
    if (r != 0)
        return err_set(err, -EADDRNOTAVAIL, ERR_BAD_REQUEST, "listen %s: %s", address, gai_strerror(r));
    int fd = -1;
    r = -EADDRNOTAVAIL;
    for (const struct addrinfo *at = found; at && r < 0; at = at->ai_next)
        r = bound(at, &fd);
    freeaddrinfo(found);
    if (r < 0) {
        errno = -r;
        return err_errno(err, "listen %s", address);
    }
    struct listen *made = calloc(1, sizeof *made);
    if (!made) {
        close(fd);
        return err_no_memory(err, "listen", sizeof *made);
    }
    made->fd = fd;
    for (unsigned i = 0; i < LEAVING_MAX; i++)
        made->leaving[i] = -1;
    *ret_listen = made;
    return 0;
}

void listen_close(struct listen *listen)
{
    if (!listen)
        return;
    for (unsigned i = 0; i < LEAVING_MAX; i++)
        closep(&listen->leaving[i]);
    closep(&listen->fd);
    free(listen);
}

int listen_fd(const struct listen *listen)
{
    return listen->fd;
}

/* Errors of a connection that died in the queue: there may be another behind it. */
static bool of_the_connection(int number)
{
    return number == EINTR || number == ECONNABORTED || number == EPROTO || number == ENETDOWN || number == EHOSTDOWN ||
           number == EHOSTUNREACH || number == ENETUNREACH || number == ETIMEDOUT;
}

int listen_accept(struct listen *listen, int *ret_fd, char ret_peer[LISTEN_PEER_MAX], struct err *err)
{
    struct sockaddr_storage address;
    socklen_t length;
    int fd;
    do {
        length = sizeof address;
        fd = accept4(listen->fd, (struct sockaddr *)&address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (fd < 0 && of_the_connection(errno));
    if (fd < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? -EAGAIN : err_errno(err, "listen: accept");
    char host[64] = "?", port[8] = "?";
    (void)getnameinfo((struct sockaddr *)&address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(ret_peer, LISTEN_PEER_MAX, "%s:%s", host, port);
    *ret_fd = fd;
    return 0;
}

void listen_send_away(struct listen *listen, int fd, const struct err *why)
{
    _cleanup_(buf_release) struct buf buf = {0};
    if (msg_fail_encode(&buf, 0, why) == 0)
        (void)send(fd, buf.data, buf.length, MSG_NOSIGNAL); /* into an empty socket: all of it or nobody is there */
    (void)shutdown(fd, SHUT_WR);
    closep(&listen->leaving[listen->next]);
    listen->leaving[listen->next] = fd;
    listen->next = (listen->next + 1) % LEAVING_MAX;
}

void listen_refuse(struct listen *listen, const char *duck, const char *holder)
{
    int fd;
    char peer[LISTEN_PEER_MAX];
    while (listen_accept(listen, &fd, peer, NULL) == 0) {
        log_debug("duck", "%s was refused: busy with %s", peer, holder);
        struct err busy = {0};
        err_set(&busy, -EBUSY, ERR_BUSY, "duck %s is busy with %s", duck, holder);
        listen_send_away(listen, fd, &busy);
    }
}

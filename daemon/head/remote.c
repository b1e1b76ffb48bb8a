#include "daemon/head/remote.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/wire/transport_tcp.h"

struct remote {
    struct loop *loop;
    char address[256];
    remote_fn done;
    void *user;
    bool cancelled, looking_up; /* a lookup that runs is left to end by itself */
    struct addrinfo *found, *next;
    int fd; /* being connected; owned */
    struct loop_io *io;
    char why[ERR_MESSAGE_MAX]; /* of the last attempt */
};

static void remote_free(struct remote *remote)
{
    loop_io_free(remote->io);
    closep(&remote->fd);
    if (remote->found)
        freeaddrinfo(remote->found);
    free(remote);
}

static void finish(struct remote *remote, int fd)
{
    remote->done(remote->user, fd, remote->why);
    remote_free(remote);
}

static void try_next(struct remote *remote);

static void failed(struct remote *remote, int number)
{
    loop_io_free(remote->io);
    remote->io = NULL;
    closep(&remote->fd);
    snprintf(remote->why, sizeof remote->why, "connect to %s: %s", remote->address, strerror(number));
}

static void writable_now(void *user, bool readable, bool writable)
{
    (void)readable;
    (void)writable;
    struct remote *remote = user;
    int number = 0;
    socklen_t size = sizeof number;
    if (getsockopt(remote->fd, SOL_SOCKET, SO_ERROR, &number, &size) < 0)
        number = errno;
    if (number) {
        failed(remote, number);
        try_next(remote);
        return;
    }
    loop_io_free(remote->io);
    remote->io = NULL;
    finish(remote, STEAL_FD(remote->fd));
}

static int try_one(struct remote *remote, const struct addrinfo *at)
{
    remote->fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (remote->fd < 0)
        return -errno;
    if (connect(remote->fd, at->ai_addr, at->ai_addrlen) < 0 && errno != EINPROGRESS)
        return -errno;
    struct err err = {0};
    int r = loop_io_add(remote->loop, remote->fd, writable_now, remote, &remote->io, &err);
    if (r == 0)
        loop_io_want(remote->io, false, true);
    return r;
}

static void try_next(struct remote *remote)
{
    while (remote->next) {
        const struct addrinfo *at = remote->next;
        remote->next = at->ai_next;
        int r = try_one(remote, at);
        if (r == 0)
            return;
        failed(remote, -r);
    }
    finish(remote, -1);
}

/* Worker. */
static void look_up(void *user)
{
    struct remote *remote = user;
    char host[TRANSPORT_TCP_HOST_MAX], port[TRANSPORT_TCP_PORT_MAX];
    struct err err = {0};
    if (transport_tcp_split(remote->address, host, port, &err) < 0) {
        snprintf(remote->why, sizeof remote->why, "%s", err.message);
        return;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int r = getaddrinfo(host, port, &hints, &remote->found);
    if (r != 0)
        snprintf(remote->why, sizeof remote->why, "%s: %s", remote->address, gai_strerror(r));
    remote->next = remote->found;
}

static void looked_up(void *user)
{
    struct remote *remote = user;
    remote->looking_up = false;
    if (remote->cancelled)
        remote_free(remote);
    else
        try_next(remote);
}

struct remote *remote_connect(struct loop *loop, struct worker *names, const char *address, remote_fn done, void *user)
{
    struct remote *remote = calloc(1, sizeof *remote);
    if (!remote)
        abort(); /* a few hundred bytes */
    *remote = (struct remote){.loop = loop, .done = done, .user = user, .looking_up = true, .fd = -1};
    snprintf(remote->address, sizeof remote->address, "%s", address);
    worker_submit(names, look_up, looked_up, remote);
    return remote;
}

void remote_cancel(struct remote *remote)
{
    if (!remote)
        return;
    remote->cancelled = true;
    if (!remote->looking_up)
        remote_free(remote);
}

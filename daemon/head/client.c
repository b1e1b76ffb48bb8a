#include "daemon/head/client.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/base/buf.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "proto/control/rpc.h"

#define CLIENT_OUT_MAX (16u * 1024 * 1024) /* bytes waiting to be read by the client */
#define CLIENT_OUT_PAUSE (1024u * 1024)    /* a client with more waiting is not asked what else it wants */
#define CLIENT_READ_BYTES 16384            /* a turn's work, then other clients have theirs */
#define CLIENT_LINE_PATIENCE (20 * CLOCK_NS_PER_S)
#define CLIENT_TURN_LINES 8 /* handled in a row, then other clients have their turn */
#define CLIENT_GROUPS_MAX 1024
#define CLIENT_FDS_MAX 8 /* that arrived and whose line is not complete; more are closed */

struct out {
    struct out *next;
    char *line;
    size_t length, sent;
    int fds[CLIENT_SEND_FDS_MAX];
    size_t fd_count;
};

/* A descriptor that arrived. The read that brings it ends with the bytes it was sent with: the kernel lets none of later ones in. */
struct arrived {
    int fd;         /* owned */
    uint64_t until; /* end of that read, in bytes of the connection */
};

struct client {
    struct loop *loop;
    uint64_t id;
    int fd;
    bool admin, broken;
    uid_t uid;
    pid_t pid;
    struct client_callbacks callbacks;
    struct loop_io *io;
    struct loop_timer *again; /* rings at once when lines are left of a turn */
    bool left;                /* they are */
    struct buf in;
    size_t scanned;                     /* bytes of `in` known to hold no newline */
    struct arrived fds[CLIENT_FDS_MAX]; /* oldest first */
    size_t fd_count;
    uint64_t received, consumed; /* bytes of the connection: read; handled as lines */
    struct out *first, **last;
    size_t out_bytes;
    uint32_t unanswered;
    uint64_t half_ns; /* since when half a line waits for the rest; 0: none does */
};

static bool in_group(int fd, gid_t primary, const char *name)
{
    const struct group *group = *name ? getgrnam(name) : NULL;
    if (!group)
        return false;
    if (primary == group->gr_gid)
        return true;
    gid_t groups[CLIENT_GROUPS_MAX];
    socklen_t size = sizeof groups;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) < 0)
        return false;
    for (size_t i = 0; i < size / sizeof *groups; i++)
        if (groups[i] == group->gr_gid)
            return true;
    return false;
}

static void client_event(void *user, bool readable, bool writable);
static void next_turn(void *user);

int client_new(struct loop *loop, int fd, uint64_t id, const char *admin_group, const struct client_callbacks *callbacks,
               struct client **ret_client, struct err *err)
{
    _cleanup_(client_freep) struct client *client = calloc(1, sizeof *client);
    if (!client) {
        close(fd);
        return err_no_memory(err, "client", sizeof *client);
    }
    *client = (struct client){.loop = loop, .id = id, .fd = fd, .callbacks = *callbacks, .last = &client->first};
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return err_errno(err, "client: SO_PEERCRED");
    client->uid = peer.uid;
    client->pid = peer.pid;
    client->admin = peer.uid == 0 || peer.uid == geteuid() || in_group(fd, peer.gid, admin_group);
    int r = loop_io_add(loop, fd, client_event, client, &client->io, err);
    if (r == 0)
        r = loop_timer_new(loop, next_turn, client, &client->again, err);
    if (r < 0)
        return r;
    *ret_client = STEAL(client);
    return 0;
}

static void close_fds(struct out *out)
{
    while (out->fd_count)
        closep(&out->fds[--out->fd_count]);
}

static void out_free(struct out *out)
{
    close_fds(out);
    free(out->line);
    free(out);
}

void client_free(struct client *client)
{
    if (!client)
        return;
    while (client->first) {
        struct out *next = client->first->next;
        out_free(client->first);
        client->first = next;
    }
    for (size_t i = 0; i < client->fd_count; i++)
        close(client->fds[i].fd);
    loop_io_free(client->io);
    loop_timer_free(client->again);
    closep(&client->fd);
    buf_release(&client->in);
    free(client);
}

uint64_t client_id(const struct client *client)
{
    return client->id;
}

uid_t client_uid(const struct client *client)
{
    return client->uid;
}

pid_t client_pid(const struct client *client)
{
    return client->pid;
}

bool client_is_admin(const struct client *client)
{
    return client->admin;
}

static ssize_t send_out(int fd, const struct out *out)
{
    struct iovec part = {.iov_base = out->line + out->sent, .iov_len = out->length - out->sent};
    union {
        char bytes[CMSG_SPACE(CLIENT_SEND_FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (out->fd_count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(out->fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(out->fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), out->fds, out->fd_count * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void watch(struct client *client)
{
    bool listens = !client->left && client->out_bytes <= CLIENT_OUT_PAUSE;
    loop_io_want(client->io, client->broken || listens, client->first != NULL);
}

/* What cannot be sent to a broken client is dropped; its end is noticed by the next read. */
static void flush(struct client *client)
{
    while (client->first) {
        struct out *out = client->first;
        ssize_t n = client->broken ? -1 : send_out(client->fd, out);
        if (n < 0 && !client->broken) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN)
                break;
            client->broken = true;
        }
        if (n > 0) {
            close_fds(out);
            out->sent += (size_t)n;
        }
        if (!client->broken && out->sent < out->length)
            continue;
        client->out_bytes -= out->length;
        client->first = out->next;
        if (!client->first)
            client->last = &client->first;
        out_free(out);
    }
    watch(client);
}

void client_send(struct client *client, char *line, size_t length, const int *fds, size_t fd_count)
{
    struct out *out = calloc(1, sizeof *out);
    if (!out)
        abort();
    *out = (struct out){.line = line, .length = length};
    bool good = fd_count <= CLIENT_SEND_FDS_MAX;
    for (size_t i = 0; good && i < fd_count; i++) {
        out->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        good = out->fds[i] >= 0;
        out->fd_count += good;
    }
    if (!good || client->broken || length > CLIENT_OUT_MAX - client->out_bytes) {
        /* Half an answer would be worse than none: the connection ends. */
        out_free(out);
        client->broken = true;
        shutdown(client->fd, SHUT_RDWR);
        return;
    }
    *client->last = out;
    client->last = &out->next;
    client->out_bytes += length;
    flush(client);
}

int client_take_fd(struct client *client)
{
    if (!client->fd_count)
        return -1;
    int fd = client->fds[0].fd;
    memmove(&client->fds[0], &client->fds[1], --client->fd_count * sizeof client->fds[0]);
    return fd;
}

/* Those whose lines are handled: nobody has taken them. */
static void close_passed(struct client *client)
{
    while (client->fd_count && client->fds[0].until <= client->consumed)
        close(client_take_fd(client));
}

static void keep_fd(struct client *client, int fd, size_t read_bytes)
{
    if (client->admin && client->fd_count < CLIENT_FDS_MAX)
        client->fds[client->fd_count++] = (struct arrived){.fd = fd, .until = client->received + read_bytes};
    else
        close(fd);
}

/* Reads once. */
static ssize_t receive(struct client *client)
{
    union {
        char bytes[CMSG_SPACE(253 * sizeof(int))]; /* SCM_MAX_FD */
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = client->in.data + client->in.length, .iov_len = CLIENT_READ_BYTES};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(client->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0)
        return n;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            keep_fd(client, fd, (size_t)n);
        }
    }
    client->received += (uint64_t)n;
    return n;
}

/* Hands over whole lines, until one's answer has to wait for the client to read. False when one is longer than allowed. */
static bool take_lines(struct client *client)
{
    client->left = false;
    for (unsigned lines = 0; !client->broken && client->out_bytes <= CLIENT_OUT_PAUSE; lines++) {
        uint8_t *newline = client->in.length > client->scanned
                               ? memchr(client->in.data + client->scanned, '\n', client->in.length - client->scanned)
                               : NULL;
        if (!newline) {
            client->scanned = client->in.length;
            client->half_ns = !client->in.length ? 0 : client->half_ns ? client->half_ns : clock_now_ns();
            watch(client);
            return client->in.length < RPC_LINE_MAX;
        }
        client->half_ns = 0;
        if (lines == CLIENT_TURN_LINES) {
            client->left = true;
            loop_timer_set(client->again, 0);
            break;
        }
        size_t length = (size_t)(newline - client->in.data);
        client->consumed += length + 1;
        if (length)
            client->callbacks.line(client->callbacks.user, client->id, (const char *)client->in.data, length);
        close_passed(client);
        buf_consume(&client->in, length + 1);
        client->scanned = 0;
    }
    watch(client);
    return true;
}

static void next_turn(void *user)
{
    take_lines(user); /* a line that is too long is found by the next read */
}

/* Says why; the connection is to be closed then. */
static void complain(struct client *client, const struct err *err)
{
    json_t *null = json_null();
    size_t length;
    char *line = rpc_reply_error(null, err, &length);
    if (line)
        client_send(client, line, length, NULL, 0);
}

static void client_event(void *user, bool readable, bool writable)
{
    struct client *client = user;
    if (writable) {
        flush(client);
        next_turn(client); /* of those that waited */
    }
    if (!readable || ((client->left || client->out_bytes > CLIENT_OUT_PAUSE) && !client->broken))
        return;
    /* What a client that is gone has asked for before, thousands of lines perhaps, is nobody's wish any more. */
    if (!client->broken && buf_reserve(&client->in, CLIENT_READ_BYTES, RPC_LINE_MAX + CLIENT_READ_BYTES) == 0) {
        ssize_t n = receive(client);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n > 0) {
            client->in.length += (size_t)n;
            if (take_lines(client))
                return;
            struct err err = {0};
            err_set(&err, -EMSGSIZE, ERR_BAD_REQUEST, "a line of more than %d bytes; the connection is closed", RPC_LINE_MAX);
            complain(client, &err);
        }
    }
    client->callbacks.closed(client->callbacks.user, client->id);
}

bool client_tick(struct client *client, uint64_t now)
{
    if (!client->half_ns || now < client->half_ns + CLIENT_LINE_PATIENCE)
        return true;
    struct err err = {0};
    err_set(&err, -ETIMEDOUT, ERR_BAD_REQUEST, "half a line of %zu byte%s waited for its end for %d s; the connection is closed",
            client->in.length, size_plural(client->in.length), (int)(CLIENT_LINE_PATIENCE / CLOCK_NS_PER_S));
    complain(client, &err);
    return false;
}

void client_asked(struct client *client)
{
    client->unanswered++;
}

void client_answered(struct client *client)
{
    client->unanswered--;
}

uint32_t client_unanswered(const struct client *client)
{
    return client->unanswered;
}

size_t client_waiting_bytes(const struct client *client)
{
    return client->out_bytes;
}

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/cleanup.h"
#include "proto/client/core.h"
#include "proto/client/ring.h"
#include "proto/client/session.h"

#define READ_BYTES 65536

int conn_error(struct fp9_error *error, const struct err *err)
{
    if (error) {
        *error = (struct fp9_error){.code = err->code};
        snprintf(error->name, sizeof error->name, "%s", err_name_text(err->name));
        snprintf(error->message, sizeof error->message, "%s", err->message);
        snprintf(error->values, sizeof error->values, "{%s}", err->values);
    }
    return err->code;
}

static int connect_to(const char *path, int *ret_fd, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return err_set(err, -ENAMETOOLONG, ERR_BAD_REQUEST, "socket %s: %zu bytes, a socket's path has at most %zu", path, strlen(path),
                       sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(err, "socket");
    int r;
    do
        r = connect(fd, (struct sockaddr *)&address, sizeof address);
    while (r < 0 && errno == EINTR);
    if (r < 0) {
        struct stat st;
        bool absent = errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR || errno == EPROTOTYPE;
        int number = errno;
        if (absent && stat(path, &st) == 0 && (!S_ISSOCK(st.st_mode) || number == EPROTOTYPE))
            return err_set(err, -ECONNREFUSED, ERR_NOT_READY, "no fp9d at %s: it is no stream socket", path);
        errno = number;
        err_errno(err, absent ? "no fp9d at %s" : "fp9d at %s cannot be reached", path);
        if (absent)
            err->name = ERR_NOT_READY;
        return err->code;
    }
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int fp9_adopt(int fd, struct fp9_conn **ret_conn, struct fp9_error *error)
{
    struct fp9_conn *conn = core_new();
    if (!conn) {
        struct err err = {0};
        close(fd);
        err_no_memory(&err, "a connection", sizeof *conn);
        return conn_error(error, &err);
    }
    conn->fd = fd;
    *ret_conn = conn;
    return 0;
}

int fp9_connect(const char *path, struct fp9_conn **ret_conn, struct fp9_error *error)
{
    struct err err = {0};
    int fd = -1;
    if (!path)
        path = getenv("FP9_SOCKET");
    if (!path || !*path)
        path = FP9_SOCKET_DEFAULT;
    if (connect_to(path, &fd, &err))
        return conn_error(error, &err);
    int r = fp9_adopt(fd, ret_conn, error);
    if (r == 0)
        snprintf((*ret_conn)->path, sizeof (*ret_conn)->path, "%s", path);
    return r;
}

void fp9_close(struct fp9_conn *conn)
{
    if (conn)
        session_orphan(conn);
    core_free(conn);
}

int fp9_fd(const struct fp9_conn *conn)
{
    return conn->fd;
}

void fp9_on_notification(struct fp9_conn *conn, fp9_notification function, void *userdata)
{
    conn->on_notification = function;
    conn->userdata = userdata;
}

static int send_some(struct fp9_conn *conn, struct err *err)
{
    while (conn->out.length) {
        ssize_t n = send(conn->fd, conn->out.data, conn->out.length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            buf_consume(&conn->out, (size_t)n);
        } else if (errno == EAGAIN) {
            return 0;
        } else if (errno == EPIPE) {
            /* Why it was closed may still be there to read; otherwise receiving finds the end. */
            buf_consume(&conn->out, conn->out.length);
        } else if (errno != EINTR) {
            return err_errno(err, "cannot send to fp9d");
        }
    }
    return 0;
}

/* Room for more descriptors than one answer has, so that a surplus is seen and closed and nothing is cut. */
union control {
    char bytes[CMSG_SPACE(253 * sizeof(int))]; /* SCM_MAX_FD */
    struct cmsghdr align;
};

static size_t collect_fds(struct msghdr *message, int fds[253])
{
    size_t count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (count < 253)
                fds[count++] = fd;
            else
                close(fd);
        }
    }
    return count;
}

static int receive(struct fp9_conn *conn, int flags, struct err *err)
{
    uint8_t data[READ_BYTES];
    union control control;
    struct iovec part = {.iov_base = data, .iov_len = sizeof data};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(conn->fd, &message, MSG_CMSG_CLOEXEC | flags);
    if (n < 0) {
        if (errno == EINTR || errno == EAGAIN)
            return 0;
        if (errno != ECONNRESET)
            return err_errno(err, "cannot receive from fp9d");
        n = 0; /* closed with bytes of ours unread: the end like any other */
    }
    int fds[253];
    size_t count = collect_fds(&message, fds);
    /* MSG_CTRUNC here means this process is out of descriptors: the answer then lacks its arena, which session.open reports. */
    return core_input(conn, data, (size_t)n, fds, count, err);
}

/* One round of sending and receiving. Waits for input by reading when all is sent, which saves a poll() per call. */
static int exchange(struct fp9_conn *conn, struct err *err)
{
    int r = send_some(conn, err);
    if (r)
        return r;
    if (!conn->out.length)
        return receive(conn, 0, err);
    struct pollfd wait = {.fd = conn->fd, .events = POLLIN | POLLOUT};
    if (poll(&wait, 1, -1) < 0 && errno != EINTR)
        return err_errno(err, "poll");
    return wait.revents & (POLLIN | POLLHUP | POLLERR) ? receive(conn, MSG_DONTWAIT, err) : 0;
}

int conn_socket(const struct fp9_conn *conn, struct err *err)
{
    return conn->fd >= 0 ? 0 : err_set(err, -ENOTCONN, ERR_BAD_REQUEST, "the connection has no socket");
}

void conn_until(struct fp9_conn *conn, uint64_t id)
{
    const struct core_call *call = core_find(conn, id);
    while (call && !call->done && !conn->broken.code) {
        struct err reason = {0};
        if (exchange(conn, &reason) != 0)
            core_break(conn, &reason); /* core_answer gives it to every call */
    }
}

int conn_call(struct fp9_conn *conn, const char *method, json_t *params, json_t **ret_result, int *ret_fd, struct err *err)
{
    uint64_t id = 0;
    int r = conn_socket(conn, err);
    if (r) {
        json_decref(params);
        return r;
    }
    r = core_request(conn, method, params, &id, err);
    if (r)
        return r;
    conn_until(conn, id);
    return core_answer(conn, id, ret_result, ret_fd, err);
}

/* The first bytes of what is queued, with the descriptor. */
static int send_first(struct fp9_conn *conn, int fd, struct err *err)
{
    struct iovec part = {.iov_base = conn->out.data, .iov_len = conn->out.length};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } beside = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = beside.bytes, .msg_controllen = sizeof beside.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    ssize_t n;
    do
        n = sendmsg(conn->fd, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_errno(err, "cannot send descriptor %d to fp9d", fd);
    buf_consume(&conn->out, (size_t)n);
    return 0;
}

int conn_call_fd(struct fp9_conn *conn, const char *method, json_t *params, int fd, json_t **ret_result, struct err *err)
{
    uint64_t id = 0;
    int r = conn_socket(conn, err);
    if (r == 0 && !conn->broken.code)
        r = send_some(conn, err);
    if (r == 0 && conn->out.length)
        r = err_set(err, -EBUSY, ERR_BUSY, "%zu bytes of other requests are not sent yet", conn->out.length);
    if (r) {
        json_decref(params);
        return r;
    }
    r = core_request(conn, method, params, &id, err);
    if (r)
        return r;
    r = send_first(conn, fd, err);
    if (r) { /* nothing of it has left: the connection is as it was */
        buf_consume(&conn->out, conn->out.length);
        *core_find(conn, id) = (struct core_call){.fd = -1, .doorbell = -1};
        return r;
    }
    conn_until(conn, id);
    return core_answer(conn, id, ret_result, NULL, err);
}

int fp9_process(struct fp9_conn *conn, int timeout_ms, struct fp9_error *error)
{
    struct err reason = {0};
    if (conn_socket(conn, &reason))
        return conn_error(error, &reason);
    if (conn->broken.code)
        return conn_error(error, &conn->broken);
    int r = send_some(conn, &reason);
    if (!ring_arm(conn))
        timeout_ms = 0; /* something has happened */
    struct pollfd wait = {.fd = conn->fd, .events = conn->out.length ? POLLIN | POLLOUT : POLLIN};
    if (r == 0 && poll(&wait, 1, timeout_ms) < 0 && errno != EINTR)
        r = err_errno(&reason, "poll");
    if (r == 0 && wait.revents & POLLOUT)
        r = send_some(conn, &reason);
    if (r == 0 && wait.revents & (POLLIN | POLLHUP | POLLERR))
        r = receive(conn, MSG_DONTWAIT, &reason);
    ring_collect(conn);
    if (r == 0)
        return 0;
    core_break(conn, &reason);
    return conn_error(error, &conn->broken);
}

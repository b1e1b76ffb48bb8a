#include "proto/client/core.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/cleanup.h"
#include "proto/control/rpc_line.h"

#define OUT_MAX ((size_t)RPC_LINE_MAX * 4) /* bytes queued and not sent */

struct fp9_conn *core_new(void)
{
    struct fp9_conn *conn = calloc(1, sizeof *conn);
    if (!conn)
        return NULL;
    conn->fd = -1;
    for (size_t i = 0; i < RPC_INFLIGHT_MAX; i++)
        conn->calls[i].fd = conn->calls[i].doorbell = -1;
    return conn;
}

void core_clear(struct core_call *call)
{
    json_decref(call->result);
    json_decref(call->error);
    free(call->opening);
    closep(&call->fd);
    closep(&call->doorbell);
    *call = (struct core_call){.fd = -1, .doorbell = -1};
}

void core_free(struct fp9_conn *conn)
{
    if (!conn)
        return;
    for (size_t i = 0; i < RPC_INFLIGHT_MAX; i++)
        core_clear(&conn->calls[i]);
    for (size_t i = 0; i < conn->fd_count; i++)
        close(conn->fds[i]);
    buf_release(&conn->in);
    buf_release(&conn->out);
    if (conn->fd >= 0)
        close(conn->fd);
    free(conn);
}

struct core_call *core_find(struct fp9_conn *conn, uint64_t id)
{
    for (size_t i = 0; i < RPC_INFLIGHT_MAX; i++)
        if (conn->calls[i].id == id)
            return &conn->calls[i];
    return NULL;
}

int core_request(struct fp9_conn *conn, const char *method, json_t *params, uint64_t *ret_id, struct err *err)
{
    json_t *message = json_pack("{s:s,s:I,s:s,s:o}", "jsonrpc", "2.0", "id", (json_int_t)(conn->last_id + 1), "method", method, "params",
                                params ? params : json_object());
    if (!message)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "the request cannot be written: method or params are no JSON");
    char *line = json_dumps(message, JSON_COMPACT);
    json_decref(message);
    if (!line)
        return err_no_memory(err, "a request", 0);
    int r = 0;
    size_t length = strlen(line);
    struct core_call *call = core_find(conn, 0);
    if (conn->broken.code) {
        err_copy(err, &conn->broken);
        r = conn->broken.code;
    } else if (!call) {
        r = err_set(err, -EBUSY, ERR_BUSY, "%d calls are waiting for their answers already", RPC_INFLIGHT_MAX);
    } else if (length + 1 > RPC_LINE_MAX) {
        r = err_set(err, -EMSGSIZE, ERR_BAD_REQUEST, "the request has %zu bytes, a line holds %d", length + 1, RPC_LINE_MAX);
    } else {
        line[length] = '\n'; /* in the place of the NUL */
        r = buf_append(&conn->out, line, length + 1, OUT_MAX);
        if (r)
            err_set(err, r, ERR_NO_MEMORY, "no room for a request of %zu bytes beside %zu not sent yet", length + 1, conn->out.length);
    }
    free(line);
    if (r)
        return r;
    call->id = ++conn->last_id;
    call->wants_fd = strcmp(method, "session.open") == 0;
    *ret_id = call->id;
    return 0;
}

int core_call_new(struct fp9_conn *conn, uint64_t *ret_id, struct err *err)
{
    struct core_call *call = core_find(conn, 0);
    if (conn->broken.code) {
        err_copy(err, &conn->broken);
        return conn->broken.code;
    }
    if (!call)
        return err_set(err, -EBUSY, ERR_BUSY, "%d calls are waiting for their answers already", RPC_INFLIGHT_MAX);
    call->id = *ret_id = ++conn->last_id;
    return 0;
}

int core_break(struct fp9_conn *conn, struct err *reason)
{
    reason->name = ERR_INTERNAL;
    if (reason->code >= 0)
        reason->code = -EPROTO;
    if (!conn->broken.code) {
        if (conn->path[0])
            err_prefix(reason, "socket %s", conn->path);
        conn->broken = *reason;
    }
    return conn->broken.code;
}

void core_forget(struct fp9_conn *conn, struct core_call *call)
{
    if (call->done || conn->broken.code)
        core_clear(call);
    else
        call->forgotten = true;
}

static int notify(struct fp9_conn *conn, const char *method, const json_t *params)
{
    /* Only to wake whoever polls the connection: ring_collect() finds what it tells of. */
    if (!conn->on_notification || strcmp(method, "ring.completed") == 0)
        return 0;
    char *text = params ? json_dumps(params, JSON_COMPACT) : strdup("{}");
    if (!text)
        return -ENOMEM;
    conn->on_notification(conn->userdata, method, text);
    free(text);
    return 0;
}

void core_done(struct fp9_conn *conn, struct core_call *call)
{
    call->done = true;
    call->serial = ++conn->last_serial;
}

static int next_fd(struct fp9_conn *conn)
{
    int fd = conn->fds[0];
    memmove(conn->fds, conn->fds + 1, --conn->fd_count * sizeof conn->fds[0]);
    return fd;
}

static int take_answer(struct fp9_conn *conn, json_t *message, struct err *err)
{
    json_t *id = json_object_get(message, "id"), *result = json_object_get(message, "result"), *error = json_object_get(message, "error");
    if (!result == !error || (error && !json_is_object(error)))
        return err_set(err, -EPROTO, ERR_INTERNAL, "an answer without exactly one of result and error");
    if (error && json_is_null(id)) {
        /* fp9d could not even read a request: nobody knows which. */
        rpc_error_from_json(error, err);
        return err_prefix(err, "fp9d refused a line");
    }
    struct core_call *call = json_is_integer(id) && json_integer_value(id) > 0 ? core_find(conn, (uint64_t)json_integer_value(id)) : NULL;
    if (!call || call->done)
        return err_set(err, -EPROTO, ERR_INTERNAL, "an answer to a call that does not wait for one");
    core_done(conn, call);
    call->result = json_incref(result);
    call->error = json_incref(error);
    if (call->wants_fd && result && conn->fd_count) {
        call->fd = next_fd(conn);
        if (json_is_object(json_object_get(result, "ring")) && conn->fd_count)
            call->doorbell = next_fd(conn);
    }
    if (call->forgotten)
        core_clear(call);
    return 0;
}

static int take_line(struct fp9_conn *conn, const char *line, size_t length, struct err *err)
{
    json_t *message;
    int r = rpc_line_parse(line, length, &message, NULL, err);
    if (r)
        return err_prefix(err, "fp9d's answer");
    const char *method = json_string_value(json_object_get(message, "method"));
    if (method && !json_object_get(message, "id"))
        r = notify(conn, method, json_object_get(message, "params")) ? err_no_memory(err, "a notification", length) : 0;
    else
        r = take_answer(conn, message, err);
    json_decref(message);
    return r;
}

static bool fd_wanted(const struct fp9_conn *conn)
{
    for (size_t i = 0; i < RPC_INFLIGHT_MAX; i++)
        if (conn->calls[i].wants_fd && !conn->calls[i].done)
            return true;
    return false;
}

/* Descriptors come with the first byte of their line at the latest, so they are kept before the bytes are looked at. */
static void keep_fds(struct fp9_conn *conn, const int *fds, size_t count)
{
    bool wanted = fd_wanted(conn);
    for (size_t i = 0; i < count; i++) {
        if (wanted && conn->fd_count < CORE_FDS_MAX)
            conn->fds[conn->fd_count++] = fds[i];
        else
            close(fds[i]);
    }
}

static int take_bytes(struct fp9_conn *conn, const void *data, size_t length, struct err *err)
{
    if (conn->broken.code) {
        *err = conn->broken;
        return err->code;
    }
    if (length == 0)
        return err_set(err, -ECONNRESET, ERR_INTERNAL, "fp9d closed the connection");
    int r = buf_append(&conn->in, data, length, RPC_LINE_MAX + length);
    if (r)
        return err_no_memory(err, "an answer", length);
    size_t done = 0;
    for (;;) {
        const uint8_t *from = conn->in.data + done + conn->scanned;
        const uint8_t *newline = memchr(from, '\n', conn->in.length - done - conn->scanned);
        if (!newline)
            break;
        size_t line_length = (size_t)(newline - (conn->in.data + done)) + 1;
        r = take_line(conn, (const char *)conn->in.data + done, line_length, err);
        if (r)
            return r;
        done += line_length;
        conn->scanned = 0;
    }
    buf_consume(&conn->in, done);
    conn->scanned = conn->in.length;
    if (conn->in.length >= RPC_LINE_MAX)
        return err_set(err, -EPROTO, ERR_INTERNAL, "fp9d's answer is longer than %d bytes", RPC_LINE_MAX);
    return 0;
}

int core_input(struct fp9_conn *conn, const void *data, size_t length, const int *fds, size_t fd_count, struct err *err)
{
    struct err reason = {0};
    keep_fds(conn, fds, fd_count);
    int r = take_bytes(conn, data, length, &reason);
    if (r) {
        r = core_break(conn, &reason);
        err_copy(err, &conn->broken);
    }
    if (!fd_wanted(conn)) {
        for (size_t i = 0; i < conn->fd_count; i++)
            close(conn->fds[i]);
        conn->fd_count = 0;
    }
    return r;
}

int core_answer(struct fp9_conn *conn, uint64_t id, json_t **ret_result, int *ret_fd, struct err *err)
{
    struct core_call *call = id ? core_find(conn, id) : NULL;
    if (!call || call->forgotten)
        return err_set(err, -ENOENT, ERR_NO_SUCH, "no call %llu is waiting", (unsigned long long)id);
    if (!call->done && !conn->broken.code)
        return -EAGAIN;
    int r = 0;
    if (!call->done) {
        err_copy(err, &conn->broken);
        r = conn->broken.code;
    } else if (call->error) {
        struct err reason = {0};
        rpc_error_from_json(call->error, &reason);
        /* -EAGAIN means "no answer yet" here. */
        if (reason.code == -EAGAIN)
            reason.code = -ENODATA;
        err_copy(err, &reason);
        r = reason.code;
    } else {
        if (ret_result)
            *ret_result = STEAL(call->result);
        if (ret_fd)
            *ret_fd = STEAL_FD(call->fd);
    }
    core_clear(call);
    return r;
}

/* Calls as text, waiting or not. */
#include <errno.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/client/core.h"
#include "proto/client/ring.h"

static json_t *params_of(const char *text, struct err *err)
{
    json_error_t json_error;
    json_t *params = text ? json_loads(text, JSON_REJECT_DUPLICATES, &json_error) : json_object();
    if (!params) {
        err_set(err, -EINVAL, ERR_BAD_REQUEST, "params: %s", text ? json_error.text : "out of memory");
        return NULL;
    }
    if (!json_is_object(params)) {
        json_decref(params);
        err_set(err, -EINVAL, ERR_BAD_REQUEST, "params are no JSON object");
        return NULL;
    }
    return params;
}

static int text_of(json_t *result, char **ret_text, struct err *err)
{
    char *text = json_dumps(result, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    json_decref(result);
    if (!text)
        return err_no_memory(err, "a result", 0);
    *ret_text = text;
    return 0;
}

int fp9_call(struct fp9_conn *conn, const char *method, const char *params, char **ret_result, struct fp9_error *error)
{
    struct err err = {0};
    json_t *object = params_of(params, &err), *result = NULL;
    if (!object)
        return conn_error(error, &err);
    int r = conn_call(conn, method, object, &result, NULL, &err);
    if (r == 0 && ret_result)
        r = text_of(STEAL(result), ret_result, &err);
    json_decref(result);
    return r ? conn_error(error, &err) : 0;
}

int fp9_call_fd(struct fp9_conn *conn, const char *method, const char *params, int fd, char **ret_result, struct fp9_error *error)
{
    struct err err = {0};
    json_t *object = params_of(params, &err), *result = NULL;
    if (!object)
        return conn_error(error, &err);
    int r = conn_call_fd(conn, method, object, fd, &result, &err);
    if (r == 0 && ret_result)
        r = text_of(STEAL(result), ret_result, &err);
    json_decref(result);
    return r ? conn_error(error, &err) : 0;
}

struct fp9_conn *fp9_new(void)
{
    return core_new();
}

int fp9_request(struct fp9_conn *conn, const char *method, const char *params, uint64_t *ret_id, struct fp9_error *error)
{
    struct err err = {0};
    json_t *object = params_of(params, &err);
    if (!object || core_request(conn, method, object, ret_id, &err))
        return conn_error(error, &err);
    return 0;
}

const void *fp9_output(const struct fp9_conn *conn, size_t *ret_length)
{
    *ret_length = conn->out.length;
    return conn->out.data;
}

void fp9_output_sent(struct fp9_conn *conn, size_t length)
{
    buf_consume(&conn->out, length);
}

int fp9_input(struct fp9_conn *conn, const void *data, size_t length, const int *fds, size_t fd_count, struct fp9_error *error)
{
    struct err err = {0};
    return core_input(conn, data, length, fds, fd_count, &err) ? conn_error(error, &err) : 0;
}

int fp9_answer(struct fp9_conn *conn, uint64_t id, char **ret_result, int *ret_fd, struct fp9_error *error)
{
    struct err err = {0};
    json_t *result = NULL;
    int fd = -1, r = core_answer(conn, id, &result, &fd, &err);
    if (r == -EAGAIN)
        return r;
    if (r == 0 && ret_result)
        r = text_of(STEAL(result), ret_result, &err);
    json_decref(result);
    if (r == 0 && ret_fd)
        *ret_fd = STEAL_FD(fd);
    closep(&fd);
    return r ? conn_error(error, &err) : 0;
}

uint64_t fp9_next_answer(const struct fp9_conn *conn)
{
    const struct core_call *first = NULL;
    ring_collect((struct fp9_conn *)conn); /* what the memory shared with fp9d says already */
    for (size_t i = 0; i < RPC_INFLIGHT_MAX; i++) {
        const struct core_call *call = &conn->calls[i];
        /* A broken connection answers all that is left, oldest first, after what was answered before. */
        if (!call->id || call->forgotten || (!call->done && !conn->broken.code))
            continue;
        if (!first || (call->done ? !first->done || call->serial < first->serial : !first->done && call->id < first->id))
            first = call;
    }
    return first ? first->id : 0;
}

void fp9_forget(struct fp9_conn *conn, uint64_t id)
{
    struct core_call *call = id ? core_find(conn, id) : NULL;
    if (call)
        core_forget(conn, call);
}

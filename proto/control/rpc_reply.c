#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/control/rpc.h"

#define CODE_PARSE (-32700)
#define CODE_REQUEST (-32600)
#define CODE_METHOD (-32601)
#define CODE_PARAMS (-32602)
#define CODE_OWN (-32000)

#define WRITE_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(12))

json_t *rpc_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* Takes `message`; NULL in, NULL out. */
static char *line_of(json_t *message, size_t *ret_length)
{
    size_t length = message ? json_dumpb(message, NULL, 0, WRITE_FLAGS) : 0;
    char *line = length ? malloc(length + 2) : NULL;
    if (line) {
        json_dumpb(message, line, length, WRITE_FLAGS);
        line[length] = '\n';
        line[length + 1] = '\0';
        *ret_length = length + 1;
    }
    json_decref(message);
    return line;
}

char *rpc_reply_result(const json_t *id, json_t *result, size_t *ret_length)
{
    size_t length = 0;
    char *line = line_of(json_pack("{s:s,s:O,s:O}", "jsonrpc", "2.0", "id", (json_t *)id, "result", result), &length);
    if (line && length > RPC_LINE_MAX) {
        free(line);
        struct err err = {0};
        err_set(&err, -EMSGSIZE, ERR_INTERNAL, "the answer has %zu bytes, a line holds %d", length, RPC_LINE_MAX);
        return rpc_reply_error(id, &err, ret_length);
    }
    if (line)
        *ret_length = length;
    return line;
}

char *rpc_reply_error(const json_t *id, const struct err *err, size_t *ret_length)
{
    return line_of(json_pack("{s:s,s:O,s:o}", "jsonrpc", "2.0", "id", (json_t *)id, "error", rpc_error_json(err)), ret_length);
}

char *rpc_notification(const char *method, json_t *params, size_t *ret_length)
{
    return line_of(json_pack("{s:s,s:s,s:O}", "jsonrpc", "2.0", "method", method, "params", params), ret_length);
}

static int code_of(const struct err *err)
{
    if (err->name != ERR_BAD_REQUEST)
        return CODE_OWN - (int)err->name;
    switch (err->code) {
    case -EBADMSG: return CODE_PARSE;
    case -EPROTO: return CODE_REQUEST;
    case -ENOSYS: return CODE_METHOD;
    default: return CODE_PARAMS;
    }
}

/* A message may hold a file's bytes: whatever is no UTF-8 becomes '?'. */
static json_t *text_of(const char *text)
{
    json_t *string = json_string(text);
    if (string)
        return string;
    char plain[ERR_MESSAGE_MAX];
    size_t i = 0;
    for (; text[i] && i < sizeof plain - 1; i++)
        plain[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
    plain[i] = '\0';
    return json_string(plain);
}

json_t *rpc_error_json(const struct err *err)
{
    char text[ERR_VALUES_MAX + 2];
    snprintf(text, sizeof text, "{%s}", err->values);
    json_t *data = json_loads(text, 0, NULL);
    if (!data)
        data = json_object(); /* the sentence has the values too */
    /* A value must not hide the name: set last. */
    if (data && json_object_set_new(data, "name", json_string(err_name_text(err->name))) != 0) {
        json_decref(data);
        return NULL;
    }
    return json_pack("{s:i,s:o,s:o}", "code", code_of(err), "message", text_of(err->message), "data", data);
}

static int errno_of(enum err_name name, json_int_t code)
{
    switch (name) {
    case ERR_BAD_REQUEST: return code == CODE_PARSE ? -EBADMSG : code == CODE_REQUEST ? -EPROTO : code == CODE_METHOD ? -ENOSYS : -EINVAL;
    case ERR_BAD_SHAPE:
    case ERR_BAD_DTYPE:
    case ERR_BAD_EXPERT: return -EINVAL;
    case ERR_NO_SUCH: return -ENOENT;
    case ERR_NOT_READY: return -EAGAIN;
    case ERR_BUSY: return -EBUSY;
    case ERR_DENIED: return -EACCES;
    case ERR_NO_MEMORY: return -ENOMEM;
    case ERR_UNSUPPORTED_MODEL: return -ENOTSUP;
    case ERR_BAD_CHECKPOINT: return -EBADMSG;
    case ERR_CACHE_STALE: return -ESTALE;
    case ERR_DUCK_LOST: return -ENOTCONN;
    case ERR_DEADLINE: return -ETIMEDOUT;
    case ERR_CANCELLED: return -ECANCELED;
    case ERR_INTERNAL:
    case ERR_NAME_COUNT_: break;
    }
    return -EIO;
}

void rpc_error_from_json(const json_t *error, struct err *ret_err)
{
    const json_t *data = json_object_get(error, "data");
    const char *message = json_string_value(json_object_get(error, "message"));
    const char *text = json_string_value(json_object_get(data, "name"));
    enum err_name name = ERR_INTERNAL;
    if (!text || !err_name_parse(text, &name))
        name = ERR_INTERNAL;
    err_set(ret_err, errno_of(name, json_integer_value(json_object_get(error, "code"))), name, "%s",
            message ? message : "an error without a message");
    json_t *values = json_copy((json_t *)data);
    if (!values)
        return;
    json_object_del(values, "name");
    char *dump = json_dumps(values, WRITE_FLAGS);
    size_t length = dump ? strlen(dump) : 0;
    /* Without its braces; what does not fit is left out, the sentence has it. */
    if (length >= 2 && length - 2 < sizeof ret_err->values) {
        memcpy(ret_err->values, dump + 1, length - 2);
        ret_err->values[length - 2] = '\0';
    }
    free(dump);
    json_decref(values);
}

int rpc_errno_of(enum err_name name)
{
    return errno_of(name, CODE_PARAMS);
}

/* JSON-RPC 2.0 over a stream, one object a line: parsing, validation against the schema, replies. No I/O.
 *
 * Used by fp9d (requests in, replies out) and by libfp9 (the reverse). */
#ifndef FP9_CONTROL_RPC_H
#define FP9_CONTROL_RPC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"
#include "proto/control/schema.h"

#define RPC_LINE_MAX (1024 * 1024) /* bytes of one line either way, newline counted */
#define RPC_DEPTH_MAX 32           /* nesting of a message */
#define RPC_INFLIGHT_MAX 64        /* requests of one client that may wait for their answers */
#define RPC_LANES_MAX 8            /* steps of one session that may be in flight */

struct rpc_request {
    const struct schema_method *method;
    json_t *id;     /* owned; JSON null for a notification (which fp9d refuses) */
    json_t *params; /* owned; an object checked against the method's table: each member known, of the right type and in range, all needed */
};

/* On error *ret_id still holds the request's id (owned, JSON null when it could not be read), so that the error can be answered.
 * *ret_request is filled on success only. BAD_REQUEST names the field, what was found and what would be right; duplicate keys,
 * deep nesting, numbers out of range (no silent cut, 1.5 is no integer) are refused. */
int rpc_request_parse(const char *line, size_t length, struct rpc_request *ret_request, json_t **ret_id, struct err *err);
void rpc_request_release(struct rpc_request *request);

/* Whole lines with the newline, malloced; NULL when out of memory. `result` is borrowed. Numbers that are NaN or infinite cannot get in:
 * use rpc_real(). */
char *rpc_reply_result(const json_t *id, json_t *result, size_t *ret_length);
char *rpc_reply_error(const json_t *id, const struct err *err, size_t *ret_length);
char *rpc_notification(const char *method, json_t *params, size_t *ret_length);

/* A JSON real, or null when the value is not finite. */
json_t *rpc_real(double value);

/* Typed access to checked params: absent optional members give the default. */
const char *rpc_param_string(const json_t *params, const char *key, const char *otherwise);
long long rpc_param_int(const json_t *params, const char *key, long long otherwise);
bool rpc_param_bool(const json_t *params, const char *key, bool otherwise);

/* A tensor of decode or prefill. Shape is the receiver's to check; offset is a multiple of 64 already, the dtype one of the schema's. */
enum rpc_dtype {
    RPC_DTYPE_NONE, /* not given: the one the schema allows first, for y the session's output_dtype */
    RPC_DTYPE_BF16,
    RPC_DTYPE_F32,
    RPC_DTYPE_I32,
};

struct rpc_tensor {
    bool present;    /* the member was there */
    bool in_arena;   /* offset counts */
    uint64_t offset; /* bytes from the arena's start */
    enum rpc_dtype dtype;
    const char *b64;   /* borrowed from params; NULL when not given. Decode with b64_decode() of b64.h, B64_BYTES_MAX at most */
    size_t b64_length; /* characters */
};

/* For requests that are no JSON: a number, or a tensor's offset, under the schema's rule for it, refused in the same words. */
int rpc_check_number(const struct schema_method *method, const char *name, long long value, struct err *err);
int rpc_check_offset(const struct schema_method *method, const char *tensor, uint64_t offset, struct err *err);

void rpc_param_tensor(const json_t *params, const char *key, struct rpc_tensor *ret_tensor);

/* The error object {code, message, data:{name, ...}} of a struct err, and back. The code is JSON-RPC's own where one applies, told by
 * name BAD_REQUEST and errno: -EBADMSG -32700 (no JSON), -EPROTO -32600 (no request), -ENOSYS -32601 (no such method), others -32602;
 * for every other name it is -32000 minus the name's place in enum err_name. Programs go by data.name. */
json_t *rpc_error_json(const struct err *err);
void rpc_error_from_json(const json_t *error, struct err *ret_err);
int rpc_errno_of(enum err_name name); /* the errno that stands for a name where nothing more is known */

#endif

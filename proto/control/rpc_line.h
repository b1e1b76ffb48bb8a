/* One line of JSON under the protocol's limits, and params under the schema's table. For proto/control itself, and for libfp9's reading of
 * answers. */
#ifndef FP9_CONTROL_RPC_LINE_H
#define FP9_CONTROL_RPC_LINE_H

#include <jansson.h>

#include "proto/base/err.h"
#include "proto/control/schema.h"

/* -EBADMSG with BAD_REQUEST for what is no single JSON object within RPC_LINE_MAX and RPC_DEPTH_MAX, without duplicate keys;
 * a number that no C type holds is refused by the key before it, as -ERANGE. Neither does any text hold a NUL, written \u0000, so that it
 * can be taken for a C string: refused by the member, as -EINVAL within params and else as -EPROTO; then *ret_nul_id (may be NULL) is the
 * object's id, owned, or NULL when it is none that an answer can have. */
int rpc_line_parse(const char *line, size_t length, json_t **ret_object, json_t **ret_nul_id, struct err *err);
/* The object's id when it is a whole number, a text or null; NULL otherwise. Borrowed. */
json_t *rpc_line_id(const json_t *object);

/* BAD_REQUEST (BAD_DTYPE for a tensor's type) naming field, what was found and what is right. */
int rpc_check_params(const struct schema_method *method, const json_t *params, struct err *err);

#endif

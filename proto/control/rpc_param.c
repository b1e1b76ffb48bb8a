#include <strings.h>

#include "proto/control/rpc.h"

const char *rpc_param_string(const json_t *params, const char *key, const char *otherwise)
{
    const json_t *value = json_object_get(params, key);
    return value ? json_string_value(value) : otherwise;
}

long long rpc_param_int(const json_t *params, const char *key, long long otherwise)
{
    const json_t *value = json_object_get(params, key);
    return value ? json_integer_value(value) : otherwise;
}

bool rpc_param_bool(const json_t *params, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(params, key);
    return value ? json_is_true(value) : otherwise;
}

static enum rpc_dtype dtype_of(const char *text)
{
    if (!text)
        return RPC_DTYPE_NONE;
    if (strcasecmp(text, "bf16") == 0)
        return RPC_DTYPE_BF16;
    return strcasecmp(text, "f32") == 0 ? RPC_DTYPE_F32 : RPC_DTYPE_I32;
}

void rpc_param_tensor(const json_t *params, const char *key, struct rpc_tensor *ret_tensor)
{
    const json_t *tensor = json_object_get(params, key);
    const json_t *offset = json_object_get(tensor, "offset"), *b64 = json_object_get(tensor, "b64");
    *ret_tensor = (struct rpc_tensor){
        .present = tensor != NULL,
        .in_arena = offset != NULL,
        .offset = (uint64_t)json_integer_value(offset),
        .dtype = dtype_of(json_string_value(json_object_get(tensor, "dtype"))),
        .b64 = json_string_value(b64),
        .b64_length = json_string_length(b64),
    };
}

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/control/rpc.h"
#include "proto/control/rpc_line.h"

static const char *const members[] = {"id", "jsonrpc", "method", "params"};

static int check_members(const json_t *object, struct err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < ARRAY_LENGTH(members); i++)
            known |= strcmp(members[i], key) == 0;
        if (!known) {
            err_set(err, -EPROTO, ERR_BAD_REQUEST, "%.64s is no member of a request; jsonrpc, id, method and params are", key);
            err_value_str(err, "field", key);
            return -EPROTO;
        }
    }
    const json_t *version = json_object_get(object, "jsonrpc");
    if (!json_is_string(version) || strcmp(json_string_value(version), "2.0") != 0)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "jsonrpc is not \"2.0\"");
    return 0;
}

static int find_method(const json_t *object, const struct schema_method **ret_method, struct err *err)
{
    const json_t *name = json_object_get(object, "method");
    if (!json_is_string(name))
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "method is %s", name ? "no string" : "missing");
    const struct schema_method *method = schema_find(json_string_value(name));
    if (!method && schema_is_later(json_string_value(name), NULL)) {
        err_set(err, -ENOSYS, ERR_BAD_REQUEST, "method %s is in fp9's interface, this version does not have it", json_string_value(name));
        err_value_str(err, "method", json_string_value(name));
        return -ENOSYS;
    }
    if (!method) {
        char known[512] = "";
        for (size_t i = 0; i < schema_method_count; i++) {
            size_t used = strlen(known);
            snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", schema_methods[i].name);
        }
        err_set(err, -ENOSYS, ERR_BAD_REQUEST, "no method %.64s; there are %s", json_string_value(name), known);
        err_value_str(err, "method", json_string_value(name));
        return -ENOSYS;
    }
    *ret_method = method;
    return 0;
}

static int request_read(json_t *object, struct rpc_request *ret_request, json_t **ret_id, struct err *err)
{
    json_t *id = rpc_line_id(object);
    if (!id && json_object_get(object, "id"))
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "id is neither a whole number nor a string");
    if (id) {
        json_decref(*ret_id);
        *ret_id = json_incref(id);
    }
    int r = check_members(object, err);
    if (r)
        return r;
    const struct schema_method *method;
    r = find_method(object, &method, err);
    if (r)
        return r;
    json_t *params = json_object_get(object, "params");
    if (params && !json_is_object(params))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "params is no object");
    params = params ? json_incref(params) : json_object();
    if (!params)
        return err_no_memory(err, "params", 0);
    r = rpc_check_params(method, params, err);
    if (r) {
        json_decref(params);
        return err_prefix(err, "%s", method->name);
    }
    *ret_request = (struct rpc_request){.method = method, .id = json_incref(*ret_id), .params = params};
    return 0;
}

int rpc_request_parse(const char *line, size_t length, struct rpc_request *ret_request, json_t **ret_id, struct err *err)
{
    *ret_id = json_null();
    json_t *object, *nul_id;
    int r = rpc_line_parse(line, length, &object, &nul_id, err);
    if (r) {
        if (nul_id)
            *ret_id = nul_id;
        return r;
    }
    r = request_read(object, ret_request, ret_id, err);
    json_decref(object);
    return r;
}

void rpc_request_release(struct rpc_request *request)
{
    json_decref(request->id);
    json_decref(request->params);
    *request = (struct rpc_request){0};
}

#include "daemon/model/arch_json.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/model/arch_family.h"

const char *arch_json_show(const json_t *value, char *text, size_t size)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: snprintf(text, size, "an object"); break;
    case JSON_ARRAY: snprintf(text, size, "a list of %zu", json_array_size(value)); break;
    case JSON_STRING: snprintf(text, size, "\"%.60s\"", json_string_value(value)); break;
    case JSON_INTEGER: snprintf(text, size, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: snprintf(text, size, "%g", json_real_value(value)); break;
    case JSON_TRUE: snprintf(text, size, "true"); break;
    case JSON_FALSE: snprintf(text, size, "false"); break;
    case JSON_NULL: snprintf(text, size, "null"); break;
    }
    return text;
}

const char *arch_json_key(const json_t *object, const char *const *keys)
{
    for (int i = 0; i < ARCH_KEYS_MAX && keys[i]; i++) {
        const json_t *at = json_object_get(object, keys[i]);
        if (at && !json_is_null(at))
            return keys[i];
    }
    return NULL;
}

static int no_key(const char *const *keys, const char *where, struct err *err)
{
    char list[256];
    size_t at = 0;
    list[0] = '\0';
    for (int i = 0; i < ARCH_KEYS_MAX && keys[i] && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", keys[i]);
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: required key missing; looked for %s", where, list);
    err_value_str(err, "keys", list);
    return -EINVAL;
}

static int find(const json_t *object, const char *const *keys, uint32_t low, uint32_t high, const char *where, const char **ret_key,
                uint32_t *ret_value, struct err *err)
{
    const char *found = NULL;
    uint32_t value = 0;
    for (int i = 0; i < ARCH_KEYS_MAX && keys[i]; i++) {
        const json_t *at = json_object_get(object, keys[i]);
        if (!at || json_is_null(at))
            continue;
        char shown[96];
        if (!json_is_integer(at) || json_integer_value(at) < (json_int_t)low || json_integer_value(at) > (json_int_t)high) {
            err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s is %s, must be a whole number from %u to %u", where, keys[i],
                    arch_json_show(at, shown, sizeof shown), low, high);
            err_value_str(err, "key", keys[i]);
            return -EINVAL;
        }
        uint32_t here = (uint32_t)json_integer_value(at);
        if (found && here != value)
            return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s is %u but %s is %u", where, found, value, keys[i], here);
        found = keys[i];
        value = here;
    }
    *ret_key = found;
    *ret_value = value;
    return 0;
}

int arch_json_u32(const json_t *object, const char *const *keys, uint32_t low, uint32_t high, const char *where, uint32_t *ret_value,
                  struct err *err)
{
    const char *key;
    uint32_t value;
    int r = find(object, keys, low, high, where, &key, &value, err);
    if (r < 0)
        return r;
    if (!key)
        return no_key(keys, where, err);
    *ret_value = value;
    return 0;
}

int arch_json_u32_or(const json_t *object, const char *const *keys, uint32_t low, uint32_t high, uint32_t otherwise, const char *where,
                     uint32_t *ret_value, struct err *err)
{
    const char *key;
    uint32_t value;
    int r = find(object, keys, low, high, where, &key, &value, err);
    if (r < 0)
        return r;
    *ret_value = key ? value : otherwise;
    return 0;
}

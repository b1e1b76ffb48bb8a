#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"
#include "proto/control/b64.h"
#include "proto/control/rpc.h"
#include "proto/control/rpc_line.h"

#define SHOWN_MAX 80 /* bytes of a refused value in a message */
#define ARENA_ALIGN 64
#define ARENA_OFFSET_MAX 9007199254740991 /* 2^53 - 1 */

struct shown {
    char text[SHOWN_MAX + 4];
    size_t length;
    bool cut;
};

static int show_part(const char *part, size_t length, void *shown_)
{
    struct shown *shown = shown_;
    size_t room = SHOWN_MAX - shown->length;
    if (length > room)
        shown->cut = true;
    length = length < room ? length : room;
    memcpy(shown->text + shown->length, part, length);
    shown->length += length;
    return 0;
}

/* A value as it stands in the line, cut short between characters. */
static void show(const json_t *value, struct shown *ret_shown)
{
    *ret_shown = (struct shown){0};
    json_dump_callback(value, show_part, ret_shown, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
    size_t length = ret_shown->length;
    if (ret_shown->cut) {
        while (length && ((unsigned char)ret_shown->text[length - 1] & 0xc0) == 0x80)
            length--;
        if (length && (unsigned char)ret_shown->text[length - 1] >= 0xc0)
            length--;
        memcpy(ret_shown->text + length, "...", 4);
    }
}

static void list_choices(const char *const *choices, char *ret_text, size_t size)
{
    ret_text[0] = '\0';
    for (size_t i = 0; choices[i]; i++) {
        size_t used = strlen(ret_text);
        snprintf(ret_text + used, size - used, "%s%s", i ? ", " : "", choices[i]);
    }
}

/* "tp: 1.5 is not ..." with the field and the value for programs. */
__attribute__((format(printf, 5, 6))) static int refuse(struct err *err, enum err_name name, const char *field, const json_t *value,
                                                        const char *format, ...)
{
    struct shown shown;
    char why[640];
    show(value, &shown);
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    err_set(err, -EINVAL, name, "%s: %s %s", field, shown.text, why);
    err_value_str(err, "field", field);
    err_value_str(err, "value", shown.text);
    return -EINVAL;
}

static int check_string(const struct schema_param *param, const json_t *value, struct err *err)
{
    char list[128];
    if (param->choices)
        list_choices(param->choices, list, sizeof list);
    if (!json_is_string(value))
        return param->choices ? refuse(err, ERR_BAD_REQUEST, param->name, value, "is no string; one of %s is right", list)
                              : refuse(err, ERR_BAD_REQUEST, param->name, value, "is no string");
    if (param->choices) {
        for (size_t i = 0; param->choices[i]; i++)
            if (strcmp(param->choices[i], json_string_value(value)) == 0)
                return 0;
        return refuse(err, ERR_BAD_REQUEST, param->name, value, "is not one of %s", list);
    }
    size_t length = json_string_length(value);
    if (!length && param->low > 0)
        return refuse(err, ERR_BAD_REQUEST, param->name, value, "is empty, allowed are %lld to %lld bytes", param->low, param->high);
    if ((long long)length < param->low || (long long)length > param->high)
        return refuse(err, ERR_BAD_REQUEST, param->name, value, "has %zu byte%s, allowed are %lld to %lld", length, size_plural(length),
                      param->low, param->high);
    return 0;
}

static int check_int(const char *field, long long low, long long high, const json_t *value, struct err *err)
{
    if (!json_is_integer(value))
        return refuse(err, ERR_BAD_REQUEST, field, value, "is no whole number; %lld to %lld are right", low, high);
    long long number = json_integer_value(value);
    if (number < low || number > high)
        return refuse(err, ERR_BAD_REQUEST, field, value, "is out of range; %lld to %lld are right", low, high);
    return 0;
}

static int check_offset(const char *field, const json_t *value, struct err *err)
{
    int r = check_int(field, 0, ARENA_OFFSET_MAX, value, err);
    if (r == 0 && json_integer_value(value) % ARENA_ALIGN != 0)
        r = refuse(err, ERR_BAD_REQUEST, field, value, "is no multiple of %d", ARENA_ALIGN);
    return r;
}

static int check_dtype(const char *field, const char *const *choices, const json_t *value, struct err *err)
{
    char list[64];
    list_choices(choices, list, sizeof list);
    if (json_is_string(value))
        for (size_t i = 0; choices[i]; i++)
            if (strcasecmp(choices[i], json_string_value(value)) == 0)
                return 0;
    return refuse(err, ERR_BAD_DTYPE, field, value, "is not the type allowed here, %s", list);
}

static int check_b64(const char *field, const json_t *value, struct err *err)
{
    if (!json_is_string(value))
        return refuse(err, ERR_BAD_REQUEST, field, value, "is no string of base64");
    if (json_string_length(value) > B64_TEXT_LENGTH(B64_BYTES_MAX))
        return refuse(err, ERR_BAD_REQUEST, field, value, "is more than %d bytes as base64; use the arena", B64_BYTES_MAX);
    return 0;
}

static int check_tensor(const struct schema_param *param, const json_t *value, struct err *err)
{
    if (!json_is_object(value))
        return refuse(err, ERR_BAD_REQUEST, param->name, value, "is no tensor; {\"offset\", \"dtype\"} or {\"b64\", \"dtype\"} is right");
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member)
    {
        char field[96];
        int r;
        snprintf(field, sizeof field, "%s.%.60s", param->name, key);
        if (strcmp(key, "offset") == 0)
            r = check_offset(field, member, err);
        else if (strcmp(key, "dtype") == 0)
            r = check_dtype(field, param->choices, member, err);
        else if (strcmp(key, "b64") == 0)
            r = check_b64(field, member, err);
        else
            r = refuse(err, ERR_BAD_REQUEST, field, member, "is no part of a tensor; offset, dtype and b64 are");
        if (r)
            return r;
    }
    bool offset = json_object_get(value, "offset"), b64 = json_object_get(value, "b64");
    if (offset && b64)
        return refuse(err, ERR_BAD_REQUEST, param->name, value, "has both offset and b64; one is right");
    /* y is the only tensor that may have neither: its bytes come back in the answer. */
    if (!offset && !b64 && strcmp(param->name, "y") != 0)
        return refuse(err, ERR_BAD_REQUEST, param->name, value, "has neither offset nor b64; one is needed");
    return 0;
}

static int check_unknown(const struct schema_method *method, const char *key, const json_t *value, struct err *err)
{
    if (schema_is_later(method->name, key)) {
        err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s is in fp9's interface, this version does not have it", key);
        err_value_str(err, "field", key);
        return -EINVAL;
    }
    char known[512] = "";
    for (size_t i = 0; i < method->param_count; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", method->params[i].name);
    }
    char field[72];
    snprintf(field, sizeof field, "%.64s", key);
    return method->param_count ? refuse(err, ERR_BAD_REQUEST, field, value, "is not for %s, which takes %s", method->name, known)
                               : refuse(err, ERR_BAD_REQUEST, field, value, "is not for %s, which takes no params", method->name);
}

int rpc_check_params(const struct schema_method *method, const json_t *params, struct err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)params, key, value)
    {
        const struct schema_param *param = schema_find_param(method, key);
        int r = 0;
        if (!param)
            return check_unknown(method, key, value, err);
        switch (param->type) {
        case SCHEMA_STRING: r = check_string(param, value, err); break;
        case SCHEMA_INT: r = check_int(param->name, param->low, param->high, value, err); break;
        case SCHEMA_TENSOR: r = check_tensor(param, value, err); break;
        case SCHEMA_ID:
            if (!json_is_integer(value) && !json_is_string(value))
                r = refuse(err, ERR_BAD_REQUEST, param->name, value, "is neither a whole number nor a string");
            break;
        case SCHEMA_BOOL:
            if (!json_is_boolean(value))
                r = refuse(err, ERR_BAD_REQUEST, param->name, value, "is neither true nor false");
            break;
        }
        if (r)
            return r;
    }
    for (size_t i = 0; i < method->param_count; i++) {
        const struct schema_param *param = &method->params[i];
        if (param->required && !json_object_get(params, param->name)) {
            err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s is missing: %s", param->name, param->doc);
            err_value_str(err, "field", param->name);
            return -EINVAL;
        }
    }
    return 0;
}

int rpc_check_number(const struct schema_method *method, const char *name, long long value, struct err *err)
{
    const struct schema_param *param = schema_find_param(method, name);
    if (value >= param->low && value <= param->high)
        return 0;
    json_t *json = json_integer(value);
    int r = check_int(name, param->low, param->high, json, err);
    json_decref(json);
    return r < 0 ? err_prefix(err, "%s", method->name) : 0;
}

int rpc_check_offset(const struct schema_method *method, const char *tensor, uint64_t offset, struct err *err)
{
    if (offset <= ARENA_OFFSET_MAX && offset % ARENA_ALIGN == 0)
        return 0;
    char field[96];
    snprintf(field, sizeof field, "%s.offset", tensor);
    json_t *json = json_integer(offset > INT64_MAX ? INT64_MAX : (json_int_t)offset);
    int r = check_offset(field, json, err);
    json_decref(json);
    return r < 0 ? err_prefix(err, "%s", method->name) : 0;
}

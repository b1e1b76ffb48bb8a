#include "proto/control/rpc_line.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/control/rpc.h"

#define KEY_SHOWN_MAX 64

/* jansson's own limit is 2048 levels of recursion; this one is found without recursing at all. */
static bool too_deep(const char *line, size_t length)
{
    unsigned depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        char c = line[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > RPC_DEPTH_MAX)
                return true;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        }
    }
    return false;
}

static bool is_number_char(char c)
{
    return (c >= '0' && c <= '9') || strchr("+-.eE", c) != NULL;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* jansson says where a number overflowed, not in which member: reads the number and its key backwards from there. */
static int number_overflow(const char *line, size_t position, struct err *err)
{
    size_t end = position;
    while (end > 0 && !is_number_char(line[end - 1]))
        end--;
    size_t begin = end;
    while (begin > 0 && line[begin - 1] && is_number_char(line[begin - 1]))
        begin--;
    int shown = end - begin > KEY_SHOWN_MAX ? KEY_SHOWN_MAX : (int)(end - begin);
    size_t at = begin;
    while (at > 0 && is_blank(line[at - 1]))
        at--;
    if (at > 0 && line[at - 1] == ':') {
        at--;
        while (at > 0 && is_blank(line[at - 1]))
            at--;
        size_t key_end = at ? at - 1 : 0; /* at the closing quote */
        size_t key = key_end;
        while (key > 0 && line[key - 1] != '"')
            key--;
        if (key > 0 && key_end - key <= KEY_SHOWN_MAX) {
            char name[KEY_SHOWN_MAX + 1];
            memcpy(name, line + key, key_end - key);
            name[key_end - key] = '\0';
            err_set(err, -ERANGE, ERR_BAD_REQUEST, "%s: %.*s is beyond the range of numbers", name, shown, line + begin);
            err_value_str(err, "field", name);
            return -ERANGE;
        }
    }
    return err_set(err, -ERANGE, ERR_BAD_REQUEST, "%.*s is beyond the range of numbers", shown, line + begin);
}

#define NUL_ESCAPE "\\u0000"
#define PATH_MAX_SHOWN 160

static bool has_nul(const json_t *text)
{
    return memchr(json_string_value(text), '\0', json_string_length(text)) != NULL;
}

/* Where a text holds a NUL: the path is written on to `used` characters. No deeper than RPC_DEPTH_MAX. */
static bool find_nul(const json_t *value, char path[PATH_MAX_SHOWN], size_t used)
{
    if (json_is_string(value))
        return has_nul(value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        int n = snprintf(path + used, PATH_MAX_SHOWN - used, "[%zu]", i);
        size_t next = used + (size_t)n < PATH_MAX_SHOWN ? used + (size_t)n : PATH_MAX_SHOWN - 1;
        if (find_nul(json_array_get(value, i), path, next))
            return true;
    }
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member)
    {
        int n = snprintf(path + used, PATH_MAX_SHOWN - used, "%s%.64s", used ? "." : "", key);
        size_t next = used + (size_t)n < PATH_MAX_SHOWN ? used + (size_t)n : PATH_MAX_SHOWN - 1;
        if (find_nul(member, path, next))
            return true;
    }
    return false;
}

json_t *rpc_line_id(const json_t *object)
{
    json_t *id = json_object_get(object, "id");
    return json_is_string(id) || json_is_integer(id) || json_is_null(id) ? id : NULL;
}

static int refuse_nul(const json_t *object, const char *path, json_t **ret_nul_id, struct err *err)
{
    bool in_params = strncmp(path, "params", 6) == 0 && strcspn(path, ".[") == 6;
    int r = in_params ? -EINVAL : -EPROTO;
    json_t *id = rpc_line_id(object);
    if (ret_nul_id)
        *ret_nul_id = id && !(json_is_string(id) && has_nul(id)) ? json_incref(id) : NULL;
    err_set(err, r, ERR_BAD_REQUEST, "%s: holds a NUL (" NUL_ESCAPE "), which is in no text here", path);
    err_value_str(err, "field", path);
    return r;
}

int rpc_line_parse(const char *line, size_t length, json_t **ret_object, json_t **ret_nul_id, struct err *err)
{
    if (ret_nul_id)
        *ret_nul_id = NULL;
    if (length && line[length - 1] == '\n')
        length--;
    if (length >= RPC_LINE_MAX)
        return err_set(err, -EBADMSG, ERR_BAD_REQUEST, "a line of %zu bytes, at most %d are allowed", length + 1, RPC_LINE_MAX);
    if (too_deep(line, length))
        return err_set(err, -EBADMSG, ERR_BAD_REQUEST, "nested deeper than %d levels", RPC_DEPTH_MAX);
    /* Without the escape there can be none: such a line, as all but hostile ones are, is not searched. */
    bool nul = memmem(line, length, NUL_ESCAPE, strlen(NUL_ESCAPE)) != NULL;
    json_error_t json_error;
    json_t *value = json_loadb(line, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | (nul ? JSON_ALLOW_NUL : 0), &json_error);
    if (!value) {
        bool overflow = json_error_code(&json_error) == json_error_numeric_overflow;
        if (overflow && json_error.position >= 0 && (size_t)json_error.position <= length)
            return number_overflow(line, (size_t)json_error.position, err);
        if (json_error_code(&json_error) == json_error_out_of_memory)
            return err_no_memory(err, "a line of JSON", length);
        return err_set(err, -EBADMSG, ERR_BAD_REQUEST, "no JSON: %s (byte %d)", json_error.text, json_error.position);
    }
    if (!json_is_object(value)) {
        bool batch = json_is_array(value);
        json_decref(value);
        return err_set(err, -EPROTO, ERR_BAD_REQUEST,
                       batch ? "an array: batches are not served, send one object a line"
                             : "not an object: a request is one object a line");
    }
    char path[PATH_MAX_SHOWN] = "";
    if (nul && find_nul(value, path, 0)) {
        int r = refuse_nul(value, path, ret_nul_id, err);
        json_decref(value);
        return r;
    }
    *ret_object = value;
    return 0;
}

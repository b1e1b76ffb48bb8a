#include "ctl/ctl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum ctl_exit ctl_connect(struct ctl *ctl)
{
    if (ctl->conn)
        return CTL_DONE;
    struct fp9_error error;
    int r = fp9_connect(ctl->socket, &ctl->conn, &error);
    if (r == 0)
        return CTL_DONE;
    ctl_fail(ctl, &error);
    return r == -ENOENT || r == -ECONNREFUSED || r == -ENOTDIR ? CTL_NO_DAEMON : CTL_FAILED;
}

enum ctl_exit ctl_call(struct ctl *ctl, const char *method, json_t *params, json_t **ret_result)
{
    return ctl_call_fd(ctl, method, params, -1, ret_result);
}

enum ctl_exit ctl_call_fd(struct ctl *ctl, const char *method, json_t *params, int fd, json_t **ret_result)
{
    struct fp9_error error;
    char *text = params ? json_dumps(params, JSON_COMPACT) : NULL, *result = NULL;
    bool wrong = params && !text;
    json_decref(params);
    if (wrong)
        return ctl_no_memory(ctl);
    enum ctl_exit r = ctl_connect(ctl);
    if (r == CTL_DONE &&
        (fd < 0 ? fp9_call(ctl->conn, method, text, &result, &error) : fp9_call_fd(ctl->conn, method, text, fd, &result, &error)) < 0)
        r = ctl_fail(ctl, &error);
    free(text);
    if (r == CTL_DONE) {
        *ret_result = json_loads(result, JSON_DECODE_ANY, NULL);
        if (!json_is_object(*ret_result)) {
            json_decref(*ret_result);
            r = ctl_fail_with(ctl, "INTERNAL", "fp9d's answer to %s is no object", method);
        }
    }
    free(result);
    return r;
}

enum ctl_exit ctl_fail(const struct ctl *ctl, const struct fp9_error *error)
{
    char said[sizeof error->message + 256];
    bool of_file = ctl->memory_of && strstr(error->message, "the memfd");
    snprintf(said, sizeof said, "%s%s%.200s%s", error->message, of_file ? " (the memfd is " : "", of_file ? ctl->memory_of : "",
             of_file ? ")" : "");
    /* The sentence may quote a file's bytes; a terminal must not obey them. */
    fputs("fp9ctl: ", stderr);
    for (const char *p = said; *p; p++)
        fputc((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p, stderr);
    fputc('\n', stderr);
    if (ctl->json) {
        json_t *object = json_loads(error->values, 0, NULL), *name = json_string(error->name), *message = json_string(said);
        if (!object)
            object = json_object();
        json_object_set_new(object, "name", name);
        json_object_set_new(object, "message", message ? message : json_string("(a sentence that is no UTF-8, see standard error)"));
        json_t *all = json_pack("{s:o}", "error", object);
        ctl_print_json(ctl, all);
        json_decref(all);
    }
    return CTL_FAILED;
}

enum ctl_exit ctl_fail_with(const struct ctl *ctl, const char *name, const char *format, ...)
{
    struct fp9_error error = {.code = -EINVAL, .values = "{}"};
    snprintf(error.name, sizeof error.name, "%s", name);
    va_list args;
    va_start(args, format);
    vsnprintf(error.message, sizeof error.message, format, args);
    va_end(args);
    return ctl_fail(ctl, &error);
}

enum ctl_exit ctl_no_such(const struct ctl *ctl, const char *what, const char *wanted, const json_t *list, const char *member)
{
    char names[512] = "";
    size_t i, at = 0;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        const json_t *value = json_object_get(item, member);
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        const char *name = json_is_string(value) ? json_string_value(value) : number;
        if (at + strlen(name) + 32 > sizeof names) {
            snprintf(names + at, sizeof names - at, " and %zu more", json_array_size(list) - i);
            break;
        }
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", name);
    }
    if (!at)
        return ctl_fail_with(ctl, "NO_SUCH", "no %s \"%s\"; there is none at all", what, wanted);
    return ctl_fail_with(ctl, "NO_SUCH", "no %s \"%s\"; there %s %s", what, wanted, json_array_size(list) == 1 ? "is" : "are", names);
}

enum ctl_exit ctl_no_memory(const struct ctl *ctl)
{
    return ctl_fail_with(ctl, "NO_MEMORY", "out of memory");
}

bool ctl_print_json(const struct ctl *ctl, const json_t *result)
{
    if (!ctl->json)
        return false;
    json_dumpf(result, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
    putchar('\n');
    return true;
}

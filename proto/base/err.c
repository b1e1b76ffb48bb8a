#include "proto/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/size.h"

const char *err_name_text(enum err_name name)
{
    switch (name) {
    case ERR_INTERNAL: return "INTERNAL";
    case ERR_BAD_REQUEST: return "BAD_REQUEST";
    case ERR_BAD_SHAPE: return "BAD_SHAPE";
    case ERR_BAD_DTYPE: return "BAD_DTYPE";
    case ERR_BAD_EXPERT: return "BAD_EXPERT";
    case ERR_NO_SUCH: return "NO_SUCH";
    case ERR_NOT_READY: return "NOT_READY";
    case ERR_BUSY: return "BUSY";
    case ERR_DENIED: return "DENIED";
    case ERR_NO_MEMORY: return "NO_MEMORY";
    case ERR_UNSUPPORTED_MODEL: return "UNSUPPORTED_MODEL";
    case ERR_BAD_CHECKPOINT: return "BAD_CHECKPOINT";
    case ERR_CACHE_STALE: return "CACHE_STALE";
    case ERR_DUCK_LOST: return "DUCK_LOST";
    case ERR_DEADLINE: return "DEADLINE";
    case ERR_CANCELLED: return "CANCELLED";
    case ERR_NAME_COUNT_: break;
    }
    return "INTERNAL";
}

bool err_name_parse(const char *text, enum err_name *ret_name)
{
    for (int i = 0; i < ERR_NAME_COUNT_; i++) {
        if (strcmp(text, err_name_text((enum err_name)i)) == 0) {
            *ret_name = (enum err_name)i;
            return true;
        }
    }
    return false;
}

int err_set(struct err *err, int code, enum err_name name, const char *format, ...)
{
    if (!err)
        return code;
    char text[ERR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args); /* args may point into err itself */
    va_end(args);
    err->code = code;
    err->name = name;
    memcpy(err->message, text, sizeof text);
    err->values[0] = '\0';
    return code;
}

int err_prefix(struct err *err, const char *format, ...)
{
    if (!err)
        return -EIO;
    char text[ERR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text)
        return err->code;
    /* A message too long for the buffer loses its end, never its beginning. */
    size_t at = (size_t)n;
    for (const char *p = ": "; *p && at < sizeof text - 1; p++)
        text[at++] = *p;
    for (const char *p = err->message; *p && at < sizeof text - 1; p++)
        text[at++] = *p;
    memset(text + at, 0, sizeof text - at);
    memcpy(err->message, text, sizeof text);
    return err->code;
}

static enum err_name name_of_errno(int number)
{
    switch (number) {
    case ENOMEM:
    case ENOSPC: return ERR_NO_MEMORY;
    case EACCES:
    case EPERM: return ERR_DENIED;
    case ENOENT: return ERR_NO_SUCH;
    case ENOTDIR:
    case ENXIO: /* a socket opened as a file */
    case ELOOP:
    case ENAMETOOLONG: return ERR_BAD_REQUEST;
    default: return ERR_INTERNAL;
    }
}

int err_errno(struct err *err, const char *format, ...)
{
    int number = errno ? errno : EIO;
    char text[ERR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char reason[128];
    return err_set(err, -number, name_of_errno(number), "%.800s: %s", text,
                   strerror_r(number, reason, sizeof reason));
}

int err_no_memory(struct err *err, const char *what, size_t bytes)
{
    if (!bytes) /* not known */
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "%s: out of memory", what);
    err_set(err, -ENOMEM, ERR_NO_MEMORY, "%s: out of memory for %zu byte%s", what, bytes, size_plural(bytes));
    err_value_int(err, "needs", (long long)bytes);
    return -ENOMEM;
}

/* Appends a member; on overflow restores the old text, so that values is always whole. */
static void value_append(struct err *err, const char *member)
{
    size_t old = strlen(err->values);
    int n = snprintf(err->values + old, sizeof err->values - old, "%s%s", old ? "," : "", member);
    if (n < 0 || (size_t)n >= sizeof err->values - old)
        err->values[old] = '\0';
}

void err_value_int(struct err *err, const char *key, long long value)
{
    if (!err)
        return;
    char member[160];
    int n = snprintf(member, sizeof member, "\"%s\":%lld", key, value);
    if (n > 0 && (size_t)n < sizeof member)
        value_append(err, member);
}

void err_value_str(struct err *err, const char *key, const char *value)
{
    if (!err)
        return;
    char member[ERR_VALUES_MAX];
    int n = snprintf(member, sizeof member, "\"%s\":\"", key);
    if (n < 0 || (size_t)n >= sizeof member)
        return;
    size_t at = (size_t)n;
    for (const unsigned char *p = (const unsigned char *)value; *p; p++) {
        if (at + 8 > sizeof member)
            return;
        if (*p == '"' || *p == '\\') {
            member[at++] = '\\';
            member[at++] = (char)*p;
        } else if (*p < 0x20 || *p >= 0x7f) {
            /* Bytes outside ASCII may be no UTF-8 at all; JSON must stay valid whatever a file calls its tensors. */
            at += (size_t)snprintf(member + at, 8, "\\u%04x", *p);
        } else {
            member[at++] = (char)*p;
        }
    }
    member[at++] = '"';
    member[at] = '\0';
    value_append(err, member);
}

void err_copy(struct err *to, const struct err *from)
{
    if (to)
        *to = *from;
}

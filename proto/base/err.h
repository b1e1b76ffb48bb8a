/* The error object: one message that grows outward, a name that programs can act on, and the values.
 *
 * Convention everywhere: a function that can fail returns 0 or a negative errno and takes a
 * `struct err *` last. It fills the object exactly when it returns non-zero. Callers add what they
 * know in front: err_prefix(err, "shard %u", i) turns "X: ends past the file" into
 * "shard 2: X: ends past the file". A NULL err is allowed and drops the text.
 */
#ifndef FP9_BASE_ERR_H
#define FP9_BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>

/* The names of the control protocol's error objects (data.name), see fp9-control(7). */
enum err_name {
    ERR_INTERNAL,
    ERR_BAD_REQUEST,
    ERR_BAD_SHAPE,
    ERR_BAD_DTYPE,
    ERR_BAD_EXPERT,
    ERR_NO_SUCH,
    ERR_NOT_READY,
    ERR_BUSY,
    ERR_DENIED,
    ERR_NO_MEMORY,
    ERR_UNSUPPORTED_MODEL,
    ERR_BAD_CHECKPOINT,
    ERR_CACHE_STALE,
    ERR_DUCK_LOST,
    ERR_DEADLINE,
    ERR_CANCELLED,
    ERR_NAME_COUNT_, /* not a name */
};

#define ERR_MESSAGE_MAX 1024
#define ERR_VALUES_MAX 1024

struct err {
    int code;                       /* negative errno, 0 while unset */
    enum err_name name;
    char message[ERR_MESSAGE_MAX];  /* one sentence without a full stop or newline; valid UTF-8 not promised */
    char values[ERR_VALUES_MAX];    /* JSON members without braces: "needs":5,"tensor":"x"; may be "" */
};

/* Sets everything anew. Returns code, so that callers write `return err_set(...)`. */
int err_set(struct err *err, int code, enum err_name name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "text: " before the message. Returns err->code (or -EIO for a NULL err). */
int err_prefix(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As err_set for a failed system call: message "what: strerror(errno)". Name by errno (ENOMEM, ENOSPC give
 * NO_MEMORY, EACCES and EPERM give DENIED, ENOENT gives NO_SUCH, ENOTDIR, ENXIO, ELOOP
 * and ENAMETOOLONG give BAD_REQUEST, others INTERNAL). Returns -errno. */
int err_errno(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* bytes: 0 when it is not known how many. */
int err_no_memory(struct err *err, const char *what, size_t bytes);

/* Adds one value for programs. A value that does not fit is left out (the sentence has it already). */
void err_value_int(struct err *err, const char *key, long long value);
void err_value_str(struct err *err, const char *key, const char *value);

void err_copy(struct err *to, const struct err *from);

const char *err_name_text(enum err_name name);                        /* "BAD_SHAPE" */
bool err_name_parse(const char *text, enum err_name *ret_name);

#endif

/* The control API as one table: decoders, `--help`, the man page's table and the lint test all read it (schema.c). */
#ifndef FP9_CONTROL_SCHEMA_H
#define FP9_CONTROL_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>

enum schema_type {
    SCHEMA_STRING,
    SCHEMA_INT,
    SCHEMA_BOOL,
    SCHEMA_ID,     /* of a JSON-RPC request: a whole number or a string */
    SCHEMA_TENSOR, /* {offset, dtype?} in the session's arena or {b64, dtype?}; an output also {dtype?}, see rpc_param_tensor */
};

struct schema_param {
    const char *name;
    enum schema_type type;
    bool required;
    long long low, high;        /* SCHEMA_INT: inclusive range; SCHEMA_STRING: length in bytes */
    const char *const *choices; /* NULL-terminated; SCHEMA_STRING: values allowed, or NULL for any; SCHEMA_TENSOR: dtypes allowed */
    const char *doc;            /* one line, with the unit */
};

struct schema_method {
    const char *name; /* "model.load" */
    bool admin;       /* root, fp9d's user, admin_group only */
    const struct schema_param *params;
    size_t param_count;
    const char *result; /* keys of the result, for the man page */
    const char *doc;    /* one line */
};

/* What the interface has and this version does not: it is refused by this name, which is another answer than a typing error's. */
struct schema_later {
    const char *method;
    const char *param; /* NULL: the method itself */
};

extern const struct schema_later schema_later[];
extern const size_t schema_later_count;
extern const struct schema_method schema_methods[]; /* sorted by name, each method's params too */
extern const size_t schema_method_count;

const struct schema_method *schema_find(const char *name);                                          /* NULL: unknown */
const struct schema_param *schema_find_param(const struct schema_method *method, const char *name); /* NULL: unknown */
bool schema_is_later(const char *method, const char *param);

#endif

/* What every command of fp9ctl shares: the settings of this run, the connection, exit statuses. */
#ifndef FP9_CTL_CTL_H
#define FP9_CTL_CTL_H

#include <jansson.h>
#include <stdbool.h>

#include "proto/client/fp9.h"

enum ctl_exit {
    CTL_DONE = 0,
    CTL_FAILED = 1, /* refused or failed */
    CTL_USAGE = 2,  /* wrong usage */
    CTL_NO_DAEMON = 3,
};

struct ctl {
    const char *socket; /* NULL: libfp9's choice */
    bool json;
    bool color;
    struct fp9_conn *conn; /* owned by main; NULL until ctl_connect() */
    const char *memory_of; /* the file whose bytes are in "the memfd" of fp9d's messages; NULL: none */
};

/* Connects once; later calls do nothing. */
enum ctl_exit ctl_connect(struct ctl *ctl);

/* Calls a method; `params` is taken (NULL: {}). *ret_result is owned by the caller. A failure was reported when it returns. */
enum ctl_exit ctl_call(struct ctl *ctl, const char *method, json_t *params, json_t **ret_result);

/* The same with a descriptor (borrowed) beside the request; -1: none. */
enum ctl_exit ctl_call_fd(struct ctl *ctl, const char *method, json_t *params, int fd, json_t **ret_result);

/* Reports a failure: the sentence on stderr, with --json also the object on stdout. Returns CTL_FAILED. */
enum ctl_exit ctl_fail(const struct ctl *ctl, const struct fp9_error *error);
enum ctl_exit ctl_fail_with(const struct ctl *ctl, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* NO_SUCH: no `what` that is called so; the message says which there are by `member` of the list's items. */
enum ctl_exit ctl_no_such(const struct ctl *ctl, const char *what, const char *wanted, const json_t *list, const char *member);
enum ctl_exit ctl_no_memory(const struct ctl *ctl);

/* With --json prints `result` as the one object and returns true. */
bool ctl_print_json(const struct ctl *ctl, const json_t *result);

#endif

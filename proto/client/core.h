/* The client's side of the protocol without I/O: bytes in, bytes out, calls that wait for their answers. */
#ifndef FP9_CLIENT_CORE_H
#define FP9_CLIENT_CORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/buf.h"
#include "proto/base/err.h"
#include "proto/client/fp9.h"
#include "proto/control/rpc.h"

#define CORE_FDS_MAX 8 /* descriptors that arrived and wait for their answer; more are closed */

struct core_call {
    uint64_t id;   /* 0: free */
    bool wants_fd; /* a session.open */
    bool done;
    json_t *result; /* owned; done with success */
    json_t *error;  /* owned; done with an error object */
    int fd;         /* owned, -1 when there is none */
};

struct fp9_conn {
    int fd; /* owned; -1 without I/O */
    struct buf in, out;
    size_t scanned; /* bytes of `in` known to hold no newline */
    uint64_t last_id;
    struct core_call calls[RPC_INFLIGHT_MAX];
    int fds[CORE_FDS_MAX]; /* arrived, oldest first; each belongs to the next answer to a session.open */
    size_t fd_count;
    struct err broken; /* code != 0: the connection is of no use any more, and why */
    fp9_notification on_notification;
    void *userdata;
};

struct fp9_conn *core_new(void);
void core_free(struct fp9_conn *conn); /* closes conn->fd too; NULL is allowed */

/* `params` is taken, also on failure. */
int core_request(struct fp9_conn *conn, const char *method, json_t *params, uint64_t *ret_id, struct err *err);
int core_input(struct fp9_conn *conn, const void *data, size_t length, const int *fds, size_t fd_count, struct err *err);
/* -EAGAIN with err untouched while there is no answer. */
int core_answer(struct fp9_conn *conn, uint64_t id, json_t **ret_result, int *ret_fd, struct err *err);

/* Sends and receives until the call is answered. */
int conn_call(struct fp9_conn *conn, const char *method, json_t *params, json_t **ret_result, int *ret_fd, struct err *err);

/* struct err to the public form; gives err->code. */
int conn_error(struct fp9_error *error, const struct err *err);

#endif

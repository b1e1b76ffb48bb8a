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

/* [begin, end) */
struct core_range {
    size_t begin, end;
};

/* What a step leaves with its call until the answer is taken. */
struct core_step {
    struct fp9_session *session; /* borrowed; NULL: the call is no step */
    void *y;                     /* where the caller wants the output; NULL: it stays in the arena */
    size_t y_at, y_bytes;        /* in the arena */
    uint64_t begin_ns;           /* clock_now_ns() when it was queued */
    bool in_ring;                /* handed over through the session's ring, in `slot` */
    uint32_t slot;
    struct core_range tensors[4]; /* of the arena; while it is under way no places that touch them are given away */
};

struct core_call {
    uint64_t id;   /* 0: free */
    bool wants_fd; /* a session.open */
    bool done;
    bool forgotten;              /* nobody will ask: the answer is dropped */
    uint64_t serial;             /* done: the answer's place among all answers, from 1 */
    json_t *result;              /* owned; done with success */
    json_t *error;               /* owned; done with an error object */
    int fd;                      /* owned, -1 when there is none: the arena */
    int doorbell;                /* likewise, of its ring */
    struct fp9_session *opening; /* owned, not open yet; a session.open of fp9_session_request() */
    struct core_step step;
};

struct fp9_conn {
    int fd; /* owned; -1 without I/O */
    char path[108]; /* of the socket, for messages; "" when it is not known */
    struct buf in, out;
    size_t scanned; /* bytes of `in` known to hold no newline */
    uint64_t last_id, last_serial;
    struct core_call calls[RPC_INFLIGHT_MAX];
    int fds[CORE_FDS_MAX]; /* arrived, oldest first; each belongs to the next answer to a session.open */
    size_t fd_count;
    struct err broken; /* code != 0: the connection is of no use any more, and why */
    fp9_notification on_notification;
    void *userdata;
    struct fp9_session *sessions; /* open ones, each knows the next; not owned */
};

struct fp9_conn *core_new(void);
void core_free(struct fp9_conn *conn); /* closes conn->fd too; NULL is allowed */

/* `params` is taken, also on failure. */
int core_request(struct fp9_conn *conn, const char *method, json_t *params, uint64_t *ret_id, struct err *err);
int core_input(struct fp9_conn *conn, const void *data, size_t length, const int *fds, size_t fd_count, struct err *err);
/* A call without a line: its answer comes another way (core_done). -EBUSY. */
int core_call_new(struct fp9_conn *conn, uint64_t *ret_id, struct err *err);
void core_done(struct fp9_conn *conn, struct core_call *call);
void core_clear(struct core_call *call);
/* -EAGAIN with err untouched while there is no answer. */
int core_answer(struct fp9_conn *conn, uint64_t id, json_t **ret_result, int *ret_fd, struct err *err);
struct core_call *core_find(struct fp9_conn *conn, uint64_t id); /* NULL: no such call */
/* Nobody will ask for the call's answer. */
void core_forget(struct fp9_conn *conn, struct core_call *call);
/* Makes the connection useless for `reason` (an INTERNAL error): every call fails with it. Gives reason->code. */
int core_break(struct fp9_conn *conn, struct err *reason);

/* -ENOTCONN when the connection has no socket. */
int conn_socket(const struct fp9_conn *conn, struct err *err);
/* Sends and receives until call `id` is answered or the connection is broken. */
void conn_until(struct fp9_conn *conn, uint64_t id);
/* A whole call: core_request(), conn_until(), core_answer(). */
int conn_call(struct fp9_conn *conn, const char *method, json_t *params, json_t **ret_result, int *ret_fd, struct err *err);

/* The same with a descriptor (borrowed) that goes with the request's first byte. */
int conn_call_fd(struct fp9_conn *conn, const char *method, json_t *params, int fd, json_t **ret_result, struct err *err);

/* struct err to the public form; gives err->code. */
int conn_error(struct fp9_error *error, const struct err *err);

#endif

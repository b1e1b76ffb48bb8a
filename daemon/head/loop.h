/* The event loop in fp9d's own verbs. The only file of the project that knows libevent.
 *
 * One thread runs it; only loop_post may be called from others. */
#ifndef FP9_HEAD_LOOP_H
#define FP9_HEAD_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/cleanup.h"
#include "proto/base/err.h"

struct loop;
struct loop_io;

int loop_new(struct loop **ret_loop, struct err *err);
void loop_free(struct loop *loop);
CLEANUP_DEFINE(struct loop *, loop_free);

typedef void (*loop_io_fn)(void *user, bool readable, bool writable);
typedef void (*loop_fn)(void *user);

/* Watches fd (borrowed, nonblocking) for reading; loop_io_want changes what is watched. The callback may free its own io. */
int loop_io_add(struct loop *loop, int fd, loop_io_fn fn, void *user, struct loop_io **ret_io, struct err *err);
void loop_io_want(struct loop_io *io, bool read, bool write);
void loop_io_free(struct loop_io *io);
CLEANUP_DEFINE(struct loop_io *, loop_io_free);

/* For the life of the loop. */
int loop_every(struct loop *loop, uint64_t interval_ns, loop_fn fn, void *user, struct err *err);
int loop_on_signal(struct loop *loop, int signal_number, loop_fn fn, void *user, struct err *err);

/* Any thread: fn(user) runs on the loop's thread, in the order of the posts. Aborts when out of memory: a lost completion would
 * hang a job. */
void loop_post(struct loop *loop, loop_fn fn, void *user);

int loop_run(struct loop *loop, struct err *err);
void loop_stop(struct loop *loop);

#endif

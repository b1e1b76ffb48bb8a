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
/* Watches an eventfd (borrowed) whose every writing is to make a sleeping loop poll. Nobody reads it: other processes may have it, too. */
int loop_bell_add(struct loop *loop, int fd, struct loop_io **ret_io, struct err *err);
void loop_io_want(struct loop_io *io, bool read, bool write);
void loop_io_free(struct loop_io *io);
CLEANUP_DEFINE(struct loop_io *, loop_io_free);

/* For the life of the loop. */
int loop_every(struct loop *loop, uint64_t interval_ns, loop_fn fn, void *user, struct err *err);
int loop_on_signal(struct loop *loop, int signal_number, loop_fn fn, void *user, struct err *err);

/* One that rings once, `delay_ns` after it was set last. */
struct loop_timer;
int loop_timer_new(struct loop *loop, loop_fn fn, void *user, struct loop_timer **ret_timer, struct err *err);
void loop_timer_set(struct loop_timer *timer, uint64_t delay_ns);
void loop_timer_free(struct loop_timer *timer);

/* Any thread: fn(user) runs on the loop's thread, in the order of the posts. Aborts when out of memory: a lost completion would
 * hang a job. */
void loop_post(struct loop *loop, loop_fn fn, void *user);

/* ---- pollers: work that no descriptor tells of, in memory shared with other processes ----
 *
 * Each turn of the loop asks every poller. While one of them expects something the loop spins, for loop_set_spin at most (an adaptive
 * part of it, proto/base/spin.h) and with a look at the descriptors every few microseconds; then it asks all pollers to park and sleeps.
 * Who writes to a parked poller's memory rings the bell: writes to an eventfd, the loop's (loop_bell_fd, which other processes may
 * inherit) or one that the poller's owner watches with loop_io_add. */
enum loop_found {
    LOOP_IDLE,    /* nothing was there, and nothing is known to come */
    LOOP_EXPECTS, /* nothing was there, something may come within microseconds */
    LOOP_FOUND,   /* something was there and is done */
};

struct loop_poller {
    /* Does what is there, a bounded part of it. Called very often: when nothing is there it is to cost nanoseconds. */
    enum loop_found (*poll)(void *user);
    /* The loop is going to sleep: from now on whoever writes must ring. False: something has come meanwhile, and the loop polls again.
     * (Store "parked", then look once more, both sequentially consistent.) The next poll ends it. */
    bool (*park)(void *user);
    void *user;
};

#define LOOP_POLLERS_MAX 4
/* For the life of the loop. */
int loop_poller_add(struct loop *loop, const struct loop_poller *poller, struct err *err);
/* 0, as at first: never spin. For machines where no other thread waits for this one's CPU. */
void loop_set_spin(struct loop *loop, uint64_t limit_ns);
/* Writing to it (eventfd_write) makes a sleeping loop poll. Nobody reads it. Stays the loop's; nonblocking. */
int loop_bell_fd(const struct loop *loop);

int loop_run(struct loop *loop, struct err *err);
void loop_stop(struct loop *loop);

#endif

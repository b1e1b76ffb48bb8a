#include "daemon/head/loop.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "proto/base/clock.h"

#define LOOP_EVENTS_MAX 16 /* timers and signals */

struct post {
    struct post *next;
    loop_fn fn;
    void *user;
};

struct call {
    loop_fn fn;
    void *user;
    struct event *event;
};

struct loop {
    struct event_base *base;
    struct call calls[LOOP_EVENTS_MAX];
    size_t call_count;
    int wake_fd; /* eventfd: a post is there */
    struct event *wake;
    pthread_mutex_t lock;       /* guards the list */
    struct post *first, **last; /* oldest first */
};

struct loop_io {
    struct event *event;
    short watched; /* EV_READ | EV_WRITE now asked for */
    int fd;
    loop_io_fn fn;
    void *user;
};

static void run_posts(evutil_socket_t fd, short what, void *user)
{
    (void)what;
    struct loop *loop = user;
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0 && errno != EAGAIN)
        abort(); /* an eventfd of ours cannot fail otherwise */
    pthread_mutex_lock(&loop->lock);
    struct post *post = loop->first;
    loop->first = NULL;
    loop->last = &loop->first;
    pthread_mutex_unlock(&loop->lock);
    while (post) {
        struct post *next = post->next;
        post->fn(post->user);
        free(post);
        post = next;
    }
}

int loop_new(struct loop **ret_loop, struct err *err)
{
    _cleanup_(loop_freep) struct loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return err_no_memory(err, "event loop", sizeof *loop);
    pthread_mutex_init(&loop->lock, NULL);
    loop->last = &loop->first;
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->wake_fd < 0)
        return err_errno(err, "event loop: eventfd");
    loop->base = event_base_new();
    loop->wake = loop->base ? event_new(loop->base, loop->wake_fd, EV_READ | EV_PERSIST, run_posts, loop) : NULL;
    if (!loop->wake || event_add(loop->wake, NULL) < 0)
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "event loop: libevent cannot be started");
    *ret_loop = STEAL(loop);
    return 0;
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    for (size_t i = 0; i < loop->call_count; i++)
        event_free(loop->calls[i].event);
    if (loop->wake)
        event_free(loop->wake);
    if (loop->base)
        event_base_free(loop->base);
    closep(&loop->wake_fd);
    while (loop->first) {
        struct post *next = loop->first->next;
        free(loop->first);
        loop->first = next;
    }
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

static void io_event(evutil_socket_t fd, short what, void *user)
{
    (void)fd;
    struct loop_io *io = user;
    io->fn(io->user, what & EV_READ, what & EV_WRITE);
}

int loop_io_add(struct loop *loop, int fd, loop_io_fn fn, void *user, struct loop_io **ret_io, struct err *err)
{
    struct loop_io *io = calloc(1, sizeof *io);
    if (!io)
        return err_no_memory(err, "event", sizeof *io);
    *io = (struct loop_io){.fd = fd, .fn = fn, .user = user, .watched = EV_READ};
    io->event = event_new(loop->base, fd, EV_READ | EV_PERSIST, io_event, io);
    if (!io->event || event_add(io->event, NULL) < 0) {
        loop_io_free(io);
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "descriptor %d cannot be watched", fd);
    }
    *ret_io = io;
    return 0;
}

void loop_io_want(struct loop_io *io, bool read, bool write)
{
    short watched = (short)((read ? EV_READ : 0) | (write ? EV_WRITE : 0));
    if (watched == io->watched)
        return;
    io->watched = watched;
    struct event_base *base = event_get_base(io->event);
    event_del(io->event);
    event_assign(io->event, base, io->fd, (short)(watched | EV_PERSIST), io_event, io);
    if (watched)
        event_add(io->event, NULL);
}

void loop_io_free(struct loop_io *io)
{
    if (!io)
        return;
    if (io->event)
        event_free(io->event);
    free(io);
}

static void call_event(evutil_socket_t fd, short what, void *user)
{
    (void)fd;
    (void)what;
    struct call *call = user;
    call->fn(call->user);
}

static int add_call(struct loop *loop, int fd, short what, const struct timeval *interval, loop_fn fn, void *user, struct err *err)
{
    if (loop->call_count == LOOP_EVENTS_MAX)
        return err_set(err, -E2BIG, ERR_INTERNAL, "event loop: more than %d timers and signals", LOOP_EVENTS_MAX);
    struct call *call = &loop->calls[loop->call_count];
    call->fn = fn;
    call->user = user;
    call->event = event_new(loop->base, fd, (short)(what | EV_PERSIST), call_event, call);
    if (!call->event)
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "event loop: out of memory");
    loop->call_count++;
    if (event_add(call->event, interval) < 0)
        return err_set(err, -EINVAL, ERR_INTERNAL, "event loop: event cannot be added");
    return 0;
}

int loop_every(struct loop *loop, uint64_t interval_ns, loop_fn fn, void *user, struct err *err)
{
    struct timeval interval = {
        .tv_sec = (time_t)(interval_ns / CLOCK_NS_PER_S),
        .tv_usec = (suseconds_t)(interval_ns % CLOCK_NS_PER_S / CLOCK_NS_PER_US),
    };
    return add_call(loop, -1, 0, &interval, fn, user, err);
}

int loop_on_signal(struct loop *loop, int signal_number, loop_fn fn, void *user, struct err *err)
{
    return add_call(loop, signal_number, EV_SIGNAL, NULL, fn, user, err);
}

void loop_post(struct loop *loop, loop_fn fn, void *user)
{
    struct post *post = malloc(sizeof *post);
    if (!post)
        abort();
    *post = (struct post){.fn = fn, .user = user};
    pthread_mutex_lock(&loop->lock);
    *loop->last = post;
    loop->last = &post->next;
    pthread_mutex_unlock(&loop->lock);
    uint64_t one = 1;
    if (write(loop->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        abort();
}

int loop_run(struct loop *loop, struct err *err)
{
    if (event_base_dispatch(loop->base) < 0)
        return err_set(err, -EIO, ERR_INTERNAL, "event loop: libevent failed");
    return 0;
}

void loop_stop(struct loop *loop)
{
    event_base_loopbreak(loop->base);
}

#include "daemon/head/loop.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "proto/base/clock.h"
#include "proto/base/spin.h"

#define LOOP_EVENTS_MAX 16                 /* timers and signals */
#define FOUND_IN_A_ROW 16                  /* then descriptors have their turn */
#define SPIN_TURN_NS (8 * CLOCK_NS_PER_US) /* likewise while the loop spins */

struct post {
    struct post *next;
    loop_fn fn;
    void *user;
};

struct call {
    struct loop *loop;
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
    int bell_fd; /* eventfd: pollers have something */
    struct event *bell;
    struct loop_poller pollers[LOOP_POLLERS_MAX];
    size_t poller_count;
    struct spin spin;
    uint64_t called; /* callbacks of descriptors, timers, signals and posts so far */
    bool stop;
    pthread_mutex_t lock;       /* guards the list */
    struct post *first, **last; /* oldest first */
};

struct loop_io {
    struct loop *loop;
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
    loop->called++;
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

/* Its pollers are asked in any case. */
static void bell_rang(evutil_socket_t fd, short what, void *user)
{
    (void)fd;
    (void)what;
    (void)user;
}

int loop_new(struct loop **ret_loop, struct err *err)
{
    _cleanup_(loop_freep) struct loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return err_no_memory(err, "event loop", sizeof *loop);
    pthread_mutex_init(&loop->lock, NULL);
    loop->last = &loop->first;
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->wake_fd < 0 || loop->bell_fd < 0)
        return err_errno(err, "event loop: eventfd");
    loop->base = event_base_new();
    loop->wake = loop->base ? event_new(loop->base, loop->wake_fd, EV_READ | EV_PERSIST, run_posts, loop) : NULL;
    /* Edge-triggered: every ring wakes the loop once, and nobody has to read the count. */
    loop->bell = loop->base ? event_new(loop->base, loop->bell_fd, EV_READ | EV_ET | EV_PERSIST, bell_rang, loop) : NULL;
    if (!loop->wake || event_add(loop->wake, NULL) < 0 || !loop->bell || event_add(loop->bell, NULL) < 0)
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
    if (loop->bell)
        event_free(loop->bell);
    if (loop->base)
        event_base_free(loop->base);
    closep(&loop->wake_fd);
    closep(&loop->bell_fd);
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
    io->loop->called++;
    io->fn(io->user, what & EV_READ, what & EV_WRITE);
}

static int io_add(struct loop *loop, int fd, short what, loop_io_fn fn, void *user, struct loop_io **ret_io, struct err *err)
{
    struct loop_io *io = calloc(1, sizeof *io);
    if (!io)
        return err_no_memory(err, "event", sizeof *io);
    *io = (struct loop_io){.loop = loop, .fd = fd, .fn = fn, .user = user, .watched = EV_READ};
    io->event = event_new(loop->base, fd, (short)(what | EV_PERSIST), io_event, io);
    if (!io->event || event_add(io->event, NULL) < 0) {
        loop_io_free(io);
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "descriptor %d cannot be watched", fd);
    }
    *ret_io = io;
    return 0;
}

int loop_io_add(struct loop *loop, int fd, loop_io_fn fn, void *user, struct loop_io **ret_io, struct err *err)
{
    return io_add(loop, fd, EV_READ, fn, user, ret_io, err);
}

static void io_rang(void *user, bool readable, bool writable)
{
    (void)user;
    (void)readable;
    (void)writable;
}

int loop_bell_add(struct loop *loop, int fd, struct loop_io **ret_io, struct err *err)
{
    return io_add(loop, fd, EV_READ | EV_ET, io_rang, NULL, ret_io, err);
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
    call->loop->called++;
    call->fn(call->user);
}

static int add_call(struct loop *loop, int fd, short what, const struct timeval *interval, loop_fn fn, void *user, struct err *err)
{
    if (loop->call_count == LOOP_EVENTS_MAX)
        return err_set(err, -E2BIG, ERR_INTERNAL, "event loop: more than %d timers and signals", LOOP_EVENTS_MAX);
    struct call *call = &loop->calls[loop->call_count];
    call->loop = loop;
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

static struct timeval timeval_of(uint64_t ns)
{
    return (struct timeval){.tv_sec = (time_t)(ns / CLOCK_NS_PER_S), .tv_usec = (suseconds_t)(ns % CLOCK_NS_PER_S / CLOCK_NS_PER_US)};
}

int loop_every(struct loop *loop, uint64_t interval_ns, loop_fn fn, void *user, struct err *err)
{
    struct timeval interval = timeval_of(interval_ns);
    return add_call(loop, -1, 0, &interval, fn, user, err);
}

int loop_on_signal(struct loop *loop, int signal_number, loop_fn fn, void *user, struct err *err)
{
    return add_call(loop, signal_number, EV_SIGNAL, NULL, fn, user, err);
}

struct loop_timer {
    struct call call; /* its event is made once and added anew each time */
};

int loop_timer_new(struct loop *loop, loop_fn fn, void *user, struct loop_timer **ret_timer, struct err *err)
{
    struct loop_timer *timer = calloc(1, sizeof *timer);
    if (!timer)
        return err_no_memory(err, "timer", sizeof *timer);
    timer->call = (struct call){.loop = loop, .fn = fn, .user = user};
    timer->call.event = event_new(loop->base, -1, 0, call_event, &timer->call);
    if (!timer->call.event) {
        free(timer);
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "event loop: out of memory");
    }
    *ret_timer = timer;
    return 0;
}

/* Rounded up: an alarm that rings early would ring twice. */
void loop_timer_set(struct loop_timer *timer, uint64_t delay_ns)
{
    struct timeval delay = timeval_of(delay_ns + CLOCK_NS_PER_US - 1);
    if (event_add(timer->call.event, &delay) < 0)
        abort(); /* what waits for it would wait for ever */
}

void loop_timer_free(struct loop_timer *timer)
{
    if (!timer)
        return;
    event_free(timer->call.event);
    free(timer);
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

int loop_poller_add(struct loop *loop, const struct loop_poller *poller, struct err *err)
{
    if (loop->poller_count == LOOP_POLLERS_MAX)
        return err_set(err, -E2BIG, ERR_INTERNAL, "event loop: more than %d pollers", LOOP_POLLERS_MAX);
    loop->pollers[loop->poller_count++] = *poller;
    return 0;
}

void loop_set_spin(struct loop *loop, uint64_t limit_ns)
{
    loop->spin = spin_init(limit_ns);
    loop->spin.wary = true;
}

int loop_bell_fd(const struct loop *loop)
{
    return loop->bell_fd;
}

static enum loop_found poll_all(struct loop *loop)
{
    enum loop_found most = LOOP_IDLE;
    for (size_t i = 0; i < loop->poller_count; i++) {
        enum loop_found found = loop->pollers[i].poll(loop->pollers[i].user);
        if (found > most)
            most = found;
    }
    return most;
}

static int turn(struct loop *loop, int flags, struct err *err)
{
    return event_base_loop(loop->base, flags) < 0 ? err_set(err, -EIO, ERR_INTERNAL, "event loop: libevent failed") : 0;
}

/* 1: something came, from a poller or a descriptor; 0: the budget is used up. */
static int spin(struct loop *loop, struct err *err)
{
    uint64_t begin = clock_now_ns(), turned = begin, before = begin;
    if (spin_rests(&loop->spin))
        return 0;
    for (;;) {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            spin_pause();
            if (poll_all(loop) == LOOP_FOUND) {
                if (!spin_taken(&loop->spin, before, clock_now_ns()))
                    spin_won(&loop->spin);
                return 1;
            }
        }
        uint64_t now = clock_now_ns();
        if (now - begin >= loop->spin.budget_ns || spin_taken(&loop->spin, before, now))
            break;
        before = now;
        if (now - turned < SPIN_TURN_NS)
            continue;
        uint64_t called = loop->called;
        int r = turn(loop, EVLOOP_NONBLOCK, err);
        if (r < 0 || loop->called != called || loop->stop)
            return r < 0 ? r : 1;
        turned = before = clock_now_ns();
    }
    spin_lost(&loop->spin);
    return 0;
}

static bool park_all(struct loop *loop)
{
    for (size_t i = 0; i < loop->poller_count; i++)
        if (!loop->pollers[i].park(loop->pollers[i].user))
            return false;
    return true;
}

int loop_run(struct loop *loop, struct err *err)
{
    uint32_t in_a_row = 0;
    int r = 0;
    while (r >= 0 && !loop->stop) {
        enum loop_found found = poll_all(loop);
        if (found == LOOP_FOUND) {
            if (++in_a_row % FOUND_IN_A_ROW == 0)
                r = turn(loop, EVLOOP_NONBLOCK, err);
            continue;
        }
        in_a_row = 0;
        if (found == LOOP_EXPECTS && loop->spin.limit_ns) {
            r = spin(loop, err);
            if (r != 0)
                continue;
        }
        if (park_all(loop))
            r = turn(loop, EVLOOP_ONCE, err);
    }
    return r < 0 ? r : 0;
}

void loop_stop(struct loop *loop)
{
    loop->stop = true;
    event_base_loopbreak(loop->base);
}

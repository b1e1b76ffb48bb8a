#include "daemon/duck/serve.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>

#include "daemon/duck/door.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/wire/transport_tcp.h"

#define HELLO_MS 3000 /* for a peer to say who it is */
#define PAUSE_MS 1000 /* after accept failed for want of descriptors or memory */
#define COMPLAIN_EVERY (60 * CLOCK_NS_PER_S)

struct serve {
    const char *name;
    serve_link_fn link;
    void *user;
    struct listen *listen; /* owned */
    struct door door;
    struct door_visitor next; /* whose link is next; fd -1: nobody's */
    int signal_fd;            /* owned; watched between links, the loop has its own */
    uint64_t complained_ns;
    uint32_t unsaid; /* complaints since */
};

static void serve_release(struct serve *serve)
{
    struct door_visitor visitor;
    while (door_first(&serve->door, 0, true, &visitor))
        close(visitor.fd);
    closep(&serve->next.fd);
    listen_close(serve->listen);
    closep(&serve->signal_fd);
}

int serve_check(const struct options *options, struct err *err)
{
    if (*options->key_file)
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST,
                       "key_file \"%.200s\": this version has no TLS and would not use it; leave it empty and set plaintext = yes",
                       options->key_file);
    if (!options->plaintext)
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST,
                       "listen %s: this version has no TLS, so it serves only with plaintext = yes in [duck] of fp9-duck.conf; "
                       "fp9d.conf must say it too, in the section of this duck",
                       options->listen);
    return 0;
}

/* Anybody can connect and talk nonsense; the log must not grow by it. */
static void complain(struct serve *serve, const char *who, const char *what)
{
    uint64_t now = clock_now_ns();
    if (serve->complained_ns && now - serve->complained_ns < COMPLAIN_EVERY) {
        serve->unsaid++;
        return;
    }
    if (serve->unsaid)
        log_warning("duck", "link from %s: %s (and %u such before it)", who, what, serve->unsaid);
    else
        log_warning("duck", "link from %s: %s", who, what);
    serve->complained_ns = now;
    serve->unsaid = 0;
}

static void knock(void *user, const char *holder)
{
    const struct serve *serve = user;
    listen_refuse(serve->listen, serve->name, holder);
}

/* 1: stop. */
static int serve_link(struct serve *serve, int fd, const char *who)
{
    struct err err = {0};
    _cleanup_(transport_closep) struct transport *transport = NULL;
    int r = transport_tcp_new(fd, &transport, &err);
    if (r < 0) {
        close(fd);
    } else {
        struct loop_beside beside = {.fd = listen_fd(serve->listen), .ready = knock, .user = serve, .hello_ms = HELLO_MS, .from = who};
        r = serve->link(serve->user, transport, &beside, &err);
    }
    if (r < 0)
        complain(serve, who, err.message);
    return r == LOOP_STOPPED;
}

/* Until a signal (true), a knock, somebody at the door who speaks or has had his time, or the end of a pause (0: none). */
static bool stop_asked(struct serve *serve, int pause_ms)
{
    struct pollfd wait[2 + DOOR_MAX] = {{.fd = serve->signal_fd, .events = POLLIN},
                                        {.fd = pause_ms ? -1 : listen_fd(serve->listen), .events = POLLIN}};
    struct signalfd_siginfo info;
    door_polls(&serve->door, wait + 2);
    int count = poll(wait, pause_ms ? 1 : 2 + serve->door.count, pause_ms ? pause_ms : door_timeout_ms(&serve->door, clock_now_ns()));
    if (count < 0 || !(wait[0].revents & POLLIN) || read(serve->signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
        return false;
    log_info("duck", "signal %u: stopping", info.ssi_signo);
    return true;
}

static void no_hello(struct serve *serve, const struct door_visitor *visitor)
{
    struct err why = {0};
    err_set(&why, -ETIMEDOUT, ERR_BAD_REQUEST, "no HELLO within %d ms", HELLO_MS);
    listen_send_away(serve->listen, visitor->fd, &why);
    complain(serve, visitor->who, why.message);
}

/* Everybody who knocks comes to the door. Negative: nobody can, for now. */
static int let_in(struct serve *serve, struct err *err)
{
    struct door_visitor visitor, oldest;
    int r;
    while ((r = listen_accept(serve->listen, &visitor.fd, visitor.who, err)) == 0) {
        visitor.by_ns = clock_now_ns() + HELLO_MS * CLOCK_NS_PER_MS;
        if (door_add(&serve->door, &visitor))
            continue;
        /* One of those who speak now goes in before the oldest, who may be just as new, is sent away. */
        if (door_spoken(&serve->door, &oldest)) {
            serve->next = oldest;
            return 0;
        }
        if (door_first(&serve->door, 0, true, &oldest))
            no_hello(serve, &oldest);
    }
    return r == -EAGAIN ? 0 : r;
}

/* The next who has something to say. The others are told that the duck is busy from now on. */
static bool next_link(struct serve *serve)
{
    struct door_visitor other;
    while (door_first(&serve->door, clock_now_ns(), false, &other))
        no_hello(serve, &other);
    if (serve->next.fd < 0 && !door_spoken(&serve->door, &serve->next))
        return false;
    while (door_first(&serve->door, 0, true, &other)) {
        struct err busy = {0};
        err_set(&busy, -EBUSY, ERR_BUSY, "duck %s is busy with %s", serve->name, serve->next.who);
        listen_send_away(serve->listen, other.fd, &busy);
    }
    return true;
}

int serve_tcp(const struct options *options, serve_link_fn link, void *user, struct err *err)
{
    _cleanup_(serve_release) struct serve serve = {.name = options->name, .link = link, .user = user, .signal_fd = -1, .next = {.fd = -1}};
    int r = listen_open(options->listen, &serve.listen, err);
    if (r < 0)
        return r;
    sigset_t set;
    loop_signal_set(&set);
    serve.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (serve.signal_fd < 0)
        return err_errno(err, "signalfd");
    sd_notifyf(0, "READY=1\nSTATUS=Listening on %s", options->listen);
    for (bool stop = false; !stop;) {
        struct err why = {0};
        r = let_in(&serve, &why);
        if (r < 0) {
            complain(&serve, "anybody", why.message);
            stop = stop_asked(&serve, PAUSE_MS);
        } else if (next_link(&serve)) {
            stop = serve_link(&serve, STEAL_FD(serve.next.fd), serve.next.who);
        } else {
            stop = stop_asked(&serve, 0);
        }
    }
    sd_notify(0, "STOPPING=1");
    return 0;
}

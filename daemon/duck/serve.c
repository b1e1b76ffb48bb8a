#include "daemon/duck/serve.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>

#include "daemon/duck/listen.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/wire/transport_tcp.h"

#define HELLO_MS 3000 /* for a peer to say who it is; the door is shut to others meanwhile */
#define PAUSE_MS 1000 /* after accept failed for want of descriptors or memory */
#define COMPLAIN_EVERY (60 * CLOCK_NS_PER_S)

struct serve {
    const char *name;
    serve_link_fn link;
    void *user;
    struct listen *listen; /* owned */
    int signal_fd;         /* owned; watched between links, the loop has its own */
    uint64_t complained_ns;
    uint32_t unsaid; /* complaints since */
};

static void serve_release(struct serve *serve)
{
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

static bool stop_asked(struct serve *serve, int timeout_ms)
{
    struct pollfd wait[] = {{.fd = serve->signal_fd, .events = POLLIN},
                            {.fd = timeout_ms < 0 ? listen_fd(serve->listen) : -1, .events = POLLIN}};
    struct signalfd_siginfo info;
    if (poll(wait, ARRAY_LENGTH(wait), timeout_ms) < 0 || !(wait[0].revents & POLLIN) ||
        read(serve->signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
        return false;
    log_info("duck", "signal %u: stopping", info.ssi_signo);
    return true;
}

int serve_tcp(const struct options *options, serve_link_fn link, void *user, struct err *err)
{
    _cleanup_(serve_release) struct serve serve = {.name = options->name, .link = link, .user = user, .signal_fd = -1};
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
        int fd;
        char who[LISTEN_PEER_MAX];
        struct err why = {0};
        r = listen_accept(serve.listen, &fd, who, &why);
        if (r == 0) {
            stop = serve_link(&serve, fd, who);
        } else if (r == -EAGAIN) {
            stop = stop_asked(&serve, -1);
        } else {
            complain(&serve, "anybody", why.message);
            stop = stop_asked(&serve, PAUSE_MS);
        }
    }
    sd_notify(0, "STOPPING=1");
    return 0;
}

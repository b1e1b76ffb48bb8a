#include "daemon/duck/loop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include "daemon/duck/feed.h"
#include "daemon/duck/silence.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/wire/msg_hello.h"

#define READS_A_TURN 16              /* then signals and the kernel thread have their turn */
#define OUT_HIGH (64u * 1024 * 1024) /* a peer that does not read its answers is not read either */
#define CHORE_WAIT_MS 1              /* between chores while kernels want the CPUs */
#define LAST_WORDS_MS 1000           /* for a FAIL to leave before the link is closed */

enum { AT_LINK, AT_EXEC, AT_SIGNAL, AT_BESIDE, AT_VERIFY, AT_PACK, AT_COUNT };

struct loop {
    struct transport *transport;      /* borrowed */
    const struct loop_beside *beside; /* borrowed; NULL: nothing */
    uint64_t hello_by_ns;             /* 0: whenever it likes */
    struct exec *exec;                /* owned */
    struct link *link;                /* owned */
    struct feed *feed;                /* owned; NULL: no channel. Its lock is held while a turn does something */
    struct silence silence;           /* begins with HELLO, when there is something beside */
    struct frame_reader reader;
    struct transport_queue out;
    bool more; /* the transport may hold bytes that poll does not see */
};

static void loop_release(struct loop *loop)
{
    exec_free(loop->exec); /* first: a running step reads the link's memory */
    feed_free(loop->feed);
    link_free(loop->link);
    frame_reader_release(&loop->reader);
    transport_queue_release(&loop->out);
}

void loop_signal_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
}

int loop_block_signals(struct err *err)
{
    sigset_t set;
    loop_signal_set(&set);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return err_errno(err, "signals");
    return 0;
}

/* Nothing more is read until answers have left or rows are packed. */
static bool overfull(const struct loop *loop)
{
    return loop->out.buf.length - loop->out.sent > OUT_HIGH || link_full(loop->link);
}

/* Reads what is there, answers it. */
static int serve_input(struct loop *loop, struct err *err)
{
    loop->more = true;
    for (int i = 0; i < READS_A_TURN; i++) {
        if (overfull(loop))
            return 0;
        int r = transport_fill(loop->transport, &loop->reader, err);
        if (r <= 0) {
            loop->more = false;
            return r;
        }
        loop->silence.heard = true;
        struct frame frame;
        while ((r = frame_reader_next(&loop->reader, &frame, err)) > 0) {
            r = frame.type == WIRE_STEP_CANCEL ? feed_take(loop->feed, err) : 0; /* its step may wait there */
            if (r == 0)
                r = link_frame(loop->link, &frame, err);
            if (r < 0)
                return r;
        }
        if (r < 0) {
            (void)msg_fail_encode(&loop->out.buf, 0, err);
            return r;
        }
    }
    return 0;
}

/* Before a link that broke the conversation is closed: its FAIL may leave. */
static void last_words(struct loop *loop)
{
    while (transport_flush(loop->transport, &loop->out, NULL) == 0) {
        struct pollfd wait = {.fd = loop->transport->fd(loop->transport), .events = POLLOUT};
        if (poll(&wait, 1, LAST_WORDS_MS) <= 0)
            return;
    }
}

/* A lost kernel thread may wake up and write at any moment: nothing is freed, no destructor runs. */
_Noreturn static void end_broken(struct loop *loop, const struct err *err)
{
    (void)link_exec_broken(loop->link, err, NULL); /* what cannot be said is not waited for: the link ends */
    log_error("duck", "%s: ending, the weights stay in their buffer", err->message);
    last_words(loop);
    _exit(EXIT_FAILURE);
}

/* Milliseconds that poll may wait: for ever, until a peer's HELLO is overdue, or until running kernels or its silence are looked at. */
static int patience(const struct loop *loop, bool busy)
{
    uint64_t now = clock_now_ns();
    if (busy)
        return EXEC_WATCH_MS;
    if (!loop->hello_by_ns)
        return -1;
    if (link_greeted(loop->link))
        return silence_wait_ms(&loop->silence, now);
    return now < loop->hello_by_ns ? (int)((loop->hello_by_ns - now) / CLOCK_NS_PER_MS) + 1 : 0;
}

/* Writes what fits. That some of it was taken is a sign of life, too: of a peer that is not read, it is the only one. */
static int flush(struct loop *loop, struct err *err)
{
    size_t before = loop->out.buf.length - loop->out.sent;
    int r = transport_flush(loop->transport, &loop->out, err);
    loop->silence.heard |= loop->out.buf.length - loop->out.sent < before;
    return r;
}

static int no_hello(struct loop *loop, struct err *err)
{
    err_set(err, -ETIMEDOUT, ERR_BAD_REQUEST, "no HELLO within %d ms", loop->beside->hello_ms);
    (void)msg_fail_encode(&loop->out.buf, 0, err);
    return -ETIMEDOUT;
}

/* Of a peer that kept its time so far. -ETIMEDOUT: no HELLO; LOOP_CLOSED by *ret_silent. */
static int check_time(struct loop *loop, bool *ret_silent, struct err *err)
{
    uint64_t now = clock_now_ns();
    if (!loop->hello_by_ns)
        return 0;
    if (!link_greeted(loop->link))
        return now < loop->hello_by_ns ? 0 : no_hello(loop, err);
    if (!loop->silence.heartbeat_ns)
        silence_begin(&loop->silence, link_heartbeat_s(loop->link), now);
    loop->silence.heard |= link_full(loop->link); /* it is us who do not read */
    *ret_silent = silence_look(&loop->silence, now);
    return 0;
}

/* Its end is said to it, in case it wakes up, and to the log: such a head has held the duck for a while. */
static void give_up(struct loop *loop)
{
    struct err why;
    err_set(&why, -ETIMEDOUT, ERR_BUSY, "nothing came from %s for %u s: the link is given up, the weights stay", link_peer(loop->link),
            silence_limit_s(&loop->silence));
    log_warning("duck", "%s", why.message);
    (void)msg_fail_encode(&loop->out.buf, 0, &why);
    last_words(loop);
}

static bool peer_gone(int code)
{
    return code == -ECONNRESET || code == -EPIPE;
}

/* Steps of a channel begin and end without this thread: while a session is open it looks after the kernels. */
static bool may_run(const struct loop *loop)
{
    return exec_busy(loop->exec, EXEC_INTERACTIVE) || exec_busy(loop->exec, EXEC_BATCH) || (loop->feed && link_has_sessions(loop->link));
}

/* Waits, and does what there is; the feed's lock is held but for the wait. */
static int locked_turn(struct loop *loop, int signal_fd, bool *ret_stop, bool *ret_silent, struct err *err)
{
    bool want_write = !transport_queue_empty(&loop->out);
    struct pollfd wait[AT_COUNT] = {
        [AT_LINK] = {.fd = loop->transport->fd(loop->transport), .events = loop->transport->events(loop->transport, want_write)},
        [AT_EXEC] = {.fd = exec_event_fd(loop->exec), .events = POLLIN},
        [AT_SIGNAL] = {.fd = signal_fd, .events = POLLIN},
        [AT_VERIFY] = {.fd = link_verify_fd(loop->link), .events = POLLIN},
        [AT_PACK] = {.fd = link_pack_fd(loop->link), .events = POLLIN},
        [AT_BESIDE] = {.fd = loop->beside ? loop->beside->fd : -1, .events = POLLIN},
    };
    bool full = overfull(loop);
    if (full)
        wait[AT_LINK].events &= ~POLLIN;
    bool busy = may_run(loop);
    int timeout = loop->more && !full ? 0 : patience(loop, busy);
    bool chores = link_has_chores(loop->link);
    if (chores && timeout)
        timeout = busy ? CHORE_WAIT_MS : 0;
    feed_unlock(loop->feed);
    int got = poll(wait, AT_COUNT, timeout);
    feed_lock(loop->feed);
    if (got < 0 && errno != EINTR)
        return err_errno(err, "poll");
    if (busy)
        exec_watch(loop->exec, clock_now_ns());
    struct signalfd_siginfo info;
    if (wait[AT_SIGNAL].revents & POLLIN && read(signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        log_info("duck", "signal %u: stopping", info.ssi_signo);
        *ret_stop = true;
        return 0;
    }
    if (wait[AT_BESIDE].revents & POLLIN)
        loop->beside->ready(loop->beside->user, link_peer(loop->link));
    int r = 0;
    if (wait[AT_EXEC].revents & POLLIN)
        r = link_exec_event(loop->link, err);
    if (exec_broken(loop->exec))
        end_broken(loop, exec_broken(loop->exec));
    if (r == 0 && wait[AT_VERIFY].revents & POLLIN)
        r = link_verify_event(loop->link, err);
    if (r == 0 && wait[AT_PACK].revents & POLLIN)
        r = link_pack_event(loop->link, err);
    /* Results leave before more work is read in. */
    if (r == 0)
        r = flush(loop, err);
    if (r >= 0 && (loop->more || wait[AT_LINK].revents & (POLLIN | POLLHUP | POLLERR)))
        r = serve_input(loop, err);
    if (r >= 0 && chores)
        r = link_chore(loop->link, err);
    if (r >= 0)
        r = feed_take(loop->feed, err);
    if (r >= 0)
        r = flush(loop, err);
    return r < 0 ? r : check_time(loop, ret_silent, err);
}

static int turn(struct loop *loop, int signal_fd, bool *ret_stop, bool *ret_silent, struct err *err)
{
    feed_lock(loop->feed);
    int r = locked_turn(loop, signal_fd, ret_stop, ret_silent, err);
    feed_unlock(loop->feed);
    return r;
}

int loop_run(struct transport *transport, const struct link_facts *facts, struct wbuf *wbuf, const struct team_setup *setup,
             const struct loop_beside *beside, const struct loop_channel *channel, struct err *err)
{
    sigset_t set;
    loop_signal_set(&set);
    _cleanup_(closep) int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_fd < 0)
        return err_errno(err, "signalfd");
    _cleanup_(loop_release) struct loop loop = {.transport = transport, .beside = beside};
    if (beside)
        loop.hello_by_ns = clock_now_ns() + (uint64_t)beside->hello_ms * CLOCK_NS_PER_MS;
    struct link_facts all = *facts;
    if (beside)
        all.from = beside->from;
    int r = exec_new(wbuf_fd(wbuf), setup, &loop.exec, err);
    if (r == 0)
        r = link_new(&all, wbuf, loop.exec, &loop.out.buf, &loop.link, err);
    if (r == 0 && channel)
        r = feed_new(channel->channel, channel->bell_fd, channel->may_spin, loop.link, loop.exec, &loop.out.buf, &loop.feed, err);
    bool stop = false, silent = false;
    while (r == 0 && !stop && !silent)
        r = turn(&loop, signal_fd, &stop, &silent, err);
    if (r == 0 && silent) {
        give_up(&loop);
        return LOOP_CLOSED;
    }
    if (r < 0 && peer_gone(r)) {
        if (link_greeted(loop.link))
            log_info("duck", "the link was closed by fp9d");
        return LOOP_CLOSED;
    }
    if (r < 0)
        last_words(&loop);
    return r < 0 ? r : LOOP_STOPPED;
}

#include "daemon/head/peer.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>

#include "daemon/head/local.h"
#include "daemon/head/remote.h"
#include "daemon/head/step_channel.h"
#include "proto/base/bytes.h"
#include "proto/base/clock.h"
#include "proto/wire/msg_staged.h"
#include "proto/wire/transport_socket.h"
#include "proto/wire/transport_tcp.h"

#define PEER_LINGER (500 * CLOCK_NS_PER_MS) /* between a closed link and SIGKILL */
#define FLUSH_ROWS (128u * 1024)            /* bytes of rows written before others have the thread */
#define POLL_FRAMES 64                      /* taken from a channel at once */
#define PEER_STOP_WAIT_MS 2000              /* a killed child that does not end by then is left to the kernel */

enum peer_phase {
    PEER_IDLE,
    PEER_HELLO, /* HELLO sent */
    PEER_SLOTS, /* SLOTS_GET sent */
    PEER_UP,
};

struct peer {
    struct loop *loop;
    uint32_t duck;
    char name[WIRE_NAME_MAX];
    struct peer_callbacks callbacks;
    /* how to start it */
    struct local_setup local; /* its strings and weights_fd are owned; the weights are kept across restarts */
    /* or how to reach it */
    char *address;         /* owned; NULL: it is local */
    struct worker *names;  /* borrowed */
    struct remote *remote; /* while it is being connected to; owned */
    uint64_t generation;   /* counted up by peer_stop: what was posted before is void */
    uint32_t heartbeat_s;
    /* the link */
    enum peer_phase phase;
    bool deaf; /* it takes no more bytes; what it had to say is still read */
    /* the running child */
    pid_t pid;
    int pidfd;
    struct loop_io *pid_io, *link_io;
    struct transport *transport;
    struct frame_reader reader;
    struct outgoing_queue step, bulk;
    struct outgoing *now; /* being written; from one of the queues */
    size_t now_sent;
    struct outgoing *held; /* of staged rows, written: the child may be reading them */
    uint64_t unpacked;     /* bytes of rows sent that the duck has not told of */
    struct msg_hello_duck hello;
    /* beside the link of a local duck */
    bool use_channel;
    uint32_t spin_us;
    struct step_channel channel;
    struct peer_counts counts;
    uint64_t closed_ns;           /* when the link broke while the child was still there; 0: not */
    char broken[ERR_MESSAGE_MAX]; /* why the link broke, if it was not a plain end of stream */
};

int peer_new(struct loop *loop, uint32_t duck, const char *name, const struct peer_callbacks *callbacks, struct peer **ret_peer,
             struct err *err)
{
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return err_no_memory(err, "duck", sizeof *peer);
    *peer = (struct peer){.loop = loop, .duck = duck, .callbacks = *callbacks, .local = {.weights_fd = -1}, .pidfd = -1};
    snprintf(peer->name, sizeof peer->name, "%s", name);
    *ret_peer = peer;
    return 0;
}

void peer_set_local(struct peer *peer, const struct local_setup *setup)
{
    peer->local = *setup;
    peer->local.name = peer->name;
    peer->local.program = strdup(setup->program);
    peer->local.cores = strdup(setup->cores);
    if (!peer->local.program || !peer->local.cores)
        abort();
}

void peer_set_channel(struct peer *peer, bool use, uint32_t spin_us)
{
    peer->use_channel = use;
    peer->spin_us = spin_us;
}

bool peer_has_channel(const struct peer *peer)
{
    return peer->channel.channel && peer->phase == PEER_UP && peer->hello.features & WIRE_FEATURE_CHANNEL;
}

struct peer_counts peer_counts(const struct peer *peer)
{
    return peer->counts;
}

void peer_set_heartbeat(struct peer *peer, uint32_t heartbeat_s)
{
    peer->heartbeat_s = heartbeat_s;
}

void peer_set_remote(struct peer *peer, const char *address, struct worker *names)
{
    peer->address = strdup(address);
    if (!peer->address)
        abort();
    peer->names = names;
}

const char *peer_address(const struct peer *peer)
{
    return peer->address ? peer->address : "local";
}

bool peer_sees_stage(const struct peer *peer)
{
    return !peer->address && peer->hello.features & WIRE_FEATURE_STAGE;
}

pid_t peer_pid(const struct peer *peer)
{
    return peer->pid;
}

static void close_link(struct peer *peer)
{
    loop_io_free(peer->link_io);
    peer->link_io = NULL;
    transport_close(peer->transport);
    peer->transport = NULL;
    step_channel_close(&peer->channel);
    frame_reader_release(&peer->reader);
    outgoing_unref(peer->now);
    peer->now = NULL;
    peer->unpacked = 0;
    outgoing_drop(&peer->step);
    outgoing_drop(&peer->bulk);
    peer->phase = PEER_IDLE;
    peer->deaf = false;
}

/* Takes the first out of a list. */
static struct outgoing *let_go(struct outgoing **at)
{
    struct outgoing *out = *at;
    *at = out->next;
    return out;
}

/* Only now is it certain that it reads the stage no more: a link may be closed and frames that came before still be worked on. */
static void forget_child(struct peer *peer)
{
    loop_io_free(peer->pid_io);
    peer->pid_io = NULL;
    closep(&peer->pidfd);
    peer->pid = 0;
    while (peer->held)
        outgoing_unref(let_go(&peer->held));
    peer->closed_ns = 0;
    peer->broken[0] = '\0';
}

void peer_stop(struct peer *peer)
{
    peer->generation++;
    remote_cancel(STEAL(peer->remote));
    close_link(peer);
    if (peer->pid) {
        pidfd_send_signal(peer->pidfd, SIGKILL, NULL, 0);
        struct pollfd ended = {.fd = peer->pidfd, .events = POLLIN};
        poll(&ended, 1, PEER_STOP_WAIT_MS);
        char how[128];
        local_reap(peer->pidfd, how, sizeof how);
    }
    forget_child(peer);
}

void peer_free(struct peer *peer)
{
    if (!peer)
        return;
    peer_stop(peer);
    closep(&peer->local.weights_fd);
    free(peer->step.items);
    free(peer->bulk.items);
    free((char *)peer->local.program);
    free((char *)peer->local.cores);
    free(peer->address);
    free(peer);
}

struct loss {
    struct peer *peer;
    uint64_t generation;
    char reason[ERR_MESSAGE_MAX];
};

static void report_loss(void *user)
{
    struct loss *loss = user;
    struct peer *peer = loss->peer;
    if (loss->generation == peer->generation)
        peer->callbacks.lost(peer->callbacks.user, peer->duck, loss->reason);
    free(loss);
}

/* From the loop, so that whoever starts a peer or sends to it is never re-entered. */
static void post_loss(struct peer *peer, const char *reason)
{
    struct loss *loss = calloc(1, sizeof *loss);
    if (!loss)
        abort();
    loss->peer = peer;
    loss->generation = peer->generation;
    snprintf(loss->reason, sizeof loss->reason, "%s", reason);
    loop_post(peer->loop, report_loss, loss);
}

/* The link is of no more use. Of a local duck the child's end (or the linger) brings `lost`, with the better reason. */
static void link_broken(struct peer *peer, const char *why)
{
    if (why)
        snprintf(peer->broken, sizeof peer->broken, "%s", why);
    close_link(peer);
    if (!peer->address) {
        peer->closed_ns = clock_now_ns();
        return;
    }
    post_loss(peer, peer->broken[0] ? peer->broken : "it closed the link");
    peer->broken[0] = '\0';
}

static void child_ended(void *user, bool readable, bool writable)
{
    (void)readable;
    (void)writable;
    struct peer *peer = user;
    char how[128], reason[ERR_MESSAGE_MAX + 256];
    if (!local_reap(peer->pidfd, how, sizeof how))
        return;
    snprintf(reason, sizeof reason, "its process %s%s%s", how, peer->broken[0] ? " after: " : "", peer->broken);
    close_link(peer);
    forget_child(peer);
    peer->callbacks.lost(peer->callbacks.user, peer->duck, reason);
}

void peer_tick(struct peer *peer, uint64_t now)
{
    if (peer->pid && peer->closed_ns && now - peer->closed_ns > PEER_LINGER)
        pidfd_send_signal(peer->pidfd, SIGKILL, NULL, 0);
}

/* Nothing more can be written. What the duck said before it closed (why it refuses, say) is still to be read; the end of the stream
 * follows it. */
static void write_failed(struct peer *peer, int number)
{
    if (number != EPIPE && number != ECONNRESET)
        snprintf(peer->broken, sizeof peer->broken, "write to its link: %s", strerror(number));
    peer->deaf = true;
    outgoing_unref(STEAL(peer->now));
    outgoing_drop(&peer->step);
    outgoing_drop(&peer->bulk);
    loop_io_want(peer->link_io, true, false);
}

static bool is_rows(const struct outgoing *out)
{
    struct bytes_reader r = bytes_reader_init(out->buf.data + 4, 2);
    return bytes_read_u16(&r) == WIRE_PREPARE_DATA;
}

/* The next bulk frame, if the duck has packed enough of those before it. */
static struct outgoing *next_bulk(struct peer *peer)
{
    if (!peer->bulk.count)
        return NULL;
    const struct outgoing *next = peer->bulk.items[peer->bulk.first];
    if (!(peer->hello.features & WIRE_FEATURE_TAKEN) || !is_rows(next))
        return outgoing_pop(&peer->bulk);
    uint64_t bytes = next->buf.length;
    if (peer->unpacked && peer->unpacked + bytes > WIRE_PREPARE_WINDOW)
        return NULL;
    peer->unpacked += bytes;
    return outgoing_pop(&peer->bulk);
}

/* Writes until all is out or the socket is full, or rows have had their turn: steps of other ducks wait for this thread. */
static void flush(struct peer *peer)
{
    size_t rows = 0;
    while (!peer->deaf && rows < FLUSH_ROWS) {
        if (!peer->now) {
            peer->now = outgoing_pop(&peer->step);
            if (!peer->now)
                peer->now = next_bulk(peer);
            peer->now_sent = 0;
            if (!peer->now)
                break;
        }
        const struct buf *buf = &peer->now->buf;
        struct iovec part = {.iov_base = buf->data + peer->now_sent, .iov_len = buf->length - peer->now_sent};
        ssize_t n = peer->transport->writev(peer->transport, &part, 1);
        if (n == -EAGAIN)
            break;
        if (n < 0) {
            write_failed(peer, (int)-n);
            return;
        }
        peer->now_sent += (size_t)n;
        rows += is_rows(peer->now) ? (size_t)n : 0;
        if (peer->now_sent < buf->length)
            continue;
        struct outgoing *done = STEAL(peer->now);
        if (done->staged) {
            done->next = peer->held;
            peer->held = done;
        } else {
            outgoing_unref(done);
        }
    }
    bool more = peer->now || peer->step.count || (rows >= FLUSH_ROWS && peer->bulk.count);
    loop_io_want(peer->link_io, true, more);
}

void peer_send(struct peer *peer, struct outgoing *out, bool bulk)
{
    if (!peer->transport || peer->deaf)
        return;
    out->refs++;
    outgoing_push(bulk ? &peer->bulk : &peer->step, out);
    flush(peer);
}

static void send_simple(struct peer *peer, struct outgoing *out, int r)
{
    if (r < 0)
        abort(); /* a few hundred bytes */
    peer_send(peer, out, false);
    outgoing_unref(out);
}

static int take_hello(struct peer *peer, const struct frame *frame, struct err *err)
{
    if (frame->type == WIRE_FAIL) {
        struct err theirs = {0};
        int r = msg_fail_decode(frame, &theirs, err);
        if (r < 0)
            return r;
        err_copy(err, &theirs);
        return err_prefix(err, "it refused the link");
    }
    if (frame->type != WIRE_HELLO_DUCK)
        return err_set(err, -EPROTO, ERR_INTERNAL, "it sent %s before its HELLO_DUCK", frame_type_name(frame->type));
    int r = msg_hello_duck_decode(frame, &peer->hello, err);
    if (r < 0)
        return r;
    if (peer->hello.major != WIRE_VERSION_MAJOR)
        return err_set(err, -EPROTO, ERR_INTERNAL, "%s speaks link version %u.%u, this fp9d %s speaks %d.%d", peer->hello.software,
                       peer->hello.major, peer->hello.minor, FP9_VERSION, WIRE_VERSION_MAJOR, WIRE_VERSION_MINOR);
    if (!(peer->hello.features & WIRE_FEATURE_CACHE))
        return err_set(err, -EPROTO, ERR_INTERNAL, "%s is too old for this fp9d %s: its weight cache cannot be checked; upgrade it",
                       peer->hello.software, FP9_VERSION);
    peer->callbacks.greeted(peer->callbacks.user, peer->duck, &peer->hello);
    struct outgoing *out = outgoing_new();
    send_simple(peer, out, msg_empty_encode(&out->buf, WIRE_SLOTS_GET, 1));
    peer->phase = PEER_SLOTS;
    return 0;
}

static int take_slots(struct peer *peer, const struct frame *frame, struct err *err)
{
    if (frame->type == WIRE_REVOKED) {
        peer->callbacks.frame(peer->callbacks.user, peer->duck, frame);
        return 0;
    }
    if (frame->type != WIRE_SLOTS)
        return err_set(err, -EPROTO, ERR_INTERNAL, "it sent %s instead of SLOTS", frame_type_name(frame->type));
    _cleanup_(freep) struct msg_slot *slots = NULL;
    size_t count;
    int r = msg_slots_decode(frame, &slots, &count, err);
    if (r < 0)
        return r;
    peer->phase = PEER_UP;
    peer->callbacks.up(peer->callbacks.user, peer->duck, &peer->hello, slots, count);
    return 0;
}

static int take_taken(struct peer *peer, const struct frame *frame, struct err *err)
{
    uint64_t bytes;
    int r = msg_prepare_taken_decode(frame, &bytes, err);
    if (r < 0)
        return r;
    if (bytes > peer->unpacked)
        return err_set(err, -EPROTO, ERR_INTERNAL, "it took %" PRIu64 " bytes of rows, %" PRIu64 " were sent", bytes, peer->unpacked);
    peer->unpacked -= bytes;
    flush(peer);
    return 0;
}

static int take_staged_taken(struct peer *peer, const struct frame *frame, struct err *err)
{
    uint64_t ticket;
    int r = msg_staged_taken_decode(frame, &ticket, err);
    if (r < 0)
        return r;
    struct outgoing **at = &peer->held;
    while (*at && (*at)->ticket != ticket)
        at = &(*at)->next;
    if (!*at)
        return err_set(err, -EPROTO, ERR_INTERNAL, "it took rows of ticket %" PRIu64 ", which it does not have", ticket);
    outgoing_unref(let_go(at));
    return 0;
}

static int take_frame(struct peer *peer, const struct frame *frame, struct err *err)
{
    switch (peer->phase) {
    case PEER_HELLO: return take_hello(peer, frame, err);
    case PEER_SLOTS: return take_slots(peer, frame, err);
    case PEER_UP:
        if (frame->type == WIRE_PREPARE_TAKEN)
            return take_taken(peer, frame, err);
        if (frame->type == WIRE_STAGED_TAKEN)
            return take_staged_taken(peer, frame, err);
        if (frame->type == WIRE_FAIL) /* perhaps of a step */
            step_channel_answered(&peer->channel);
        peer->callbacks.frame(peer->callbacks.user, peer->duck, frame);
        return 0;
    case PEER_IDLE: return 0;
    }
    return 0;
}

static void link_event(void *user, bool readable, bool writable)
{
    struct peer *peer = user;
    if (writable)
        flush(peer);
    if (!readable)
        return;
    struct err err = {0};
    int r = transport_fill(peer->transport, &peer->reader, &err);
    bool ended = r < 0;
    while (peer->transport) {
        struct frame frame = {0};
        struct err bad = {0};
        int got = frame_reader_next(&peer->reader, &frame, &bad);
        if (got == 0)
            break;
        if (got > 0)
            got = take_frame(peer, &frame, &bad);
        if (got < 0) {
            if (peer->phase == PEER_HELLO && peer->address && !frame.type)
                err_prefix(&bad, "what answers there is no fp9-duck");
            link_broken(peer, bad.message);
            return;
        }
    }
    if (ended && peer->transport)
        link_broken(peer, r == -ECONNRESET ? NULL : err.message);
}

/* ---- the channel ---- */

/* The duck's main thread looks into the channel after each frame that it reads; this one costs it nothing else. */
static void nudge(struct peer *peer)
{
    struct outgoing *out = outgoing_new();
    const struct msg_ping ping = {.stamp = clock_now_ns()};
    send_simple(peer, out, msg_ping_encode(&out->buf, WIRE_PING, 0, &ping));
}

void peer_send_step(struct peer *peer, struct outgoing *out, bool opened)
{
    struct err err;
    enum step_channel_put put = STEP_CHANNEL_FULL;
    if (opened && peer_has_channel(peer) && !peer->deaf && step_channel_put(&peer->channel, &out->buf, &put, &err) < 0) {
        link_broken(peer, err.message);
        return;
    }
    if (put == STEP_CHANNEL_FULL) {
        peer->counts.socket_steps++;
        peer_send(peer, out, false);
        return;
    }
    peer->counts.channel_steps++;
    if (put == STEP_CHANNEL_NUDGE)
        nudge(peer);
}

enum loop_found peer_poll(struct peer *peer)
{
    const struct channel *channel = peer->channel.channel;
    if (!channel)
        return LOOP_IDLE;
    if (!channel_pending(channel))
        return step_channel_expects(&peer->channel);
    struct frame frame;
    struct err err;
    int r = peer_has_channel(peer) ? 0 : err_set(&err, -EPROTO, ERR_INTERNAL, "it wrote into its channel before it said that it has one");
    for (int i = 0; i < POLL_FRAMES && r >= 0 && (r = step_channel_next(&peer->channel, &frame, &err)) > 0; i++) {
        peer->callbacks.frame(peer->callbacks.user, peer->duck, &frame);
        if (peer->channel.channel != channel)
            return LOOP_FOUND; /* the frame was the last of this link */
        channel_taken(peer->channel.channel);
    }
    if (r < 0)
        link_broken(peer, err.message);
    return LOOP_FOUND;
}

bool peer_park(struct peer *peer)
{
    return step_channel_park(&peer->channel);
}

static void say_hello(struct peer *peer)
{
    struct msg_hello hello = {
        .major = WIRE_VERSION_MAJOR,
        .minor = WIRE_VERSION_MINOR,
        .features = WIRE_FEATURE_BUFFER | WIRE_FEATURE_COUNTS | WIRE_FEATURE_ONE_SHOT | WIRE_FEATURE_TAKEN |
                    (peer->channel.channel ? WIRE_FEATURE_CHANNEL : 0),
        .heartbeat_s = (uint16_t)peer->heartbeat_s, /* the configuration has WIRE_HEARTBEAT_MAX_S, too */
    };
    snprintf(hello.software, sizeof hello.software, "fp9d " FP9_VERSION " (pid %d)", (int)getpid());
    gethostname(hello.host, sizeof hello.host - 1);
    struct outgoing *out = outgoing_new();
    peer->phase = PEER_HELLO;
    send_simple(peer, out, msg_hello_encode(&out->buf, 0, &hello));
}

static int open_link(struct peer *peer, int fd, struct err *err)
{
    int r = peer->address ? transport_tcp_new(fd, &peer->transport, err) : transport_socket_new(fd, &peer->transport, err);
    if (r < 0) {
        close(fd);
        return r;
    }
    return loop_io_add(peer->loop, fd, link_event, peer, &peer->link_io, err);
}

static int start_child(struct peer *peer, struct err *err)
{
    int link, r = 0;
    _cleanup_(closep) int memory = -1;
    if (peer->use_channel)
        r = step_channel_open(&peer->channel, peer->spin_us, &memory, err);
    struct local_setup setup = peer->local;
    setup.channel_fd = memory;
    setup.bell_fd = loop_bell_fd(peer->loop);
    if (r == 0)
        r = local_start(&setup, &peer->pid, &peer->pidfd, &link, err);
    if (r == 0)
        r = open_link(peer, link, err);
    return r < 0 ? r : loop_io_add(peer->loop, peer->pidfd, child_ended, peer, &peer->pid_io, err);
}

static void connected(void *user, int fd, const char *why)
{
    struct peer *peer = user;
    struct err err = {0};
    peer->remote = NULL;
    if (fd >= 0 && open_link(peer, fd, &err) == 0) {
        say_hello(peer);
        return;
    }
    close_link(peer);
    post_loss(peer, fd < 0 ? why : err.message);
}

void peer_start(struct peer *peer)
{
    struct err err = {0};
    if (peer->address) {
        peer->remote = remote_connect(peer->loop, peer->names, peer->address, connected, peer);
    } else if (start_child(peer, &err) < 0) {
        peer_stop(peer);
        post_loss(peer, err.message);
    } else {
        say_hello(peer);
    }
}

#include "daemon/head/peer_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/wire/msg_staged.h"
#include "proto/wire/transport_socket.h"
#include "proto/wire/transport_tcp.h"

#define POLL_FRAMES 64 /* taken from a channel at once */

void peer_link_close(struct peer *peer)
{
    loop_io_free(peer->link_io);
    peer->link_io = NULL;
    transport_close(peer->transport);
    peer->transport = NULL;
    step_channel_close(&peer->channel);
    frame_reader_release(&peer->reader);
    outbox_reset(&peer->outbox);
    peer->phase = PEER_IDLE;
    peer->deaf = false;
}

/* Nothing more can be written. What the duck said before it closed (why it refuses, say) is still to be read; the end of the stream
 * follows it. */
static void write_failed(struct peer *peer, int number)
{
    if (number != EPIPE && number != ECONNRESET)
        snprintf(peer->broken, sizeof peer->broken, "write to its link: %s", strerror(number));
    peer->deaf = true;
    outbox_drop(&peer->outbox);
}

static void flush(struct peer *peer)
{
    bool more = false;
    int r = 0;
    if (!peer->deaf)
        r = outbox_flush(&peer->outbox, peer->transport, peer->hello.features & WIRE_FEATURE_TAKEN, &more);
    if (r < 0)
        write_failed(peer, -r);
    loop_io_want(peer->link_io, true, more);
}

void peer_send(struct peer *peer, struct outgoing *out, bool bulk)
{
    if (!peer->transport || peer->deaf)
        return;
    outbox_put(&peer->outbox, out, bulk);
    flush(peer);
}

static void send_simple(struct peer *peer, struct outgoing *out, int r)
{
    if (r < 0)
        abort(); /* a few hundred bytes */
    peer_send(peer, out, false);
    outgoing_unref(out);
}

void peer_link_hello(struct peer *peer)
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
    if (r == 0)
        r = outbox_packed(&peer->outbox, bytes, err);
    if (r == 0)
        flush(peer);
    return r;
}

static int take_staged_taken(struct peer *peer, const struct frame *frame, struct err *err)
{
    uint64_t ticket;
    int r = msg_staged_taken_decode(frame, &ticket, err);
    return r < 0 ? r : outbox_staged_taken(&peer->outbox, ticket, err);
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
            peer_broken(peer, bad.message);
            return;
        }
    }
    if (ended && peer->transport)
        peer_broken(peer, r == -ECONNRESET ? NULL : err.message);
}

int peer_link_open(struct peer *peer, int fd, struct err *err)
{
    int r = peer->address ? transport_tcp_new(fd, &peer->transport, err) : transport_socket_new(fd, &peer->transport, err);
    if (r < 0) {
        close(fd);
        return r;
    }
    return loop_io_add(peer->loop, fd, link_event, peer, &peer->link_io, err);
}

/* ---- the channel ---- */

bool peer_has_channel(const struct peer *peer)
{
    return peer->channel.channel && peer->phase == PEER_UP && peer->hello.features & WIRE_FEATURE_CHANNEL;
}

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
        peer_broken(peer, err.message);
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

bool peer_withdraw_step(struct peer *peer, uint64_t step)
{
    return outgoing_withdraw(&peer->outbox.step, WIRE_STEP, step);
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
        peer_broken(peer, err.message);
    return LOOP_FOUND;
}

bool peer_park(struct peer *peer)
{
    return step_channel_park(&peer->channel);
}

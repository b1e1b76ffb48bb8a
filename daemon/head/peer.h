/* One duck's link as fp9d sees it: process or connection, transport, frames in and out. A local duck is a child of fp9d on a socketpair;
 * a remote one is a service somewhere that is connected to over TCP.
 *
 * Outgoing frames wait in an outbox (outbox.h): a step never waits behind more than one frame of weights.
 *
 * With a local duck steps go through shared memory (proto/wire/channel.h) when there is room; peer_poll looks for its answers, and
 * the duck rings the loop's bell when the loop sleeps. Loop thread only. */
#ifndef FP9_HEAD_PEER_H
#define FP9_HEAD_PEER_H

#include <stdint.h>
#include <sys/types.h>

#include "daemon/head/local.h"
#include "daemon/head/loop.h"
#include "daemon/head/outgoing.h"
#include "daemon/head/worker.h"
#include "proto/base/buf.h"
#include "proto/wire/msg_hello.h"
#include "proto/wire/msg_prepare.h"
#include "proto/wire/transport.h"

struct peer;

struct peer_callbacks {
    void *user;
    void (*greeted)(void *user, uint32_t duck, const struct msg_hello_duck *hello); /* frames sent now come before SLOTS_GET */
    void (*up)(void *user, uint32_t duck, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t count);
    void (*lost)(void *user, uint32_t duck, const char *reason);
    void (*frame)(void *user, uint32_t duck, const struct frame *frame); /* every frame after SLOTS, and REVOKED before it */
};

int peer_new(struct loop *loop, uint32_t duck, const char *name, const struct peer_callbacks *callbacks, struct peer **ret_peer,
             struct err *err);
/* Kills and reaps a child, closes everything. */
void peer_free(struct peer *peer);
CLEANUP_DEFINE(struct peer *, peer_free);

/* What a local duck is started with; copied. weights_fd is taken, stage_fd borrowed; name, channel and bell are the peer's own. */
void peer_set_local(struct peer *peer, const struct local_setup *setup);
/* A local duck gets a channel from its next start on. spin_us: how long its kernel thread and this one may spin for each other. */
void peer_set_channel(struct peer *peer, bool use, uint32_t spin_us);
/* What a remote duck is reached by: "HOST:PORT", looked up on `names` (borrowed). */
void peer_set_remote(struct peer *peer, const char *address, struct worker *names);
/* What the duck is told of it, so that it knows when fp9d is gone. */
void peer_set_heartbeat(struct peer *peer, uint32_t heartbeat_s);
/* "local", or the address of a remote duck. */
const char *peer_address(const struct peer *peer);
/* Starts the child or connects, then shakes hands. An error is reported through `lost`, later. */
void peer_start(struct peer *peer);
/* SIGKILL to a child, the end of a connection; no `lost` follows. */
void peer_stop(struct peer *peer);
/* A few times a second: kills a child that closed its link but does not end. */
void peer_tick(struct peer *peer, uint64_t now);
/* It takes PREPARE_STAGED. */
bool peer_sees_stage(const struct peer *peer);
pid_t peer_pid(const struct peer *peer); /* 0: none, or remote */

/* Of the channel, as struct loop_poller wants them. */
enum loop_found peer_poll(struct peer *peer);
bool peer_park(struct peer *peer);
bool peer_has_channel(const struct peer *peer);
struct peer_counts {
    uint64_t channel_steps, socket_steps; /* STEP frames sent each way since the peer was made */
};
struct peer_counts peer_counts(const struct peer *peer);

/* A STEP. `opened`: the duck has answered the session's SESSION_OPEN, so that the frame need not follow it on the socket. */
void peer_send_step(struct peer *peer, struct outgoing *out, bool opened);

/* A STEP that has not begun to be sent is not sent at all; false: the duck has it, or a part of it. */
bool peer_withdraw_step(struct peer *peer, uint64_t step);

/* Takes a reference of its own. Frames for a peer without a link are dropped: its loss is reported anyway. */
void peer_send(struct peer *peer, struct outgoing *out, bool bulk);

#endif

#include "daemon/head/peer_parts.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>

#include "daemon/head/local.h"
#include "daemon/head/remote.h"
#include "proto/base/clock.h"

#define PEER_LINGER (500 * CLOCK_NS_PER_MS) /* between a closed link and SIGKILL */
#define PEER_STOP_WAIT_MS 2000              /* a killed child that does not end by then is left to the kernel */

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

/* Only now is it certain that it reads the stage no more: a link may be closed and frames that came before still be worked on. */
static void forget_child(struct peer *peer)
{
    loop_io_free(peer->pid_io);
    peer->pid_io = NULL;
    closep(&peer->pidfd);
    peer->pid = 0;
    outbox_let_go(&peer->outbox);
    peer->closed_ns = 0;
    peer->broken[0] = '\0';
}

void peer_stop(struct peer *peer)
{
    peer->generation++;
    remote_cancel(STEAL(peer->remote));
    peer_link_close(peer);
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
    outbox_release(&peer->outbox);
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

/* Of a local duck the child's end (or the linger) brings `lost`, with the better reason. */
void peer_broken(struct peer *peer, const char *why)
{
    if (why)
        snprintf(peer->broken, sizeof peer->broken, "%s", why);
    peer_link_close(peer);
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
    peer_link_close(peer);
    forget_child(peer);
    peer->callbacks.lost(peer->callbacks.user, peer->duck, reason);
}

void peer_tick(struct peer *peer, uint64_t now)
{
    if (peer->pid && peer->closed_ns && now - peer->closed_ns > PEER_LINGER)
        pidfd_send_signal(peer->pidfd, SIGKILL, NULL, 0);
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
        r = peer_link_open(peer, link, err);
    return r < 0 ? r : loop_io_add(peer->loop, peer->pidfd, child_ended, peer, &peer->pid_io, err);
}

static void connected(void *user, int fd, const char *why)
{
    struct peer *peer = user;
    struct err err = {0};
    peer->remote = NULL;
    if (fd >= 0 && peer_link_open(peer, fd, &err) == 0) {
        peer_link_hello(peer);
        return;
    }
    peer_link_close(peer);
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
        peer_link_hello(peer);
    }
}

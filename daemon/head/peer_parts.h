/* A peer from inside: peer.c has how it comes and goes, peer_link.c what is said over its link and channel. Nobody else includes this. */
#ifndef FP9_HEAD_PEER_PARTS_H
#define FP9_HEAD_PEER_PARTS_H

#include "daemon/head/outbox.h"
#include "daemon/head/peer.h"
#include "daemon/head/remote.h"
#include "daemon/head/step_channel.h"

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
    struct transport *transport;
    struct loop_io *link_io;
    struct frame_reader reader;
    struct outbox outbox;
    struct msg_hello_duck hello;
    /* the running child */
    pid_t pid;
    int pidfd;
    struct loop_io *pid_io;
    /* beside the link of a local duck */
    bool use_channel;
    uint32_t spin_us;
    struct step_channel channel;
    struct peer_counts counts;
    uint64_t closed_ns;           /* when the link broke while the child was still there; 0: not */
    char broken[ERR_MESSAGE_MAX]; /* why the link broke, if it was not a plain end of stream */
};

/* peer.c. The link is of no more use; NULL: it ended in the plain way. */
void peer_broken(struct peer *peer, const char *why);

/* peer_link.c. Takes fd. */
int peer_link_open(struct peer *peer, int fd, struct err *err);
void peer_link_hello(struct peer *peer);
void peer_link_close(struct peer *peer);

#endif

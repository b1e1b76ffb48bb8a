/* HELLO, HELLO_DUCK, FAIL, PING, PONG. */
#ifndef FP9_WIRE_MSG_HELLO_H
#define FP9_WIRE_MSG_HELLO_H

#include "proto/wire/frame.h"

struct msg_hello {
    uint16_t major, minor;
    uint64_t features;            /* WIRE_FEATURE_...; unknown bits are ignored */
    char software[WIRE_NAME_MAX]; /* "fp9d 0.1.0 (pid 4711)" */
    char host[WIRE_NAME_MAX];
    uint16_t heartbeat_s; /* between the head's PINGs, up to WIRE_HEARTBEAT_MAX_S; 0: not said */
};

struct msg_hello_duck {
    uint16_t major, minor;
    uint64_t features;
    char software[WIRE_NAME_MAX]; /* "fp9-duck 0.1.0" */
    char name[WIRE_NAME_MAX];
    char boot_id[WIRE_NAME_MAX]; /* identity of the weight buffer's life: changes when its contents were lost */
    char isa[16];                /* kernel tier in use */
    uint32_t cores;
    uint64_t capacity_bytes; /* of the weight buffer */
    uint64_t used_bytes;
};

struct msg_fail {
    struct err err;
};

struct msg_ping {
    uint64_t stamp;    /* the sender's clock, given back as it was */
    uint64_t progress; /* PONG only: a counter that moves while kernels run */
};

/* Encoders append one whole frame to buf; negative errno when out of memory or beyond a limit, and buf is then as it was. Decoders
 * refuse (-EPROTO, a sentence with type, field and value) whatever is not exactly a frame of their type.
 * A HELLO or HELLO_DUCK of another major version decodes to its versions alone; all else in *ret_msg is zero. */
int msg_hello_encode(struct buf *buf, uint64_t request, const struct msg_hello *msg);
int msg_hello_decode(const struct frame *frame, struct msg_hello *ret_msg, struct err *err);
int msg_hello_duck_encode(struct buf *buf, uint64_t request, const struct msg_hello_duck *msg);
int msg_hello_duck_decode(const struct frame *frame, struct msg_hello_duck *ret_msg, struct err *err);
int msg_fail_encode(struct buf *buf, uint64_t request, const struct err *err);
/* The peer's error lands in *ret_peer_err; err tells of a malformed frame. */
int msg_fail_decode(const struct frame *frame, struct err *ret_peer_err, struct err *err);
int msg_ping_encode(struct buf *buf, enum wire_type type, uint64_t request, const struct msg_ping *msg);
int msg_ping_decode(const struct frame *frame, struct msg_ping *ret_msg, struct err *err);

#endif

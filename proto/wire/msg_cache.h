/* REKEY, VERIFY, VERIFIED: what is done to finished slots. Encoders and decoders as in msg_hello.h. */
#ifndef FP9_WIRE_MSG_CACHE_H
#define FP9_WIRE_MSG_CACHE_H

#include "proto/wire/msg_prepare.h"

struct msg_rekey {
    uint8_t from[DIGEST_SIZE], to[DIGEST_SIZE]; /* model keys */
    uint32_t layer;
    uint8_t sources[DIGEST_SIZE]; /* that the slot must have been prepared from */
    bool replace;                 /* a slot under `to` makes way; else it stays and the one under `from` is dropped */
};

struct msg_verify {
    uint8_t model_key[DIGEST_SIZE];
    uint32_t layer;
    bool expected_given; /* compare with `expected` too: what the checkpoint gives */
    uint64_t expected;   /* checksum of the slot */
};

enum msg_verdict {
    MSG_VERDICT_GOOD = 0,
    MSG_VERDICT_BAD = 1,     /* the bytes are not those that were finished */
    MSG_VERDICT_DIFFERS = 2, /* they are, and `expected` is another */
    MSG_VERDICT_ABSENT = 3,  /* no such finished slot (dropped meanwhile) */
};

struct msg_verified {
    enum msg_verdict verdict;
    uint64_t bytes;    /* that were read; 0 of a BAD slot: its description is wrong */
    uint64_t checksum; /* as found; 0 when absent */
    int32_t expert;    /* BAD: the first routed expert whose bytes differ, -1 the dense MLP, -2 the shared expert, -3 cannot be told */
    uint32_t parts;    /* BAD: how many experts differ */
};

int msg_rekey_encode(struct buf *buf, uint64_t request, const struct msg_rekey *msg);
int msg_rekey_decode(const struct frame *frame, struct msg_rekey *ret_msg, struct err *err);
int msg_verify_encode(struct buf *buf, uint64_t request, const struct msg_verify *msg);
int msg_verify_decode(const struct frame *frame, struct msg_verify *ret_msg, struct err *err);
int msg_verified_encode(struct buf *buf, uint64_t request, const struct msg_verified *msg);
int msg_verified_decode(const struct frame *frame, struct msg_verified *ret_msg, struct err *err);

#endif

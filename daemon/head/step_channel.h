/* fp9d's end of a local duck's channel (proto/wire/channel.h): when STEPs go through it, how answers are looked for. Loop thread only. */
#ifndef FP9_HEAD_STEP_CHANNEL_H
#define FP9_HEAD_STEP_CHANNEL_H

#include "daemon/head/loop.h"
#include "proto/wire/channel.h"

/* Zero-initialised: none. */
struct step_channel {
    struct channel *channel; /* owned; NULL: none */
    uint32_t spin_us;        /* 0: nobody spins for the other */
    uint32_t expected;       /* STEPs that were put in and are not answered: reason to spin, no more */
    bool awake;              /* our mode is AWAKE: the duck need not ring. By itself it is ASLEEP, so that no answer depends on it */
};

/* A new channel; *ret_fd is the caller's, for the duck. */
int step_channel_open(struct step_channel *sc, uint32_t spin_us, int *ret_fd, struct err *err);
void step_channel_close(struct step_channel *sc);

enum step_channel_put {
    STEP_CHANNEL_FULL,  /* not sent: no room now, or a long frame */
    STEP_CHANNEL_SENT,
    STEP_CHANNEL_NUDGE, /* sent; the duck's kernel thread is in other work, so its main thread must be sent a frame on the socket */
};
/* A STEP frame. -EPROTO: the duck has spoiled the channel. */
int step_channel_put(struct step_channel *sc, const struct buf *frame, enum step_channel_put *ret_put, struct err *err);

/* The next answer, until channel_taken(sc->channel): 1, 0, -EPROTO. */
int step_channel_next(struct step_channel *sc, struct frame *ret_frame, struct err *err);
/* A step was answered elsewhere, perhaps. */
void step_channel_answered(struct step_channel *sc);

/* Nothing is there; may something come soon? */
enum loop_found step_channel_expects(const struct step_channel *sc);
bool step_channel_park(struct step_channel *sc); /* as struct loop_poller has it */

#endif

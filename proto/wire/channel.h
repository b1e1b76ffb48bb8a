/* The channel: STEP and STEP_DONE frames between fp9d and a local duck, in memory that both map.
 *
 * It stands beside the socket of the link, never in its place: HELLO, sessions, loads, PING and every frame that finds no room here go
 * over the socket, whose end is the end of the link. WIRE_FEATURE_CHANNEL in HELLO and HELLO_DUCK says that both sides use it. Neither
 * side may count on an order between the two ways: fp9d sends a STEP here only once SESSION_OPENED has come back. A STEP_CANCEL on the
 * socket may come before its STEP here is read, and then does nothing: what fits here is a step of a few tokens, which nobody waits for
 * long, and while the duck is in other work its main thread reads the channel before it obeys a STEP_CANCEL.
 *
 *     memfd, CHANNEL_BYTES, sealed, made by the head and inherited by the duck
 *     +--------------+------------------------------+------------------------------+
 *     | words (4096) | ring to the duck             | ring to the head             |   each CHANNEL_RING bytes, mapped twice in a
 *     +--------------+------------------------------+------------------------------+   row, so that a frame never has a seam
 *
 *     word, a cache line pair each   who writes
 *     magic, bytes, spin_us          head, before the duck is started
 *     to_duck.read                   duck     bytes ever taken out of the ring to the duck
 *     to_duck.mode                   duck     what its reader is doing; a waker may change ASLEEP to AWAKE
 *     to_head.read, .mode                     likewise with the sides exchanged
 *
 * A frame is as on a socket (wire.h). It lies behind its stamp, which lies at a multiple of CHANNEL_ALIGN, with the next stamp at the
 * following multiple:
 *
 *     +-------+--------+----------------------- - -  --+-----+-------+
 *     | stamp | header | payload                       | pad | stamp | ...      stamp: bytes ever put into the ring, this frame with it;
 *     +-------+--------+----------------------- - -  --+-----+-------+                 0: no frame here yet
 *
 * So the line that a reader waits for brings it the header as well. Before a stamp is written the one after it is zeroed, which is why a
 * frame needs room for that, too. A frame is written whole or not at all. Each side keeps its own positions in its own memory and checks
 * the other's: garbage gives -EPROTO and a sentence, never a read outside the ring. A frame is read where it lies; the other side could
 * change it meanwhile, so a reader copies what it validates before it looks at it (proto/wire decoders read each field once; ids of experts
 * are checked in the duck's copy).
 *
 * Memory order. A stamp is stored sequentially consistent after the frame's bytes and the next stamp's zero, and loaded with acquire by
 * the reader: who sees it sees both. `read` is stored with release after the frame was used, and loaded with acquire by the writer before
 * it writes there again. Sleeping is Dekker's: a reader stores its mode, then looks at the stamp once more; a writer stores the stamp, then
 * looks at the mode; all four are sequentially consistent, so one of them sees the other and no frame lies unseen before a sleeper. That
 * holds while only the two sides write here. A duck's reader looks once a second all the same, so that a mode which somebody else has
 * written over costs a step that second and no more. There is no checksum: payload that somebody else writes over is taken as it is then.
 *
 * Threads: on each side one reader and one writer at a time, by a lock of the caller's if they are several threads; channel_pending and
 * channel_wake by any.
 */
#ifndef FP9_WIRE_CHANNEL_H
#define FP9_WIRE_CHANNEL_H

#include <stdbool.h>

#include "proto/base/cleanup.h"
#include "proto/wire/frame.h"

#define CHANNEL_ALIGN 64
#define CHANNEL_RING (256u * 1024) /* some tens of decode steps; small, so that it stays in the caches of both */
#define CHANNEL_FRAME_MAX (CHANNEL_RING / 4)
#define CHANNEL_BYTES (4096 + 2 * (uint64_t)CHANNEL_RING)
#define CHANNEL_SPIN_US_MAX 1000000u

struct channel;

enum channel_side {
    CHANNEL_HEAD,
    CHANNEL_DUCK,
};

enum channel_mode {
    CHANNEL_AWAKE,  /* it looks by itself, soon */
    CHANNEL_ASLEEP, /* it must be woken: the duck by its futex, the head by the bell of its event loop */
    CHANNEL_BUSY,   /* duck: kernels of a batch job run; its other thread must be told, over the socket */
};

/* The head's side and a new memfd, *ret_fd (the caller's). spin_us: how long the duck's reader may spin for a frame before it sleeps. */
int channel_new(uint32_t spin_us, struct channel **ret_channel, int *ret_fd, struct err *err);
/* The duck's side; fd stays the caller's and may be closed. BAD_REQUEST when it is no channel. */
int channel_open(int fd, struct channel **ret_channel, struct err *err);
void channel_free(struct channel *channel);
CLEANUP_DEFINE(struct channel *, channel_free);
uint32_t channel_spin_us(const struct channel *channel);

/* ---- writing ---- */

/* 1: the other side sees the frame, which is `head` and then `body` (NULL when it has no bytes). *ret_mode: what its reader was doing then;
 * if not AWAKE, tell it (channel_wake, or as the modes say). 0: there is no room now, or the frame is longer than CHANNEL_FRAME_MAX.
 * -EPROTO: the other side's position cannot be. */
int channel_send(struct channel *channel, const void *head, size_t head_bytes, const void *body, size_t body_bytes,
                 enum channel_mode *ret_mode, struct err *err);
/* Wakes a duck whose mode is ASLEEP. For the head, and for the duck's own other threads. */
void channel_wake(struct channel *channel);

/* ---- reading ---- */

/* A frame is there, or nonsense that channel_next will find. */
bool channel_pending(const struct channel *channel);
/* 1 and the frame in the ring, until channel_taken; 0 when there is none; -EPROTO. */
int channel_next(struct channel *channel, struct frame *ret_frame, struct err *err);
void channel_taken(struct channel *channel);

/* This side's own mode. True: a frame is there already; look at it before sleeping. */
bool channel_set_mode(struct channel *channel, enum channel_mode mode);
/* The duck's reader sleeps until a frame is there, it is woken by channel_wake, or ready(user), which must be sequentially consistent:
 * whoever makes it true calls channel_wake afterwards. */
void channel_sleep(struct channel *channel, bool (*ready)(void *user), void *user);

#endif

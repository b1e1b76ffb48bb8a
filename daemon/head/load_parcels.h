/* Frames of a load on their way to the ducks: made on the bulk worker, handed to the peers on the loop. Only so many bytes are on the way
 * at once: whoever sends more waits. */
#ifndef FP9_HEAD_LOAD_PARCELS_H
#define FP9_HEAD_LOAD_PARCELS_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/head/head.h"
#include "daemon/head/load_hash.h"
#include "daemon/head/outgoing.h"

#define LOAD_FRAME_BYTES (512u * 1024) /* of codes, at most in one frame: what a step may have to wait for */
#define LOAD_SPARES 64                 /* frames whose memory is used again */

struct load_parcels {
    struct head *head;      /* borrowed */
    struct load_hash *hash; /* borrowed; whose pieces are lent. Set before the first is */
    atomic_bool cancelled;
    _Atomic uint64_t sent_bytes; /* what frames hold; rows that ducks are shown in the stage are counted in by who tells of them */
    pthread_mutex_t lock;
    pthread_cond_t less; /* on_the_way went down, or cancelled */
    uint64_t on_the_way; /* under lock */
    struct buf spares[LOAD_SPARES];
    size_t spare_count; /* under lock */
};

void load_parcels_init(struct load_parcels *parcels, struct head *head);
/* None is on the way any more. */
void load_parcels_release(struct load_parcels *parcels);
/* Any thread: nobody waits from here on, and every send says -ECANCELED. */
void load_parcels_cancel(struct load_parcels *parcels);

/* A frame for many rows, in memory of one that was sent if there is any. */
struct outgoing *load_parcels_frame(struct load_parcels *parcels);
/* Of an encoder's result: 0, or an error, and the frame is dropped. */
int load_parcels_encoded(int r, struct outgoing *out, struct err *err);
/* Takes out; lends the piece, if any, until the frame is done with. -ECANCELED: it is handed over all the same. */
int load_parcels_send(struct load_parcels *parcels, uint32_t duck, struct outgoing *out, struct load_piece *piece, struct err *err);
/* Until none is on the way. Links that are lost drop their frames, so this ends. */
void load_parcels_wait(struct load_parcels *parcels);

#endif

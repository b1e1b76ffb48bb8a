#include "daemon/head/load_parcels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PARCELS_ON_THE_WAY (64u * 1024 * 1024) /* framed and not yet written to links: how far ducks may be apart */

struct parcel {
    struct load_parcels *parcels;
    uint32_t duck;
    size_t bytes;
    struct outgoing *out;
    struct load_piece *piece; /* lent to it; NULL: none */
};

void load_parcels_init(struct load_parcels *parcels, struct head *head)
{
    parcels->head = head;
    pthread_mutex_init(&parcels->lock, NULL);
    pthread_cond_init(&parcels->less, NULL);
}

void load_parcels_release(struct load_parcels *parcels)
{
    for (size_t i = 0; i < parcels->spare_count; i++)
        buf_release(&parcels->spares[i]);
    pthread_cond_destroy(&parcels->less);
    pthread_mutex_destroy(&parcels->lock);
}

void load_parcels_cancel(struct load_parcels *parcels)
{
    atomic_store(&parcels->cancelled, true);
    pthread_mutex_lock(&parcels->lock);
    pthread_cond_signal(&parcels->less);
    pthread_mutex_unlock(&parcels->lock);
}

struct outgoing *load_parcels_frame(struct load_parcels *parcels)
{
    struct outgoing *out = outgoing_new();
    pthread_mutex_lock(&parcels->lock);
    if (parcels->spare_count)
        out->buf = parcels->spares[--parcels->spare_count];
    pthread_mutex_unlock(&parcels->lock);
    out->buf.length = 0;
    return out;
}

int load_parcels_encoded(int r, struct outgoing *out, struct err *err)
{
    if (r == 0)
        return 0;
    outgoing_unref(out);
    return err_set(err, r, r == -ENOMEM ? ERR_NO_MEMORY : ERR_INTERNAL, "a prepare frame cannot be made: %s", strerror(-r));
}

/* Loop thread: the frame is written, or dropped with its link; of rows in the stage: they are read no more. */
static void parcel_sent(void *user)
{
    struct parcel *parcel = user;
    struct load_parcels *parcels = parcel->parcels;
    if (parcel->piece)
        load_hash_release(parcels->hash, parcel->piece);
    pthread_mutex_lock(&parcels->lock);
    if (parcels->spare_count < LOAD_SPARES && parcel->bytes > LOAD_FRAME_BYTES / 8) {
        parcels->spares[parcels->spare_count++] = parcel->out->buf;
        parcel->out->buf = (struct buf){0};
    }
    parcels->on_the_way -= parcel->bytes;
    pthread_cond_signal(&parcels->less);
    pthread_mutex_unlock(&parcels->lock);
    free(parcel);
}

/* Loop thread. */
static void hand_over(void *user)
{
    struct parcel *parcel = user;
    struct outgoing *out = parcel->out;
    peer_send(parcel->parcels->head->peers[parcel->duck], out, true);
    outgoing_unref(out); /* may call parcel_sent */
}

int load_parcels_send(struct load_parcels *parcels, uint32_t duck, struct outgoing *out, struct load_piece *piece, struct err *err)
{
    struct parcel *parcel = calloc(1, sizeof *parcel);
    if (!parcel)
        abort();
    *parcel = (struct parcel){.parcels = parcels, .duck = duck, .bytes = out->buf.length, .out = out, .piece = piece};
    if (piece)
        load_hash_lend(parcels->hash, piece);
    pthread_mutex_lock(&parcels->lock);
    while (parcels->on_the_way > PARCELS_ON_THE_WAY && !atomic_load(&parcels->cancelled))
        pthread_cond_wait(&parcels->less, &parcels->lock);
    parcels->on_the_way += parcel->bytes;
    pthread_mutex_unlock(&parcels->lock);
    atomic_fetch_add(&parcels->sent_bytes, parcel->bytes);
    out->sent = parcel_sent;
    out->user = parcel;
    loop_post(parcels->head->loop, hand_over, parcel);
    if (atomic_load(&parcels->cancelled))
        return err_set(err, -ECANCELED, ERR_CANCELLED, "load was cancelled");
    return 0;
}

void load_parcels_wait(struct load_parcels *parcels)
{
    pthread_mutex_lock(&parcels->lock);
    while (parcels->on_the_way)
        pthread_cond_wait(&parcels->less, &parcels->lock);
    pthread_mutex_unlock(&parcels->lock);
}

#include "daemon/head/load_hash.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/worker.h"
#include "proto/base/background.h"

struct item {
    struct load_piece *piece;
    const struct checkpoint_matrix *matrix;
    size_t length;
    bool last;
};

struct lane {
    struct load_hash *hash;
    pthread_t thread;
    struct digest *digest; /* owned */
    /* under lock: a ring, as long as there are pieces */
    struct item items[LOAD_HASH_PIECES];
    unsigned first, count;
    pthread_cond_t more;
};

struct load_hash {
    struct checkpoint *checkpoint;
    struct lane lanes[LOAD_HASH_THREADS_MAX];
    unsigned lane_count; /* started */
    unsigned lane;       /* of the matrix at hand; the reader's */
    pthread_mutex_t lock;
    pthread_cond_t less; /* a piece is free, or everything is digested */
    struct load_piece pieces[LOAD_HASH_PIECES];
    unsigned posted; /* and not digested; under lock */
    bool stop;       /* under lock */
    bool borrowed;   /* the pieces' memory */
};

#define AT_ONCE (128u * 1024) /* bytes between two yields */

static void digest_item(struct lane *lane, const struct item *item)
{
    uint8_t digest[DIGEST_SIZE];
    for (size_t at = 0, n; at < item->length; at += n, background_yield()) {
        n = item->length - at < AT_ONCE ? item->length - at : AT_ONCE;
        digest_update(lane->digest, item->piece->data + at, n);
    }
    if (!item->last)
        return;
    digest_finish(lane->digest, digest);
    checkpoint_digest_set(lane->hash->checkpoint, item->matrix, digest);
}

static void *lane_main(void *user)
{
    struct lane *lane = user;
    struct load_hash *hash = lane->hash;
    worker_background();
    pthread_mutex_lock(&hash->lock);
    while (!hash->stop) {
        if (!lane->count) {
            pthread_cond_wait(&lane->more, &hash->lock);
            continue;
        }
        struct item item = lane->items[lane->first];
        lane->first = (lane->first + 1) % LOAD_HASH_PIECES;
        lane->count--;
        pthread_mutex_unlock(&hash->lock);
        digest_item(lane, &item);
        pthread_mutex_lock(&hash->lock);
        item.piece->users--;
        hash->posted--;
        pthread_cond_signal(&hash->less);
    }
    pthread_mutex_unlock(&hash->lock);
    return NULL;
}

static unsigned lanes_wanted(void)
{
    cpu_set_t cpus;
    int count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) / 2 : 1;
    return count < 1 ? 1 : count > LOAD_HASH_THREADS_MAX ? LOAD_HASH_THREADS_MAX : (unsigned)count;
}

/* Signals belong to the loop's thread. */
static int start_lane(struct load_hash *hash, struct err *err)
{
    struct lane *lane = &hash->lanes[hash->lane_count];
    sigset_t all, old;
    lane->hash = hash;
    lane->digest = digest_new();
    if (!lane->digest)
        return err_no_memory(err, "digest", 0);
    pthread_cond_init(&lane->more, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&lane->thread, NULL, lane_main, lane);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r != 0) {
        pthread_cond_destroy(&lane->more);
        digest_free(lane->digest);
        return err_set(err, -r, ERR_NO_MEMORY, "a thread for digests cannot be started: %s", strerror(r));
    }
    pthread_setname_np(lane->thread, "fp9d-digest");
    hash->lane_count++;
    return 0;
}

int load_hash_new(struct checkpoint *checkpoint, size_t piece_bytes, uint8_t *memory, struct load_hash **ret_hash, struct err *err)
{
    struct load_hash *hash = calloc(1, sizeof *hash);
    if (!hash)
        return err_no_memory(err, "load buffer", sizeof *hash);
    hash->checkpoint = checkpoint;
    hash->borrowed = memory;
    pthread_mutex_init(&hash->lock, NULL);
    pthread_cond_init(&hash->less, NULL);
    int r = 0;
    for (int i = 0; r == 0 && i < LOAD_HASH_PIECES; i++) {
        hash->pieces[i].data = memory ? memory + (size_t)i * piece_bytes : malloc(piece_bytes);
        if (!hash->pieces[i].data)
            r = err_no_memory(err, "load buffer", piece_bytes);
    }
    for (unsigned i = 0; r == 0 && i < lanes_wanted(); i++)
        r = start_lane(hash, err);
    if (r < 0) {
        load_hash_free(hash);
        return r;
    }
    *ret_hash = hash;
    return 0;
}

void load_hash_free(struct load_hash *hash)
{
    if (!hash)
        return;
    pthread_mutex_lock(&hash->lock);
    hash->stop = true;
    for (unsigned i = 0; i < hash->lane_count; i++)
        pthread_cond_signal(&hash->lanes[i].more);
    pthread_mutex_unlock(&hash->lock);
    for (unsigned i = 0; i < hash->lane_count; i++) {
        pthread_join(hash->lanes[i].thread, NULL);
        pthread_cond_destroy(&hash->lanes[i].more);
        digest_free(hash->lanes[i].digest);
    }
    for (int i = 0; !hash->borrowed && i < LOAD_HASH_PIECES; i++)
        free(hash->pieces[i].data);
    pthread_cond_destroy(&hash->less);
    pthread_mutex_destroy(&hash->lock);
    free(hash);
}

static struct load_piece *free_piece(struct load_hash *hash)
{
    for (int i = 0; i < LOAD_HASH_PIECES; i++)
        if (!hash->pieces[i].users)
            return &hash->pieces[i];
    return NULL;
}

struct load_piece *load_hash_piece(struct load_hash *hash)
{
    struct load_piece *piece;
    pthread_mutex_lock(&hash->lock);
    while (!(piece = free_piece(hash)))
        pthread_cond_wait(&hash->less, &hash->lock);
    piece->users = 1;
    pthread_mutex_unlock(&hash->lock);
    return piece;
}

void load_hash_lend(struct load_hash *hash, struct load_piece *piece)
{
    pthread_mutex_lock(&hash->lock);
    piece->users++;
    pthread_mutex_unlock(&hash->lock);
}

void load_hash_release(struct load_hash *hash, struct load_piece *piece)
{
    pthread_mutex_lock(&hash->lock);
    piece->users--;
    pthread_cond_signal(&hash->less);
    pthread_mutex_unlock(&hash->lock);
}

void load_hash_post(struct load_hash *hash, struct load_piece *piece, const struct checkpoint_matrix *matrix, size_t length, bool last)
{
    pthread_mutex_lock(&hash->lock);
    struct lane *lane = &hash->lanes[hash->lane];
    lane->items[(lane->first + lane->count++) % LOAD_HASH_PIECES] =
        (struct item){.piece = piece, .matrix = matrix, .length = length, .last = last};
    piece->users++;
    hash->posted++;
    pthread_cond_signal(&lane->more);
    pthread_mutex_unlock(&hash->lock);
    if (last)
        hash->lane = (hash->lane + 1) % hash->lane_count;
}

void load_hash_settle(struct load_hash *hash)
{
    pthread_mutex_lock(&hash->lock);
    while (hash->posted)
        pthread_cond_wait(&hash->less, &hash->lock);
    pthread_mutex_unlock(&hash->lock);
}

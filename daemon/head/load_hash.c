#include "daemon/head/load_hash.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/worker.h"

struct item {
    struct load_piece *piece;
    const struct checkpoint_matrix *matrix;
    size_t length;
    bool last;
};

/* The pieces of one matrix after another. */
struct queue {
    struct digest *digest; /* owned */
    /* under lock: a ring, as long as there are pieces */
    struct item items[LOAD_HASH_PIECES];
    unsigned first, count;
};

/* A thread. It digests two matrices at once, which is faster (digest.h); one alone when the reader waits for it. */
struct lane {
    struct load_hash *hash;
    pthread_t thread;
    struct queue queues[2];
    pthread_cond_t more;
};

struct load_hash {
    struct checkpoint *checkpoint;
    struct lane lanes[LOAD_HASH_THREADS_MAX];
    unsigned lane_count; /* started */
    unsigned queue;      /* of the matrix at hand, of all lanes'; the reader's */
    pthread_mutex_t lock;
    pthread_cond_t less; /* a piece is free, or everything is digested */
    struct load_piece pieces[LOAD_HASH_PIECES];
    /* under lock */
    unsigned posted; /* and not digested */
    bool waiting;    /* the reader, for a piece or for the end: nothing more may come before something is digested */
    bool stop;
    /* not under it */
    bool borrowed; /* the pieces' memory */
};

static void end_item(struct lane *lane, struct digest *digest, const struct item *item)
{
    uint8_t sum[DIGEST_SIZE];
    if (!item->last)
        return;
    digest_finish(digest, sum);
    checkpoint_digest_set(lane->hash->checkpoint, item->matrix, sum);
}

/* Under lock. */
static struct item pop(struct queue *queue)
{
    struct item item = queue->items[queue->first];
    queue->first = (queue->first + 1) % LOAD_HASH_PIECES;
    queue->count--;
    return item;
}

/* Under lock; 0: what there is waits for a second matrix. Of several pieces of one none need wait: the reader is at them for long. */
static unsigned ready(const struct lane *lane)
{
    unsigned first = lane->queues[0].count, second = lane->queues[1].count;
    if (first && second)
        return 2;
    return first + second > 1 || (first + second && lane->hash->waiting) ? 1 : 0;
}

/* Under lock, which it gives up meanwhile. */
static void digest_next(struct lane *lane, unsigned count)
{
    struct load_hash *hash = lane->hash;
    struct item items[2];
    struct digest_part parts[2];
    for (unsigned i = 0; i < count; i++) {
        struct queue *queue = &lane->queues[count == 2 ? i : lane->queues[0].count == 0];
        items[i] = pop(queue);
        parts[i] = (struct digest_part){.digest = queue->digest, .data = items[i].piece->data, .length = items[i].length};
    }
    pthread_mutex_unlock(&hash->lock);
    if (count == 2)
        digest_update_two(parts);
    else
        digest_update(parts[0].digest, parts[0].data, parts[0].length);
    for (unsigned i = 0; i < count; i++)
        end_item(lane, parts[i].digest, &items[i]);
    pthread_mutex_lock(&hash->lock);
    for (unsigned i = 0; i < count; i++)
        items[i].piece->users--;
    hash->posted -= count;
    pthread_cond_signal(&hash->less);
}

static void *lane_main(void *user)
{
    struct lane *lane = user;
    struct load_hash *hash = lane->hash;
    worker_background();
    pthread_mutex_lock(&hash->lock);
    while (!hash->stop) {
        unsigned count = ready(lane);
        if (count)
            digest_next(lane, count);
        else
            pthread_cond_wait(&lane->more, &hash->lock);
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

static void free_digests(struct lane *lane)
{
    for (int i = 0; i < 2; i++)
        digest_free(STEAL(lane->queues[i].digest));
}

/* Signals belong to the loop's thread. */
static int start_lane(struct load_hash *hash, struct err *err)
{
    struct lane *lane = &hash->lanes[hash->lane_count];
    sigset_t all, old;
    lane->hash = hash;
    for (int i = 0; i < 2; i++)
        lane->queues[i].digest = digest_new();
    if (!lane->queues[0].digest || !lane->queues[1].digest) {
        free_digests(lane);
        return err_no_memory(err, "digest", 0);
    }
    pthread_cond_init(&lane->more, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&lane->thread, NULL, lane_main, lane);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r != 0) {
        pthread_cond_destroy(&lane->more);
        free_digests(lane);
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
        free_digests(&hash->lanes[i]);
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

/* Under lock: the reader waits, so that no lane may. */
static void wait_for_less(struct load_hash *hash)
{
    hash->waiting = true;
    for (unsigned i = 0; i < hash->lane_count; i++)
        pthread_cond_signal(&hash->lanes[i].more);
    pthread_cond_wait(&hash->less, &hash->lock);
    hash->waiting = false;
}

struct load_piece *load_hash_piece(struct load_hash *hash)
{
    struct load_piece *piece;
    pthread_mutex_lock(&hash->lock);
    while (!(piece = free_piece(hash)))
        wait_for_less(hash);
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
    struct lane *lane = &hash->lanes[hash->queue / 2];
    struct queue *queue = &lane->queues[hash->queue % 2];
    queue->items[(queue->first + queue->count++) % LOAD_HASH_PIECES] =
        (struct item){.piece = piece, .matrix = matrix, .length = length, .last = last};
    piece->users++;
    hash->posted++;
    if (ready(lane))
        pthread_cond_signal(&lane->more);
    pthread_mutex_unlock(&hash->lock);
    if (last)
        hash->queue = (hash->queue + 1) % (2 * hash->lane_count);
}

void load_hash_settle(struct load_hash *hash)
{
    pthread_mutex_lock(&hash->lock);
    while (hash->posted)
        wait_for_less(hash);
    pthread_mutex_unlock(&hash->lock);
}

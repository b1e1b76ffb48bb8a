#include "daemon/duck/verify.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/base/background.h"
#include "proto/base/checksum.h"

struct item {
    uint64_t request;
    uint32_t slot;
    struct msg_verify words;
    struct wbuf_sums sums;
    struct msg_verified found;
};

struct verify {
    pthread_t thread;
    bool started;
    int event; /* owned */
    struct checksum *sum; /* owned; the thread's */
    _Atomic bool stop;
    pthread_mutex_t lock;
    pthread_cond_t more;
    /* Under lock: a ring; [taken, done) have results, [done, posted) wait. */
    struct item items[VERIFY_QUEUE_MAX];
    uint64_t posted, done, taken;
};

#define PIECE_BYTES (512u * 1024) /* some 100 us */

/* Meaningless when it is to stop. */
static uint64_t sum_of(struct checksum *sum, const uint8_t *data, uint64_t bytes, const _Atomic bool *stop)
{
    for (uint64_t at = 0, n; at < bytes && !atomic_load_explicit(stop, memory_order_relaxed); at += n, background_yield()) {
        n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        checksum_update(sum, data + at, n);
    }
    return checksum_finish(sum);
}

static uint64_t part_sum(struct checksum *sum, const struct wbuf_sums *sums, uint32_t part, const _Atomic bool *stop)
{
    bool shared = sums->has_shared && part + 1 == sums->parts;
    return sum_of(sum, sums->data + (shared ? sums->shared_offset : part * sums->part_bytes),
                  shared ? sums->shared_bytes : sums->part_bytes, stop);
}

static int32_t part_name(const struct wbuf_sums *sums, uint32_t part)
{
    if (sums->has_shared && part + 1 == sums->parts)
        return WBUF_PART_SHARED;
    return sums->moe ? (int32_t)(sums->expert_first + part) : WBUF_PART_DENSE;
}

void verify_sums(struct checksum *sum, const struct wbuf_sums *sums, const struct msg_verify *words, const _Atomic bool *stop,
                 struct msg_verified *ret_found)
{
    struct msg_verified found = {.bytes = sums->bytes, .expert = WBUF_PART_UNKNOWN};
    found.checksum = sum_of(sum, sums->data, sums->bytes, stop);
    if (found.checksum != sums->checksum) {
        found.verdict = MSG_VERDICT_BAD;
        for (uint32_t part = 0; part < sums->parts && !atomic_load(stop); part++) {
            if (part_sum(sum, sums, part, stop) == sums->part_sums[part])
                continue;
            if (!found.parts++)
                found.expert = part_name(sums, part);
        }
    } else if (words->expected_given && words->expected != found.checksum) {
        found.verdict = MSG_VERDICT_DIFFERS;
    }
    *ret_found = found;
}

static void signal_event(const struct verify *verify)
{
    const uint64_t one = 1;
    ssize_t n;
    do
        n = write(verify->event, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static void *verify_main(void *user)
{
    struct verify *verify = user;
    pthread_mutex_lock(&verify->lock);
    while (!atomic_load(&verify->stop)) {
        if (verify->done == verify->posted) {
            pthread_cond_wait(&verify->more, &verify->lock);
            continue;
        }
        struct item *item = &verify->items[verify->done % VERIFY_QUEUE_MAX];
        pthread_mutex_unlock(&verify->lock);
        verify_sums(verify->sum, &item->sums, &item->words, &verify->stop, &item->found);
        pthread_mutex_lock(&verify->lock);
        verify->done++;
        signal_event(verify);
    }
    pthread_mutex_unlock(&verify->lock);
    return NULL;
}

int verify_new(struct verify **ret_verify, struct err *err)
{
    _cleanup_(verify_freep) struct verify *verify = calloc(1, sizeof *verify);
    if (!verify)
        return err_no_memory(err, "verify", sizeof *verify);
    pthread_mutex_init(&verify->lock, NULL);
    pthread_cond_init(&verify->more, NULL);
    verify->sum = checksum_new();
    verify->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (verify->event < 0)
        return err_errno(err, "eventfd");
    if (!verify->sum)
        return err_no_memory(err, "verify", 0);
    int r = background_start("verify", verify_main, verify, &verify->thread, err);
    if (r < 0)
        return r;
    verify->started = true;
    *ret_verify = STEAL(verify);
    return 0;
}

void verify_stop(struct verify *verify)
{
    if (!verify->started)
        return;
    pthread_mutex_lock(&verify->lock);
    atomic_store(&verify->stop, true);
    pthread_cond_signal(&verify->more);
    pthread_mutex_unlock(&verify->lock);
    pthread_join(verify->thread, NULL);
    verify->started = false;
}

bool verify_left(struct verify *verify, uint32_t *ret_slot)
{
    if (verify->taken == verify->posted)
        return false;
    *ret_slot = verify->items[verify->taken++ % VERIFY_QUEUE_MAX].slot;
    return true;
}

void verify_free(struct verify *verify)
{
    if (!verify)
        return;
    verify_stop(verify);
    closep(&verify->event);
    checksum_free(verify->sum);
    pthread_cond_destroy(&verify->more);
    pthread_mutex_destroy(&verify->lock);
    free(verify);
}

int verify_event_fd(const struct verify *verify)
{
    return verify->event;
}

int verify_post(struct verify *verify, uint64_t request, uint32_t slot, const struct msg_verify *words, const struct wbuf_sums *sums,
                struct err *err)
{
    pthread_mutex_lock(&verify->lock);
    bool full = verify->posted - verify->taken == VERIFY_QUEUE_MAX;
    if (!full) {
        verify->items[verify->posted++ % VERIFY_QUEUE_MAX] =
            (struct item){.request = request, .slot = slot, .words = *words, .sums = *sums};
        pthread_cond_signal(&verify->more);
    }
    pthread_mutex_unlock(&verify->lock);
    return full ? err_set(err, -EBUSY, ERR_BUSY, "%d slots wait to be verified already", VERIFY_QUEUE_MAX) : 0;
}

bool verify_take(struct verify *verify, struct verify_result *ret_result)
{
    pthread_mutex_lock(&verify->lock);
    bool any = verify->taken < verify->done;
    if (any) {
        const struct item *item = &verify->items[verify->taken++ % VERIFY_QUEUE_MAX];
        *ret_result = (struct verify_result){.request = item->request, .slot = item->slot, .words = item->words, .found = item->found};
    } else {
        uint64_t count;
        ssize_t n = read(verify->event, &count, sizeof count);
        (void)n; /* empty already: a spurious wake-up */
    }
    pthread_mutex_unlock(&verify->lock);
    return any;
}

#include "daemon/duck/packer.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/base/background.h"

struct list {
    struct fill_work *first, **last;
};

struct packer {
    pthread_t thread;
    bool started;
    int event; /* owned */
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    /* under lock */
    struct list waiting, done;
    bool busy; /* work is neither waiting nor done */
    bool stop;
};

static void push(struct list *list, struct fill_work *work)
{
    work->next = NULL;
    *list->last = work;
    list->last = &work->next;
}

static struct fill_work *pop(struct list *list)
{
    struct fill_work *work = list->first;
    if (!work)
        return NULL;
    list->first = work->next;
    if (!list->first)
        list->last = &list->first;
    work->next = NULL;
    return work;
}

static void signal_event(const struct packer *packer)
{
    const uint64_t one = 1;
    ssize_t n;
    do
        n = write(packer->event, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static void *packer_main(void *user)
{
    struct packer *packer = user;
    pthread_mutex_lock(&packer->lock);
    while (!packer->stop) {
        struct fill_work *work = pop(&packer->waiting);
        if (!work) {
            pthread_cond_wait(&packer->more, &packer->lock);
            continue;
        }
        packer->busy = true;
        pthread_mutex_unlock(&packer->lock);
        background_yield();
        fill_work_run(work);
        pthread_mutex_lock(&packer->lock);
        packer->busy = false;
        bool first = !packer->done.first; /* else the owner has not looked since the last signal */
        push(&packer->done, work);
        if (!packer->waiting.first)
            pthread_cond_signal(&packer->less);
        if (first)
            signal_event(packer);
    }
    pthread_mutex_unlock(&packer->lock);
    return NULL;
}

int packer_new(struct packer **ret_packer, struct err *err)
{
    _cleanup_(packer_freep) struct packer *packer = calloc(1, sizeof *packer);
    if (!packer)
        return err_no_memory(err, "packer", sizeof *packer);
    pthread_mutex_init(&packer->lock, NULL);
    pthread_cond_init(&packer->more, NULL);
    pthread_cond_init(&packer->less, NULL);
    packer->waiting.last = &packer->waiting.first;
    packer->done.last = &packer->done.first;
    packer->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (packer->event < 0)
        return err_errno(err, "eventfd");
    int r = background_start("pack", packer_main, packer, &packer->thread, err);
    if (r < 0)
        return r;
    packer->started = true;
    *ret_packer = STEAL(packer);
    return 0;
}

void packer_stop(struct packer *packer)
{
    if (!packer->started)
        return;
    pthread_mutex_lock(&packer->lock);
    packer->stop = true;
    pthread_cond_signal(&packer->more);
    pthread_mutex_unlock(&packer->lock);
    pthread_join(packer->thread, NULL);
    packer->started = false;
}

void packer_free(struct packer *packer)
{
    if (!packer)
        return;
    packer_stop(packer);
    closep(&packer->event);
    pthread_cond_destroy(&packer->less);
    pthread_cond_destroy(&packer->more);
    pthread_mutex_destroy(&packer->lock);
    free(packer);
}

int packer_event_fd(const struct packer *packer)
{
    return packer->event;
}

void packer_post(struct packer *packer, struct fill_work *work)
{
    pthread_mutex_lock(&packer->lock);
    push(&packer->waiting, work);
    pthread_cond_signal(&packer->more);
    pthread_mutex_unlock(&packer->lock);
}

struct fill_work *packer_take(struct packer *packer)
{
    pthread_mutex_lock(&packer->lock);
    struct fill_work *work = pop(&packer->done);
    if (!work) {
        uint64_t count;
        ssize_t n = read(packer->event, &count, sizeof count);
        (void)n; /* empty already: a spurious wake-up */
    }
    pthread_mutex_unlock(&packer->lock);
    return work;
}

void packer_drain(struct packer *packer)
{
    pthread_mutex_lock(&packer->lock);
    while (packer->waiting.first || packer->busy)
        pthread_cond_wait(&packer->less, &packer->lock);
    pthread_mutex_unlock(&packer->lock);
}

struct fill_work *packer_left(struct packer *packer)
{
    struct fill_work *work = pop(&packer->done);
    return work ? work : pop(&packer->waiting);
}

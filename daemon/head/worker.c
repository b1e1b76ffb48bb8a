#include "daemon/head/worker.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/background.h"

struct item {
    struct item *next;
    struct worker *worker;
    loop_fn run, done;
    void *task;
};

struct worker {
    struct loop *loop;
    size_t pending; /* submitted and not done; the loop thread's */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t more;
    struct item *first, **last;
    bool stop;
};

/* Loop thread. */
static void item_done(void *user)
{
    struct item *item = user;
    item->worker->pending--;
    item->done(item->task);
    free(item);
}

static void *worker_main(void *user)
{
    struct worker *worker = user;
    for (;;) {
        pthread_mutex_lock(&worker->lock);
        while (!worker->first && !worker->stop)
            pthread_cond_wait(&worker->more, &worker->lock);
        struct item *item = worker->stop ? NULL : worker->first;
        if (item) {
            worker->first = item->next;
            if (!worker->first)
                worker->last = &worker->first;
        }
        pthread_mutex_unlock(&worker->lock);
        if (!item)
            return NULL;
        item->run(item->task);
        loop_post(worker->loop, item_done, item);
    }
}

int worker_new(struct loop *loop, const char *thread_name, struct worker **ret_worker, struct err *err)
{
    _cleanup_(worker_freep) struct worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return err_no_memory(err, "worker", sizeof *worker);
    worker->loop = loop;
    worker->last = &worker->first;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->more, NULL);
    /* Signals belong to the loop's thread. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r != 0)
        return err_set(err, -r, ERR_NO_MEMORY, "thread %s cannot be started: %s", thread_name, strerror(r));
    worker->started = true;
    pthread_setname_np(worker->thread, thread_name);
    *ret_worker = STEAL(worker);
    return 0;
}

void worker_free(struct worker *worker)
{
    if (!worker)
        return;
    if (worker->started) {
        pthread_mutex_lock(&worker->lock);
        worker->stop = true;
        pthread_cond_signal(&worker->more);
        pthread_mutex_unlock(&worker->lock);
        pthread_join(worker->thread, NULL);
    }
    while (worker->first) {
        struct item *next = worker->first->next;
        free(worker->first);
        worker->first = next;
    }
    pthread_cond_destroy(&worker->more);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}

void worker_submit(struct worker *worker, loop_fn run, loop_fn done, void *task)
{
    struct item *item = malloc(sizeof *item);
    if (!item)
        abort(); /* a lost task would hang a job */
    *item = (struct item){.worker = worker, .run = run, .done = done, .task = task};
    worker->pending++;
    pthread_mutex_lock(&worker->lock);
    *worker->last = item;
    worker->last = &item->next;
    pthread_cond_signal(&worker->more);
    pthread_mutex_unlock(&worker->lock);
}

void worker_background(void)
{
    background_thread(pthread_self());
}

bool worker_idle(const struct worker *worker)
{
    return !worker->pending;
}

#include "daemon/duck/exec.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "proto/base/clock.h"
#include "proto/base/size.h"

struct exec {
    pthread_t thread;
    int weights_fd; /* borrowed */
    int event_fd;   /* owned */
    _Atomic uint64_t progress;
    _Atomic bool cancel; /* set once, when the duck stops */
    float *y;            /* owned; written by the thread while busy */
    size_t y_bytes;
    void *scratch; /* owned; likewise */
    size_t scratch_bytes;
    bool busy; /* owner's */

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t posted;
    bool stop;
    uint64_t generation;      /* of the job: counted up by exec_post */
    uint64_t done_generation; /* of the last result */
    struct exec_job job;
    struct exec_result result;
};

static void run(struct exec *exec, const struct exec_job *job, struct exec_result *result)
{
    *result = (struct exec_result){0};
    if (job->one_shot) {
        result->code =
            judge_run(&job->compute, &job->slot, exec->weights_fd, &exec->progress, &exec->cancel, &result->duck_time_ns, &result->err);
        return;
    }
    uint64_t start = clock_now_ns();
    if (!compute_run(&job->compute, exec->y, exec->scratch, &exec->progress, &exec->cancel))
        result->code = err_set(&result->err, -ECANCELED, ERR_CANCELLED, "the duck is stopping");
    result->duck_time_ns = clock_now_ns() - start;
}

static void *thread_main(void *user)
{
    struct exec *exec = user;
    pthread_mutex_lock(&exec->lock);
    for (;;) {
        while (!exec->stop && exec->done_generation == exec->generation)
            pthread_cond_wait(&exec->posted, &exec->lock);
        if (exec->stop)
            break;
        struct exec_job job = exec->job;
        uint64_t generation = exec->generation;
        pthread_mutex_unlock(&exec->lock);
        struct exec_result result;
        run(exec, &job, &result);
        pthread_mutex_lock(&exec->lock);
        exec->result = result;
        exec->done_generation = generation;
        (void)eventfd_write(exec->event_fd, 1);
    }
    pthread_mutex_unlock(&exec->lock);
    return NULL;
}

/* Signals are the main thread's: the kernel thread starts with all of them blocked. */
static int start_thread(struct exec *exec)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&exec->thread, NULL, thread_main, exec);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

int exec_new(int weights_fd, struct exec **ret_exec, struct err *err)
{
    struct exec *exec = calloc(1, sizeof *exec);
    if (!exec)
        return err_no_memory(err, "kernel thread", sizeof *exec);
    exec->weights_fd = weights_fd;
    exec->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (exec->event_fd < 0) {
        free(exec);
        return err_errno(err, "kernel thread: eventfd");
    }
    pthread_mutex_init(&exec->lock, NULL);
    pthread_cond_init(&exec->posted, NULL);
    int r = start_thread(exec);
    if (r != 0) {
        close(exec->event_fd);
        free(exec);
        errno = r;
        return err_errno(err, "kernel thread");
    }
    *ret_exec = exec;
    return 0;
}

void exec_free(struct exec *exec)
{
    if (!exec)
        return;
    atomic_store(&exec->cancel, true);
    pthread_mutex_lock(&exec->lock);
    exec->stop = true;
    pthread_cond_signal(&exec->posted);
    pthread_mutex_unlock(&exec->lock);
    pthread_join(exec->thread, NULL);
    pthread_cond_destroy(&exec->posted);
    pthread_mutex_destroy(&exec->lock);
    close(exec->event_fd);
    free(exec->y);
    free(exec->scratch);
    free(exec);
}

int exec_event_fd(const struct exec *exec)
{
    return exec->event_fd;
}

uint64_t exec_progress(const struct exec *exec)
{
    return atomic_load_explicit(&exec->progress, memory_order_relaxed);
}

bool exec_busy(const struct exec *exec)
{
    return exec->busy;
}

static int grow(void **memory, size_t *have, size_t bytes, struct err *err)
{
    if (bytes <= *have)
        return 0;
    bytes = size_round_up(bytes, 64);
    void *fresh = aligned_alloc(64, bytes);
    if (!fresh)
        return err_no_memory(err, "kernel scratch", bytes);
    free(*memory);
    *memory = fresh;
    *have = bytes;
    return 0;
}

int exec_reserve(struct exec *exec, size_t scratch_bytes, size_t y_bytes, struct err *err)
{
    void *y = exec->y;
    int r = grow(&exec->scratch, &exec->scratch_bytes, scratch_bytes, err);
    if (r == 0)
        r = grow(&y, &exec->y_bytes, y_bytes, err);
    exec->y = y;
    return r;
}

void exec_post(struct exec *exec, const struct exec_job *job)
{
    exec->busy = true;
    pthread_mutex_lock(&exec->lock);
    exec->job = *job;
    exec->generation++;
    pthread_cond_signal(&exec->posted);
    pthread_mutex_unlock(&exec->lock);
}

bool exec_take(struct exec *exec, struct exec_result *ret_result)
{
    eventfd_t count;
    (void)eventfd_read(exec->event_fd, &count);
    pthread_mutex_lock(&exec->lock);
    bool through = exec->busy && exec->done_generation == exec->generation;
    if (through)
        *ret_result = exec->result;
    pthread_mutex_unlock(&exec->lock);
    if (through)
        exec->busy = false;
    return through;
}

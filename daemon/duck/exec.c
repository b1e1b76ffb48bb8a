#include "daemon/duck/exec.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "proto/base/clock.h"
#include "proto/base/size.h"

/* Set only in the mutated build that proves that its test would notice. */
#ifdef EXEC_KEEPS_STALE
#define DRAIN false
#else
#define DRAIN true
#endif

enum state {
    EMPTY,   /* the owner's */
    POSTED,  /* the thread's, as are the next two */
    RUNNING, /* paused, too */
    THROUGH, /* the owner's again: the result waits */
};

struct place {
    /* Owner's. */
    bool busy;
    size_t scratch_bytes;
    void *scratch; /* owned; written by the team while busy */
    /* Under the lock. */
    enum state state;
    struct exec_job job;
    struct exec_result result;
    /* The thread's. */
    struct phases phases;
    struct team_job team;
    bool begun; /* phases and team are this job's */
    /* Set under the lock; members look at it between tiles. Relaxed: it carries nothing but itself. */
    _Atomic bool pause;
    _Atomic bool cancel; /* likewise; with it `pause` stays set. A one-shot job's process is killed by it */
};

struct exec {
    pthread_t thread;
    int weights_fd; /* borrowed */
    int program_fd; /* owned; of kernel processes; -1: see program_err */
    struct err program_err;
    int event_fd;               /* owned */
    struct team_setup setup;    /* of a kernel process's team, too */
    struct team *team;          /* owned */
    _Atomic uint64_t one_shots; /* their progress */
    _Atomic bool broken;        /* set once, under the lock, after `why` */
    struct err why;
    /* exec_watch's. */
    uint64_t looked_ns, looked_progress;
    uint32_t silent_looks;

    struct exec_feed feed; /* set once, under the lock, before `fed` */
    _Atomic bool fed;
    bool inside;        /* under the lock: member 0 is in look or through, and chooses next */
    _Atomic bool knock; /* there may be something for a member 0 that waits at its feed */
    _Atomic bool lent;
    _Atomic bool rung; /* the eventfd was written to */

    pthread_mutex_t lock;
    pthread_cond_t posted;
    bool entered; /* under the lock: the thread is member 0, or enter_err tells why not */
    bool stop;    /* likewise */
    struct err enter_err;
    struct place places[EXEC_PLACES];
};

/* ---- the kernel thread -------------------------------------------------------------------------- */

static bool share(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    struct place *place = arg;
    return phases_run(&place->phases, phase, member, pause, progress);
}

static void begin(struct exec *exec, struct place *place)
{
    compute_begin(&place->phases, &place->job.compute, team_members(exec->team), place->scratch);
    place->team = (struct team_job){
        .phases = phases_count(&place->phases),
        .share = share,
        .arg = place,
        .pause = &place->pause,
    };
    place->begun = true;
}

/* With the lock. Release: who sees `broken` reads why. The first reason stays. */
static void set_broken(struct exec *exec, const struct err *why)
{
    if (!atomic_load_explicit(&exec->broken, memory_order_relaxed))
        exec->why = *why;
    atomic_store_explicit(&exec->broken, true, memory_order_release);
}

static bool cancelled(struct place *place)
{
    if (!atomic_load_explicit(&place->cancel, memory_order_relaxed))
        return false;
    place->result.code = err_set(&place->result.err, -ECANCELED, ERR_CANCELLED, "the step was cancelled");
    return true;
}

/* Runs a job, or the rest of it. False: it was paused. */
static bool run(struct exec *exec, struct place *place)
{
    struct exec_result *result = &place->result;
    const struct exec_job *job = &place->job;
    if (cancelled(place))
        return true;
    if (job->one_shot && exec->program_fd < 0) {
        result->err = exec->program_err;
        result->code = result->err.code;
        return true;
    }
    if (job->one_shot) {
        struct judge_result one_shot;
        result->code = judge_run(exec->program_fd, &job->compute, &job->slot, &exec->setup, exec->weights_fd, &exec->one_shots,
                                 &place->cancel, &one_shot, &result->err);
        if (result->code == 0) {
            result->duck_time_ns = one_shot.parts.run_ns;
            result->cost = one_shot.cost;
            result->one_shot = true;
            result->parts = one_shot.parts;
        }
        return true;
    }
    uint64_t start_ns = clock_now_ns();
    if (!place->begun)
        begin(exec, place);
    int r = team_run(exec->team, &place->team, &result->err);
    result->duck_time_ns += clock_now_ns() - start_ns;
    if (r == TEAM_PAUSED)
        return cancelled(place);
    result->code = r;
    result->cost = compute_cost_of(&place->phases);
    if (r < 0) {
        pthread_mutex_lock(&exec->lock);
        set_broken(exec, &result->err);
        pthread_mutex_unlock(&exec->lock);
    }
    return true;
}

/* The job to go on with, NULL when there is none. */
static struct place *choose(struct exec *exec)
{
    for (int i = 0; i < EXEC_PLACES; i++) {
        struct place *place = &exec->places[i];
        if (place->state != POSTED && place->state != RUNNING)
            continue;
        if (place->state == POSTED && DRAIN) { /* nothing of the job before, however it ended */
            /* Not the whole of it: kilobytes of error text would be cleared with every step. */
            place->result.code = place->result.err.code = 0;
            place->result.cost = (struct compute_cost){0};
            place->result.duck_time_ns = 0;
            place->result.one_shot = false;
            place->begun = false;
        }
        place->state = RUNNING;
        atomic_store_explicit(&place->pause, atomic_load_explicit(&place->cancel, memory_order_relaxed), memory_order_relaxed);
        return place;
    }
    return NULL;
}

void exec_ring(struct exec *exec)
{
    atomic_store(&exec->rung, true);
    (void)eventfd_write(exec->event_fd, 1);
}

static bool knocked(void *user)
{
    struct exec *exec = user;
    return atomic_load(&exec->knock);
}

static void set_lent(struct exec *exec, bool lent)
{
    atomic_store(&exec->lent, lent);
    exec->feed.lend(exec->feed.user, lent);
}

/* With the lock. */
static struct place *look(struct exec *exec)
{
    /* Before the look: what is posted after it knocks anew. */
    if (atomic_load_explicit(&exec->knock, memory_order_relaxed))
        atomic_store(&exec->knock, false);
    exec->inside = true;
    exec->feed.look(exec->feed.user);
    exec->inside = false;
    return exec->stop ? NULL : choose(exec);
}

/* With the lock, given back for the while. */
static void run_fed(struct exec *exec, struct place *place)
{
    pthread_mutex_unlock(&exec->lock);
    bool through = run(exec, place);
    pthread_mutex_lock(&exec->lock);
    if (!through)
        return;
    place->state = THROUGH;
    if (atomic_load(&exec->broken)) {
        exec_ring(exec);
        return;
    }
    exec->inside = true;
    exec->feed.through(exec->feed.user);
    exec->inside = false;
}

static bool brief(const struct exec *exec, const struct place *place)
{
    return place == &exec->places[EXEC_INTERACTIVE] && !place->job.one_shot;
}

/* The thread from the moment it has a feed; with the lock. A brief job is not interrupted by another, so nobody has to look meanwhile. */
static void feed_main(struct exec *exec)
{
    while (!exec->stop) {
        struct place *place = look(exec);
        bool lent = place && !brief(exec, place);
        if (lent) {
            set_lent(exec, true);
            place = look(exec); /* what came before it was lent */
        }
        if (place)
            run_fed(exec, place);
        if (lent)
            set_lent(exec, false);
        if (!place && !lent && !exec->stop) {
            pthread_mutex_unlock(&exec->lock);
            exec->feed.wait(exec->feed.user, knocked, exec);
            pthread_mutex_lock(&exec->lock);
        }
    }
}

static void *thread_main(void *user)
{
    struct exec *exec = user;
    (void)pthread_setname_np(pthread_self(), "member-0");
    pthread_mutex_lock(&exec->lock);
    (void)team_enter(exec->team, &exec->enter_err);
    exec->entered = true;
    pthread_cond_signal(&exec->posted);
    while (!exec->stop) {
        if (atomic_load(&exec->fed)) {
            feed_main(exec);
            break;
        }
        struct place *place = choose(exec);
        if (!place) {
            pthread_cond_wait(&exec->posted, &exec->lock);
            continue;
        }
        pthread_mutex_unlock(&exec->lock);
        bool through = run(exec, place);
        pthread_mutex_lock(&exec->lock);
        if (through) {
            place->state = THROUGH;
            exec_ring(exec);
        }
    }
    pthread_mutex_unlock(&exec->lock);
    return NULL;
}

/* ---- the owner ---------------------------------------------------------------------------------- */

/* Signals are the main thread's: the kernel thread starts with all of them blocked. */
static int start_thread(struct exec *exec, struct err *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&exec->thread, NULL, thread_main, exec);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r != 0) {
        errno = r;
        return err_errno(err, "kernel thread");
    }
    pthread_mutex_lock(&exec->lock);
    while (!exec->entered)
        pthread_cond_wait(&exec->posted, &exec->lock);
    pthread_mutex_unlock(&exec->lock);
    return 0;
}

static void knock(struct exec *exec)
{
    if (!atomic_load(&exec->fed))
        return;
    atomic_store(&exec->knock, true);
    exec->feed.wake(exec->feed.user);
}

void exec_lock(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
}

void exec_unlock(struct exec *exec)
{
    pthread_mutex_unlock(&exec->lock);
}

/* What the owner does to the places: with a feed it has the lock already. */
static bool enter(struct exec *exec)
{
    bool alone = !atomic_load_explicit(&exec->fed, memory_order_relaxed);
    if (alone)
        pthread_mutex_lock(&exec->lock);
    return alone;
}

static void leave(struct exec *exec, bool entered)
{
    if (entered)
        pthread_mutex_unlock(&exec->lock);
}

void exec_set_feed(struct exec *exec, const struct exec_feed *feed)
{
    pthread_mutex_lock(&exec->lock);
    exec->feed = *feed;
    atomic_store(&exec->fed, true);
    pthread_cond_signal(&exec->posted);
    pthread_mutex_unlock(&exec->lock);
}

bool exec_lent(const struct exec *exec)
{
    return atomic_load(&exec->lent);
}

/* With the lock. */
static void stop_place(struct place *place)
{
    atomic_store_explicit(&place->cancel, true, memory_order_relaxed);
    atomic_store_explicit(&place->pause, true, memory_order_relaxed);
}

void exec_cancel(struct exec *exec, enum exec_place where)
{
    struct place *place = &exec->places[where];
    bool entered = enter(exec);
    if (place->state == POSTED || place->state == RUNNING)
        stop_place(place);
    leave(exec, entered);
}

static void stop_thread(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    exec->stop = true;
    for (int i = 0; i < EXEC_PLACES; i++)
        stop_place(&exec->places[i]);
    pthread_cond_signal(&exec->posted);
    pthread_mutex_unlock(&exec->lock);
    knock(exec);
    pthread_join(exec->thread, NULL);
}

static void release(struct exec *exec)
{
    bool broken = exec_broken(exec) != NULL;
    team_free(exec->team);
    closep(&exec->event_fd);
    closep(&exec->program_fd);
    pthread_cond_destroy(&exec->posted);
    pthread_mutex_destroy(&exec->lock);
    if (broken)
        return; /* a stalled member may still use all that follows */
    for (int i = 0; i < EXEC_PLACES; i++)
        free(exec->places[i].scratch);
    free(exec);
}

int exec_new(int weights_fd, const struct team_setup *setup, struct exec **ret_exec, struct err *err)
{
    struct exec *exec = calloc(1, sizeof *exec);
    if (!exec)
        return err_no_memory(err, "kernel thread", sizeof *exec);
    exec->weights_fd = weights_fd;
    if (judge_open_program(&exec->program_fd, &exec->program_err) < 0)
        exec->program_fd = -1;
    exec->setup = *setup;
    pthread_mutex_init(&exec->lock, NULL);
    pthread_cond_init(&exec->posted, NULL);
    exec->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = exec->event_fd < 0 ? err_errno(err, "kernel thread: eventfd") : team_new(setup, &exec->team, err);
    if (r == 0)
        r = start_thread(exec, err);
    if (r == 0 && exec->enter_err.code < 0) {
        stop_thread(exec);
        err_copy(err, &exec->enter_err);
        r = exec->enter_err.code;
    }
    if (r < 0) {
        release(exec);
        return r;
    }
    *ret_exec = exec;
    return 0;
}

void exec_free(struct exec *exec)
{
    if (!exec)
        return;
    stop_thread(exec);
    release(exec);
}

int exec_event_fd(const struct exec *exec)
{
    return exec->event_fd;
}

uint64_t exec_progress(const struct exec *exec)
{
    return team_progress(exec->team) + atomic_load_explicit(&exec->one_shots, memory_order_relaxed);
}

bool exec_busy(const struct exec *exec, enum exec_place place)
{
    return exec->places[place].busy;
}

uint32_t exec_members(const struct exec *exec)
{
    return team_members(exec->team);
}

int exec_reserve(struct exec *exec, enum exec_place where, size_t scratch_bytes, struct err *err)
{
    struct place *place = &exec->places[where];
    if (scratch_bytes <= place->scratch_bytes)
        return 0;
    size_t bytes = size_round_up(scratch_bytes, 64);
    void *fresh = aligned_alloc(64, bytes);
    if (!fresh)
        return err_no_memory(err, "kernel scratch", bytes);
    free(place->scratch);
    place->scratch = fresh;
    place->scratch_bytes = bytes;
    return 0;
}

void exec_post(struct exec *exec, enum exec_place where, const struct exec_job *job)
{
    struct place *place = &exec->places[where];
    place->busy = true;
    bool entered = enter(exec);
    place->job = *job;
    place->state = POSTED;
    atomic_store_explicit(&place->cancel, false, memory_order_relaxed);
    if (where == EXEC_INTERACTIVE)
        atomic_store_explicit(&exec->places[EXEC_BATCH].pause, true, memory_order_relaxed);
    if (entered)
        pthread_cond_signal(&exec->posted);
    leave(exec, entered);
    if (!exec->inside)
        knock(exec);
}

bool exec_take(struct exec *exec, enum exec_place *ret_place, struct exec_result *ret_result)
{
    eventfd_t count;
    bool through = false, entered = enter(exec);
    if (!exec->inside && atomic_exchange(&exec->rung, false)) /* within, it rings for the main thread */
        (void)eventfd_read(exec->event_fd, &count);
    for (int i = 0; i < EXEC_PLACES && !through; i++) {
        struct place *place = &exec->places[i];
        through = place->state == THROUGH;
        if (!through)
            continue;
        place->state = EMPTY;
        place->busy = false;
        const struct exec_result *result = &place->result;
        ret_result->code = result->code;
        ret_result->cost = result->cost;
        ret_result->duck_time_ns = result->duck_time_ns;
        ret_result->one_shot = result->one_shot;
        ret_result->parts = result->parts;
        if (result->code < 0)
            err_copy(&ret_result->err, &result->err);
        *ret_place = (enum exec_place)i;
    }
    leave(exec, entered);
    return through;
}

const struct err *exec_broken(const struct exec *exec)
{
    return atomic_load_explicit(&exec->broken, memory_order_acquire) ? &exec->why : NULL;
}

void exec_watch(struct exec *exec, uint64_t now_ns)
{
    if (now_ns - exec->looked_ns < EXEC_WATCH_MS * CLOCK_NS_PER_MS)
        return;
    bool idle = true;
    for (int i = 0; i < EXEC_PLACES; i++)
        idle &= !exec->places[i].busy;
    uint64_t progress = exec_progress(exec);
    exec->silent_looks = idle || progress != exec->looked_progress ? 0 : exec->silent_looks + 1;
    exec->looked_progress = progress;
    exec->looked_ns = now_ns;
    if (exec->silent_looks < EXEC_WATCH_LOOKS)
        return;
    struct err why;
    bool one_shot = false, entered = enter(exec);
    for (int i = 0; i < EXEC_PLACES; i++)
        one_shot |= exec->places[i].state == RUNNING && exec->places[i].job.one_shot;
    if (one_shot)
        err_set(&why, -EIO, ERR_INTERNAL, "one-shot: the kernel process made no progress for %d ms", EXEC_WATCH_LOOKS * EXEC_WATCH_MS);
    else /* another member would have been found by it */
        team_accuse_first(exec->team, EXEC_WATCH_LOOKS * EXEC_WATCH_MS, &why);
    set_broken(exec, &why);
    leave(exec, entered);
}

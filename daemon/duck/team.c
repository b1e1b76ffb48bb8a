#include "daemon/duck/team.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <string.h>

#include "proto/base/futex.h"
#include "proto/base/spin.h"

#define LINE 128 /* cache lines are fetched in pairs */
#define STALL_LOOKS                                                                                                                        \
    10 /* times that a member must be found without progress; a stopped process finds it once, however long it was stopped */

/* Left out only in the mutated build that proves that the stress test would notice. */
#ifdef TEAM_WITHOUT_PHASE_CHECK
#define PHASE_CHECK false
#else
#define PHASE_CHECK true
#endif

/* Written by its member; member 0 reads. */
struct member {
    alignas(LINE) _Atomic uint32_t done; /* ticket of the phase that its share was last through or stopped in */
    bool through;                        /* of that share; published by `done` */
    _Atomic pid_t tid;                   /* 0 until the thread runs */
    alignas(LINE) _Atomic uint64_t progress;
    /* Set before the thread starts. */
    alignas(LINE) struct team *team;
    uint32_t index;
    int cpu; /* -1: not bound */
    pthread_t thread;
};

/* The open phase: written by member 0, read by all, and small, so that one cache line tells a spinning member everything. */
struct order {
    alignas(LINE) _Atomic uint32_t ticket; /* one more for each phase ever opened; members sleep on it */
    uint32_t phase;
    uint64_t through; /* of the job: members that have nothing to do */
    team_share *share;
    void *arg;
    const _Atomic bool *pause;
    bool last; /* no further phase of this job follows */
};

struct team {
    struct order order;
    /* Both change only when somebody goes to sleep: looking at them costs nothing while all spin. */
    alignas(LINE) _Atomic uint32_t asleep; /* members that sleep on the ticket, or are about to */
    _Atomic uint32_t collecting;           /* 1: member 0 sleeps on the bell, or is about to */
    _Atomic bool stop;
    alignas(LINE) _Atomic uint32_t bell; /* rung by members that are done while member 0 is collecting */
    alignas(LINE) struct team_setup setup;
    uint32_t started;    /* members that have a thread, member 0 included */
    struct spin collect; /* this and all below: member 0's */
    struct err broken;   /* code 0: it is not */
    bool looked;         /* in this phase; then these hold something: */
    uint64_t seen_progress[TEAM_MEMBERS_MAX];
    uint32_t silent_looks[TEAM_MEMBERS_MAX]; /* in a row that found the progress as it was */
    struct member members[];
};

/* ---- members 1 .. ------------------------------------------------------------------------------- */

/* The ticket that follows `seen`, when there is one. */
static uint32_t wait_open(struct team *team, uint32_t seen, struct spin *spin)
{
    if (!spin_until(spin, &team->order.ticket, seen, false)) {
        /* Sequentially consistent, as is open_phase's pair: either we see the new ticket here, or member 0 sees us in `asleep`. Should
         * the ticket change before we sleep, futex_wait finds another value and returns. */
        atomic_fetch_add_explicit(&team->asleep, 1, memory_order_seq_cst);
        while (atomic_load_explicit(&team->order.ticket, memory_order_seq_cst) == seen)
            (void)futex_wait(&team->order.ticket, seen, 0);
        atomic_fetch_sub_explicit(&team->asleep, 1, memory_order_relaxed); /* only a hint now: too high costs a wake call */
    }
    /* Acquire: pairs with the release in open_phase, so the order's plain words are those of this ticket. */
    return atomic_load_explicit(&team->order.ticket, memory_order_acquire);
}

static void *member_main(void *user)
{
    struct member *member = user;
    struct team *team = member->team;
    struct order *order = &team->order;
    struct spin within = spin_init(team->setup.phase_spin_ns), between = spin_init(team->setup.job_spin_ns);
    uint32_t seen = 0;
    bool last = true;
    char name[16];
    snprintf(name, sizeof name, "member-%u", member->index);
    (void)pthread_setname_np(pthread_self(), name);
    atomic_store_explicit(&member->tid, gettid(), memory_order_relaxed); /* a number alone: nothing is read because of it */
    for (;;) {
        seen = wait_open(team, seen, last ? &between : &within);
        /* Relaxed: `stop` was set before the ticket that we acquired. */
        if (atomic_load_explicit(&team->stop, memory_order_relaxed))
            return NULL;
        last = order->last;
        member->through = (order->through >> member->index & 1) != 0 ||
                          order->share(order->arg, order->phase, member->index, order->pause, &member->progress);
        /* Release: what the share wrote is there for member 0, and through it for the next phase, once it sees `done`. No word of the
         * order is read after this. Sequentially consistent with the load that follows, as in wait_for: either member 0 sees that we
         * are done, or we see that it collects. */
        atomic_store_explicit(&member->done, seen, memory_order_seq_cst);
        if (atomic_load_explicit(&team->collecting, memory_order_seq_cst)) {
            atomic_fetch_add_explicit(&team->bell, 1, memory_order_release);
            futex_wake(&team->bell, 1);
        }
    }
}

/* ---- member 0 ----------------------------------------------------------------------------------- */

static uint32_t open_phase(struct team *team, const struct team_job *job)
{
    struct order *order = &team->order;
    order->phase = job->phase;
    order->through = job->through;
    order->share = job->share;
    order->arg = job->arg;
    order->pause = job->pause;
    order->last = job->phase + 1 == job->phases;
    /* Only this thread writes the ticket. The store releases the words above; see wait_open for why it is sequentially consistent. */
    uint32_t ticket = atomic_load_explicit(&order->ticket, memory_order_relaxed) + 1;
    atomic_store_explicit(&order->ticket, ticket, memory_order_seq_cst);
    if (atomic_load_explicit(&team->asleep, memory_order_seq_cst))
        futex_wake(&order->ticket, INT_MAX);
    return ticket;
}

static bool thread_gone(const struct member *member)
{
    pid_t tid = atomic_load_explicit(&member->tid, memory_order_relaxed);
    return tid != 0 && syscall(SYS_tgkill, getpid(), tid, 0) < 0 && errno == ESRCH;
}

static void accuse(const struct member *member, const char *what, struct err *err)
{
    char where[48] = "bound to no CPU";
    if (member->cpu >= 0)
        snprintf(where, sizeof where, "on CPU %d", member->cpu);
    err_set(err, -EIO, ERR_INTERNAL, "kernel thread %u of %u (%s) %s", member->index, member->team->setup.members, where, what);
    err_value_int(err, "member", member->index);
    if (member->cpu >= 0)
        err_value_int(err, "cpu", member->cpu);
}

static int report(struct team *team, const struct member *member, const char *what)
{
    char in[96];
    snprintf(in, sizeof in, "%s in phase %u", what, team->order.phase);
    accuse(member, in, &team->broken);
    return team->broken.code;
}

/* A look at all members that still owe their share of the phase. */
static int look(struct team *team, uint32_t ticket)
{
    for (uint32_t i = 1; i < team->setup.members; i++) {
        struct member *member = &team->members[i];
        if (atomic_load_explicit(&member->done, memory_order_acquire) == ticket)
            continue;
        if (thread_gone(member))
            return report(team, member, "is gone");
        uint64_t progress = atomic_load_explicit(&member->progress, memory_order_relaxed);
        bool silent = team->looked && progress == team->seen_progress[i];
        team->silent_looks[i] = silent ? team->silent_looks[i] + 1 : 0;
        team->seen_progress[i] = progress;
        if (team->silent_looks[i] < STALL_LOOKS)
            continue;
        char what[64];
        snprintf(what, sizeof what, "made no progress for %llu ms", (unsigned long long)(team->setup.stall_ns / CLOCK_NS_PER_MS));
        return report(team, member, what);
    }
    team->looked = true;
    return 0;
}

static int wait_for(struct team *team, struct member *member, uint32_t ticket)
{
    if (spin_until(&team->collect, &member->done, ticket, true))
        return 0;
    int r = 0;
    while (r == 0) {
        /* A bell that rings after this load makes futex_wait return at once. */
        uint32_t bell = atomic_load_explicit(&team->bell, memory_order_acquire);
        atomic_store_explicit(&team->collecting, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&member->done, memory_order_seq_cst) == ticket)
            break;
        if (futex_wait(&team->bell, bell, team->setup.stall_ns / STALL_LOOKS))
            r = look(team, ticket);
    }
    atomic_store_explicit(&team->collecting, 0, memory_order_relaxed); /* a hint now: a member that still sees 1 rings in vain */
    return r;
}

/* Waits for all; notes whose share is through. */
static int collect(struct team *team, struct team_job *job, uint32_t ticket)
{
    team->looked = false;
    for (uint32_t i = 1; i < team->setup.members; i++) {
        struct member *member = &team->members[i];
        if (!PHASE_CHECK) {
            job->through |= UINT64_C(1) << i;
            continue;
        }
        int r = wait_for(team, member, ticket);
        if (r < 0)
            return r;
        job->through |= (uint64_t)member->through << i;
    }
    return 0;
}

int team_run(struct team *team, struct team_job *job, struct err *err)
{
    uint32_t members = team->setup.members;
    uint64_t everyone = UINT64_MAX >> (TEAM_MEMBERS_MAX - members);
    struct member *first = &team->members[0];
    if (team->broken.code < 0) {
        err_copy(err, &team->broken);
        return team->broken.code;
    }
    while (job->phase < job->phases) {
        uint32_t ticket = members > 1 ? open_phase(team, job) : 0;
        if ((job->through & 1) == 0)
            job->through |= job->share(job->arg, job->phase, 0, job->pause, &first->progress);
        if (collect(team, job, ticket) < 0) {
            err_copy(err, &team->broken);
            return team->broken.code;
        }
        if (job->through != everyone)
            return TEAM_PAUSED;
        job->through = 0;
        job->phase++;
        if (job->phase < job->phases && atomic_load_explicit(job->pause, memory_order_relaxed))
            return TEAM_PAUSED;
    }
    return 0;
}

/* ---- the owner ---------------------------------------------------------------------------------- */

static int nth_cpu(const cpu_set_t *set, uint32_t n)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set) && n-- == 0)
            return cpu;
    return -1;
}

/* Signals are the main thread's: members start with all of them blocked. */
static int start_member(struct member *member)
{
    pthread_attr_t attr;
    sigset_t all;
    cpu_set_t one;
    sigfillset(&all);
    int r = pthread_attr_init(&attr);
    if (r != 0)
        return r;
    r = pthread_attr_setsigmask_np(&attr, &all);
    if (r == 0 && member->cpu >= 0) {
        CPU_ZERO(&one);
        CPU_SET(member->cpu, &one);
        r = pthread_attr_setaffinity_np(&attr, sizeof one, &one);
    }
    if (r == 0)
        r = pthread_create(&member->thread, &attr, member_main, member);
    pthread_attr_destroy(&attr);
    return r;
}

int team_new(const struct team_setup *setup, struct team **ret_team, struct err *err)
{
    if (setup->members < 1 || setup->members > TEAM_MEMBERS_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%u kernel threads, 1 to %d are possible", setup->members, TEAM_MEMBERS_MAX);
    if (setup->bind && (uint32_t)CPU_COUNT(&setup->cpus) < setup->members)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%u kernel threads cannot have one of %d CPUs each", setup->members,
                       CPU_COUNT(&setup->cpus));
    size_t bytes = sizeof(struct team) + setup->members * sizeof(struct member);
    _cleanup_(team_freep) struct team *team = aligned_alloc(LINE, bytes);
    if (!team)
        return err_no_memory(err, "kernel threads", bytes);
    memset(team, 0, bytes);
    team->setup = *setup;
    team->collect = spin_init(setup->phase_spin_ns);
    for (uint32_t i = 0; i < setup->members; i++) {
        struct member *member = &team->members[i];
        member->team = team;
        member->index = i;
        member->cpu = setup->bind ? nth_cpu(&setup->cpus, i) : -1;
    }
    for (team->started = 1; team->started < setup->members; team->started++) {
        errno = start_member(&team->members[team->started]);
        if (errno != 0)
            return err_errno(err, "kernel thread %u of %u", team->started, setup->members);
    }
    *ret_team = STEAL(team);
    return 0;
}

/* After a failure: nobody waits for a member that may never come back. */
static bool stalled(struct team *team, const struct member *member)
{
    return team->broken.code < 0 && !thread_gone(member) &&
           atomic_load_explicit(&member->done, memory_order_acquire) != atomic_load_explicit(&team->order.ticket, memory_order_relaxed);
}

void team_free(struct team *team)
{
    if (!team)
        return;
    bool leave[TEAM_MEMBERS_MAX] = {false}, any = false;
    for (uint32_t i = 1; i < team->started; i++)
        any |= leave[i] = stalled(team, &team->members[i]);
    atomic_store_explicit(&team->stop, true, memory_order_relaxed); /* released by the ticket */
    atomic_fetch_add_explicit(&team->order.ticket, 1, memory_order_seq_cst);
    futex_wake(&team->order.ticket, INT_MAX);
    for (uint32_t i = 1; i < team->started; i++) {
        if (leave[i])
            pthread_detach(team->members[i].thread);
        else
            pthread_join(team->members[i].thread, NULL);
    }
    if (!any)
        free(team);
}

int team_enter(struct team *team, struct err *err)
{
    struct member *first = &team->members[0];
    if (first->cpu < 0)
        return 0;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first->cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) < 0 ? err_errno(err, "kernel thread 0 on CPU %d", first->cpu) : 0;
}

uint32_t team_members(const struct team *team)
{
    return team->setup.members;
}

void team_accuse_first(const struct team *team, uint64_t ms, struct err *err)
{
    char what[64];
    snprintf(what, sizeof what, "made no progress for %llu ms", (unsigned long long)ms);
    accuse(&team->members[0], what, err);
}

uint64_t team_progress(const struct team *team)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < team->setup.members; i++)
        sum += atomic_load_explicit(&team->members[i].progress, memory_order_relaxed);
    return sum;
}

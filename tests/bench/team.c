#include "tests/bench/team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"

struct member {
    struct team *team;
    uint32_t index;
    pthread_t thread;
    uint64_t local_ns;
};

struct team {
    uint32_t count, started;
    bool pinned;
    cpu_set_t cpus; /* of the caller before */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    uint64_t calls; /* under lock: a member that has seen fewer wakes up */
    bool over;      /* under lock */
    void (*work)(void *data, uint32_t member);
    void *data;
    uint32_t waiting, open, done; /* atomic: members at the barrier, whether it is open, members that are done */
    struct member members[];
};

static void pause_briefly(const struct team *team)
{
    if (!team->pinned)
        sched_yield();
#if defined(__x86_64__)
    else
        __builtin_ia32_pause();
#endif
}

static void pin(const struct team *team, uint32_t index)
{
    cpu_set_t one;
    int cpu = -1;

    if (!team->pinned)
        return;
    for (uint32_t left = index + 1; left > 0; left--)
        do
            cpu++;
        while (!CPU_ISSET(cpu, &team->cpus));
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one); /* an unpinned member is slower, not wrong */
}

static void work(struct team *team, struct member *member)
{
    uint64_t begin = clock_now_ns();

    team->work(team->data, member->index);
    member->local_ns = clock_now_ns() - begin;
}

static void *member_main(void *data)
{
    struct member *member = data;
    struct team *team = member->team;

    pin(team, member->index);
    for (uint64_t seen = 0;; seen++) {
        pthread_mutex_lock(&team->lock);
        while (team->calls == seen && !team->over)
            pthread_cond_wait(&team->wake, &team->lock);
        if (team->over) {
            pthread_mutex_unlock(&team->lock);
            return NULL;
        }
        pthread_mutex_unlock(&team->lock);
        __atomic_add_fetch(&team->waiting, 1, __ATOMIC_ACQ_REL);
        while (!__atomic_load_n(&team->open, __ATOMIC_ACQUIRE))
            pause_briefly(team);
        work(team, member);
        __atomic_add_fetch(&team->done, 1, __ATOMIC_ACQ_REL);
    }
}

int team_new(struct team **ret_team, uint32_t threads, struct err *err)
{
    struct team *team = calloc(1, sizeof(*team) + threads * sizeof(team->members[0]));

    if (!team)
        return err_no_memory(err, "the threads", threads * sizeof(team->members[0]));
    team->count = threads;
    team->started = 1;
    team->pinned = sched_getaffinity(0, sizeof(team->cpus), &team->cpus) == 0 && (uint32_t)CPU_COUNT(&team->cpus) >= threads;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    for (uint32_t i = 0; i < threads; i++)
        team->members[i] = (struct member){.team = team, .index = i};
    for (; team->started < threads; team->started++) {
        struct member *member = &team->members[team->started];
        int r = pthread_create(&member->thread, NULL, member_main, member);

        if (r != 0) {
            err_set(err, -r, ERR_NO_MEMORY, "starting thread %u of %u: %s", team->started, threads, strerror(r));
            team_free(team);
            return -r;
        }
    }
    pin(team, 0);
    *ret_team = team;
    return 0;
}

void team_free(struct team *team)
{
    if (!team)
        return;
    pthread_mutex_lock(&team->lock);
    team->over = true;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
    for (uint32_t i = 1; i < team->started; i++)
        pthread_join(team->members[i].thread, NULL);
    if (team->pinned)
        sched_setaffinity(0, sizeof(team->cpus), &team->cpus);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->lock);
    free(team);
}

bool team_pinned(const struct team *team)
{
    return team->pinned;
}

struct team_time team_run(struct team *team, void (*job)(void *data, uint32_t member), void *data)
{
    struct team_time time = {0};
    uint64_t begin;

    team->work = job;
    team->data = data;
    __atomic_store_n(&team->waiting, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&team->open, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&team->done, 0, __ATOMIC_RELAXED);
    pthread_mutex_lock(&team->lock);
    team->calls++;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
    while (__atomic_load_n(&team->waiting, __ATOMIC_ACQUIRE) + 1 < team->count)
        pause_briefly(team);

    begin = clock_now_ns();
    __atomic_store_n(&team->open, 1, __ATOMIC_RELEASE);
    work(team, &team->members[0]);
    while (__atomic_load_n(&team->done, __ATOMIC_ACQUIRE) + 1 < team->count)
        pause_briefly(team);
    time.wall_ns = clock_now_ns() - begin;
    for (uint32_t i = 0; i < team->count; i++)
        if (team->members[i].local_ns > time.local_max_ns)
            time.local_max_ns = team->members[i].local_ns;
    return time;
}

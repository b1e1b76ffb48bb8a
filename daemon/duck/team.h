/* The team: the threads of one duck that work on one job together, phase by phase.
 *
 * Member 0 is the thread that calls team_run (the duck's kernel thread); members 1 .. are started once, by team_new. A job is a number
 * of phases. Member 0 opens a phase, every member does its share of it, member 0 collects them all, and only then opens the next: so all
 * that was written in a phase may be read by every member in the next one. Who waits spins for a while, then sleeps on a futex.
 *
 * Pausing: a share that stops because the job's `pause` was set says so, and team_run returns TEAM_PAUSED. Another job may then run on
 * the team; team_run of the first one goes on in the phase where it stopped, with the members whose share is not through.
 *
 * Failing: a member whose thread is gone, or that owes a share and shows no progress for the stated time, is named in the error of
 * team_run, with its CPU. The team is broken from then on and runs nothing any more, because a stalled member may wake up at any moment
 * and go on writing into its job's memory: that memory must neither be used again nor freed. The process is to end.
 *
 * Threads: team_run by one thread at a time, team_progress by any, the rest by the owner while nothing runs.
 */
#ifndef FP9_DUCK_TEAM_H
#define FP9_DUCK_TEAM_H

#include <sched.h>
#include <stdatomic.h>

#include "proto/base/cleanup.h"
#include "proto/base/err.h"

#include <stdint.h>

#define TEAM_MEMBERS_MAX 64
#define TEAM_PAUSED 1

/* One member's share of a phase. True: it is through; false: it stopped because *pause was set, to go on when called again with the same
 * phase and member. *progress is this member's own counter, in a cache line of its own; it is to move (relaxed) every few milliseconds. */
typedef bool team_share(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress);

struct team_setup {
    uint32_t members; /* 1 .. TEAM_MEMBERS_MAX */
    cpu_set_t cpus;   /* with `bind`: member i gets the i-th of them for itself, so there are at least as many */
    bool bind;
    uint64_t phase_spin_ns; /* at most this long a member spins within a job; 0: it sleeps at once */
    uint64_t job_spin_ns;   /* likewise members 1 .. between two jobs */
    uint64_t stall_ns;      /* a member without progress for this long is given up; at least 10 ns */
};

struct team_job {
    uint32_t phases;
    team_share *share;
    void *arg;
    const _Atomic bool *pause;
    /* The team's own words, zero at first. */
    uint32_t phase;   /* the one to open next */
    uint64_t through; /* bit per member: its share of that phase is through already */
};

struct team;

/* Starts members 1 .. with all signals blocked. */
int team_new(const struct team_setup *setup, struct team **ret_team, struct err *err);
/* Ends the members. Of a broken team, what a stalled member may still use is left as it is. */
void team_free(struct team *team);
CLEANUP_DEFINE(struct team *, team_free);

/* Makes the calling thread member 0: with `bind`, on the first of the CPUs. */
int team_enter(struct team *team, struct err *err);

uint32_t team_members(const struct team *team);

/* Runs the job, or the rest of it: 0, or TEAM_PAUSED with the job's own words telling where. -EIO INTERNAL: the team is broken. */
int team_run(struct team *team, struct team_job *job, struct err *err);

/* The error of a member 0 that made no progress for so long, which only somebody else can see; any other member is found by member 0
 * itself. For any thread; the team's own state stays as it is. */
void team_accuse_first(const struct team *team, uint64_t ms, struct err *err);

/* The sum of all members' progress; moves while they work. */
uint64_t team_progress(const struct team *team);

#endif

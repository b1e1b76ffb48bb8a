/* The kernel thread (member 0 of the team) and the jobs it runs. There are two places for a job, one interactive and one batch: the owner
 * posts a job into an empty place, the team runs it, the eventfd tells, the owner takes the result. So there is never more than one job of
 * a kind, and the owner keeps the queues.
 *
 * An interactive job goes first. When it is posted while the batch job runs, that one is paused within a tile of its kernels, and goes on
 * where it stopped once no interactive job waits. A one-shot job is not paused: it runs to its end in a process of its own.
 *
 * When a member of the team is lost, the job's result says so (-EIO) and exec_broken has the reason: no job runs any more, and nothing that
 * a job pointed to may be used again or freed, for a stalled member may still write there. The process is to end by _exit.
 *
 * Threads: everything here is called by the owner; exec_progress by anyone. Without a feed the owner is one thread.
 */
#ifndef FP9_DUCK_EXEC_H
#define FP9_DUCK_EXEC_H

#include "daemon/duck/judge.h"
#include "daemon/duck/team.h"

struct exec;

enum exec_place {
    EXEC_INTERACTIVE,
    EXEC_BATCH,
    EXEC_PLACES,
};

struct exec_job {
    struct compute_job compute; /* what it points to belongs to the owner and stays until the job is taken back */
    bool one_shot;
    struct judge_slot slot; /* for one_shot */
};

struct exec_result {
    int code; /* 0, or negative and err */
    struct err err;
    struct compute_cost cost;
    uint64_t duck_time_ns; /* the job's own; what ran while it was paused does not count */
    bool one_shot;         /* then: where its time went */
    struct msg_one_shot parts;
};

/* weights_fd: borrowed, for kernel processes. */
int exec_new(int weights_fd, const struct team_setup *setup, struct exec **ret_exec, struct err *err);
/* Cancels what runs (within a tile), joins the threads. */
void exec_free(struct exec *exec);
CLEANUP_DEFINE(struct exec *, exec_free);

/* Where member 0 itself looks for work while it has none, and says that a job is through, in place of the owner (feed.h). All are called by
 * member 0, except wake. With a feed the owner is the main thread and, within look and through, member 0: one lock lets in one of them at
 * a time, and a step costs member 0 two turns with it, one before the kernels and one after them. */
struct exec_feed {
    void *user;
    void (*look)(void *user);            /* may post; with the lock */
    void (*through)(void *user);         /* exec_take has a result; with the lock */
    void (*lend)(void *user, bool lent); /* true: a job begins that others may interrupt or that takes long, so somebody else must look */
    void (*wait)(void *user, bool (*knocked)(void *user), void *knocked_user); /* until there is work, or knocked; without the lock */
    void (*wake)(void *user);            /* ends wait, after knocked has become true */
};
/* With a feed the main thread holds this around all calls but exec_free and exec_progress. */
void exec_lock(struct exec *exec);
void exec_unlock(struct exec *exec);
/* Once, before the first job. *feed is copied. */
void exec_set_feed(struct exec *exec, const struct exec_feed *feed);
bool exec_lent(const struct exec *exec); /* between lend(true) and lend(false) */
/* Makes the event descriptor readable though no result may wait. */
void exec_ring(struct exec *exec);

int exec_event_fd(const struct exec *exec); /* readable when a result waits, unless a feed has been told */
uint64_t exec_progress(const struct exec *exec);
uint32_t exec_members(const struct exec *exec);                 /* for compute_scratch_bytes */
bool exec_busy(const struct exec *exec, enum exec_place place); /* a job is posted and not yet taken back */

/* Makes the place's scratch at least this large; not while it is busy. */
int exec_reserve(struct exec *exec, enum exec_place place, size_t scratch_bytes, struct err *err);
/* Into a place that is not busy; exec_reserve was called for such a job. */
void exec_post(struct exec *exec, enum exec_place place, const struct exec_job *job);
/* The place's job ends within a tile of its kernels, or its process by a signal: its result is -ECANCELED, unless it is through already. */
void exec_cancel(struct exec *exec, enum exec_place place);
/* True and a result when a job is through; call until false. Also empties the eventfd, but for member 0. */
bool exec_take(struct exec *exec, enum exec_place *ret_place, struct exec_result *ret_result);

/* NULL, or why no job runs any more: a lost member, or (by exec_watch) kernels that make no progress. */
const struct err *exec_broken(const struct exec *exec);
/* To be called about every EXEC_WATCH_MS while a place is busy: after EXEC_WATCH_LOOKS looks that found no progress exec is broken. It is
 * then member 0 that is named, or the process of a one-shot job: the team's own watch, which member 0 keeps over the others, is faster. */
#define EXEC_WATCH_MS 1000
#define EXEC_WATCH_LOOKS 20
void exec_watch(struct exec *exec, uint64_t now_ns);

#endif

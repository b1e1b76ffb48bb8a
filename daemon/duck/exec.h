/* The kernel thread (member 0) and the one job descriptor that it works on. The owner posts a job, the thread runs it and signals the
 * eventfd, the owner takes the result: never more than one job at a time, so the owner keeps the queue. A team of threads and spinning
 * are to come behind these same functions.
 *
 * Threads: everything here is called by the owner; exec_progress by anyone.
 */
#ifndef FP9_DUCK_EXEC_H
#define FP9_DUCK_EXEC_H

#include "daemon/duck/judge.h"

struct exec;

struct exec_job {
    struct compute_job compute; /* what it points to belongs to the owner and stays until the job is taken back */
    bool one_shot;
    struct judge_slot slot; /* for one_shot */
};

struct exec_result {
    int code; /* 0, or negative and err */
    struct err err;
    uint64_t duck_time_ns;
};

/* weights_fd: borrowed, for kernel processes. */
int exec_new(int weights_fd, struct exec **ret_exec, struct err *err);
/* Cancels what runs (within COMPUTE_CHUNK tokens), joins the thread. */
void exec_free(struct exec *exec);
CLEANUP_DEFINE(struct exec *, exec_free);

int exec_event_fd(const struct exec *exec); /* readable when a result waits */
uint64_t exec_progress(const struct exec *exec);
bool exec_busy(const struct exec *exec); /* a job is posted and not yet taken back */

/* Makes scratch at least this large; not while busy. */
int exec_reserve(struct exec *exec, size_t scratch_bytes, size_t y_bytes, struct err *err);
/* Not while busy; exec_reserve was called for such a job. */
void exec_post(struct exec *exec, const struct exec_job *job);
/* True and the result when the job is through. Also empties the eventfd. */
bool exec_take(struct exec *exec, struct exec_result *ret_result);

#endif

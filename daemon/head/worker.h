/* A helper thread with a queue: blocking work away from the loop, its end reported on the loop. */
#ifndef FP9_HEAD_WORKER_H
#define FP9_HEAD_WORKER_H

#include "daemon/head/loop.h"

struct worker;

int worker_new(struct loop *loop, const char *thread_name, struct worker **ret_worker, struct err *err);
/* Waits for the task that runs. Call it when worker_idle() is true: tasks that are still queued are dropped, with what they own. */
void worker_free(struct worker *worker);
CLEANUP_DEFINE(struct worker *, worker_free);

/* run(task) on the worker's thread, tasks in order; then done(task) on the loop's. Loop thread only. */
void worker_submit(struct worker *worker, loop_fn run, loop_fn done, void *task);
/* The calling thread only gets CPU time that nobody else wants, from here on: for bulk work, which steps must not feel. */
void worker_background(void);
/* Every task's `done` has been called. Loop thread only. */
bool worker_idle(const struct worker *worker);

#endif

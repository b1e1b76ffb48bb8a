/* A helper thread with a queue: blocking work away from the loop, its end reported on the loop. */
#ifndef FP9_HEAD_WORKER_H
#define FP9_HEAD_WORKER_H

#include "daemon/head/loop.h"

struct worker;

int worker_new(struct loop *loop, const char *thread_name, struct worker **ret_worker, struct err *err);
/* Waits for the task that runs; tasks still queued get their `done` never. Returns NULL-safe. */
void worker_free(struct worker *worker);
CLEANUP_DEFINE(struct worker *, worker_free);

/* run(task) on the worker's thread, tasks in order; then done(task) on the loop's (done may be NULL). Loop thread only. */
void worker_submit(struct worker *worker, loop_fn run, loop_fn done, void *task);

#endif

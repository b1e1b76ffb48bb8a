/* Who waits for a job or a drop, and who watches its progress. Loop thread only. */
#ifndef FP9_HEAD_WAITERS_H
#define FP9_HEAD_WAITERS_H

#include <jansson.h>

#include "daemon/head/head.h"

struct waiters *waiters_new(void); /* aborts when out of memory */
void waiters_free(struct waiters *waiters);
enum waiters_kind {
    WAITERS_JOB,   /* the request is answered when the job is over */
    WAITERS_WATCH, /* progress notifications of a job; the request was answered already */
    WAITERS_DROP,  /* the request is answered when the drop is done */
};
/* `thing` is the number of the job or drop; the request's id is kept (incref). */
void waiters_add(struct waiters *waiters, uint64_t client, const json_t *id, enum waiters_kind kind, uint64_t thing);
/* Progress of a job, unless the client hears it already. */
void waiters_watch(struct waiters *waiters, uint64_t client, const json_t *id, uint64_t job);
void waiters_client_gone(struct waiters *waiters, uint64_t client);
/* CORE_ACT_JOB_CHANGED and CORE_ACT_DROP_DONE. */
void waiters_job_changed(struct head *head, const struct core_job *job);
void waiters_tick(struct head *head, uint64_t now); /* how far running jobs are */
void waiters_drop_done(struct head *head, const struct core_drop *drop);
/* Answers when what act_run has given to the database so far is in it, or could not be written: what was reported as gone does not come
 * back after a kill at that very moment. `result` is taken. */
void waiters_reply_written(struct head *head, uint64_t client, const json_t *id, json_t *result);

#endif

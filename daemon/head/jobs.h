/* What is told and remembered of jobs. Loop thread. */
#ifndef FP9_HEAD_JOBS_H
#define FP9_HEAD_JOBS_H

#include <jansson.h>

#include "daemon/head/head.h"

/* Jobs of earlier lives, from the database. Before core_start. */
void jobs_restore(struct head *head);
/* CORE_ACT_JOB_SAVE: the job as it is now goes to the database, on the disk worker. */
void jobs_save(struct head *head, uint64_t job);
/* Its state is on its way to the database: what it came to is answered when that is written down. */
bool jobs_pending(const struct head *head, uint64_t job);
/* At the end, when nothing is with the disk worker any more. */
void jobs_free_all(struct head *head);
/* A job is over: what it came to is worked out while its model is there. */
void jobs_ended(struct head *head, const struct core_job *job);
/* One item of job.list. */
json_t *jobs_json(const struct core *core, const struct core_job *job);

#endif

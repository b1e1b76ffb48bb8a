/* Jobs in the database: every one from its beginning, so that its number is never given again and one that was cut is known as such. The
 * last DB_JOBS_MAX are kept. Threads as in db.h. */
#ifndef FP9_HEAD_DB_JOBS_H
#define FP9_HEAD_DB_JOBS_H

#include "daemon/head/db.h"

#define DB_JOBS_MAX 256

struct db_job {
    long long id;
    char kind[16], model[64], state[16]; /* state: of core_job_state_text */
    long long layer;                     /* -1: all */
    long long uid, pid;                  /* -1: fp9d itself */
    long long queued, started, ended;    /* nanoseconds since 1970; 0: not yet */
    long long total_bytes, read_bytes, sent_bytes, total_tokens, done_tokens;
    struct err err; /* code 0: none */
    char *result;   /* malloced JSON, or NULL; belongs to whoever has the struct */
};

/* In place of what was known of it. */
int db_save_job(struct db *db, const struct db_job *job, struct err *err);
/* By number. `each` takes job->result. */
int db_each_job(struct db *db, void (*each)(void *user, struct db_job *job), void *user, struct err *err);

#endif

#include "daemon/head/db_jobs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/db_query.h"

int db_save_job(struct db *db, const struct db_job *job, struct err *err)
{
    struct db_query query = db_query_begin(
        db, "INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", "save job");
    db_query_int(&query, job->id);
    db_query_text(&query, job->kind);
    db_query_text(&query, job->model);
    db_query_text(&query, job->state);
    const long long numbers[] = {job->layer,      job->uid,        job->pid,          job->queued,     job->started, job->ended,
                                 job->total_bytes, job->read_bytes, job->sent_bytes, job->total_tokens, job->done_tokens, job->err.code};
    for (size_t i = 0; i < ARRAY_LENGTH(numbers); i++)
        db_query_int(&query, numbers[i]);
    db_query_text(&query, job->err.code ? err_name_text(job->err.name) : "");
    db_query_text(&query, job->err.code ? job->err.message : "");
    db_query_text(&query, job->err.code ? job->err.values : "");
    db_query_text(&query, job->result ? job->result : "");
    db_query_run(&query);
    int r = db_query_end(&query, err);
    char sql[128];
    snprintf(sql, sizeof sql, "DELETE FROM job WHERE id <= (SELECT max(id) FROM job) - %d", DB_JOBS_MAX);
    return r < 0 ? r : db_execute(db, sql, "forget jobs", err);
}

static int read_job(const struct db_query *query, struct db_job *job)
{
    long long *const numbers[] = {&job->layer,       &job->uid,        &job->pid,        &job->queued,       &job->started,    &job->ended,
                                  &job->total_bytes, &job->read_bytes, &job->sent_bytes, &job->total_tokens, &job->done_tokens};
    char name[32];
    *job = (struct db_job){.id = sqlite3_column_int64(query->statement, 0)};
    db_query_column(query, 1, job->kind, sizeof job->kind);
    db_query_column(query, 2, job->model, sizeof job->model);
    db_query_column(query, 3, job->state, sizeof job->state);
    for (size_t i = 0; i < ARRAY_LENGTH(numbers); i++)
        *numbers[i] = sqlite3_column_int64(query->statement, 4 + (int)i);
    job->err.code = (int)sqlite3_column_int64(query->statement, 15);
    db_query_column(query, 16, name, sizeof name);
    if (job->err.code && !err_name_parse(name, &job->err.name))
        job->err.name = ERR_INTERNAL;
    db_query_column(query, 17, job->err.message, sizeof job->err.message);
    db_query_column(query, 18, job->err.values, sizeof job->err.values);
    const char *result = (const char *)sqlite3_column_text(query->statement, 19);
    if (!result || !*result)
        return 0;
    job->result = strdup(result);
    return job->result ? 0 : -ENOMEM;
}

int db_each_job(struct db *db, void (*each)(void *user, struct db_job *job), void *user, struct err *err)
{
    struct db_query query = db_query_begin(db, "SELECT * FROM job ORDER BY id", "read jobs");
    int r = 0;
    while (r == 0 && db_query_step(&query)) {
        struct db_job job;
        r = read_job(&query, &job);
        if (r == 0)
            each(user, &job);
    }
    int ended = db_query_end(&query, err);
    return r < 0 ? err_no_memory(err, "result of a job", 0) : ended;
}

#include "daemon/head/jobs.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/head/db_jobs.h"
#include "daemon/head/rpc.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

/* ---- times: the core's clock and the wall's ---- */

static long long wall_of(const struct core *core, uint64_t ns)
{
    return ns ? (long long)(ns + (uint64_t)core->conf.wall_ns) : 0;
}

/* What was before this boot is before the clock's zero: the numbers wrap, and wall_of wraps them back. */
static uint64_t clock_of(const struct core *core, long long wall)
{
    return wall ? (uint64_t)wall - (uint64_t)core->conf.wall_ns : 0;
}

static json_t *time_json(const struct core *core, uint64_t ns)
{
    if (!ns)
        return json_null();
    time_t seconds = (time_t)(wall_of(core, ns) / (long long)CLOCK_NS_PER_S);
    char text[32];
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_string(text);
}

/* ---- the database ---- */

struct jobs_task {
    struct jobs_task *next; /* of head->jobs_saving */
    struct head *head;
    struct db_job job;
};

static void save_run(void *user)
{
    struct jobs_task *task = user;
    struct err err = {0};
    if (db_save_job(task->head->db, &task->job, &err) < 0)
        log_error("db", "job %lld is not remembered: %s", task->job.id, err.message);
}

static void task_free(struct jobs_task *task)
{
    free(task->job.result);
    free(task);
}

static void save_done(void *user)
{
    struct jobs_task *task = user;
    struct head *head = task->head;
    struct jobs_task **at = &head->jobs_saving;
    while (*at != task)
        at = &(*at)->next;
    *at = task->next;
    const struct core_job *job = core_job_find(head->core, (uint64_t)task->job.id);
    task_free(task);
    if (job && core_job_over(job) && !jobs_pending(head, job->id))
        waiters_job_changed(head, job);
}

bool jobs_pending(const struct head *head, uint64_t job)
{
    for (const struct jobs_task *task = head->jobs_saving; task; task = task->next)
        if ((uint64_t)task->job.id == job)
            return true;
    return false;
}

void jobs_free_all(struct head *head)
{
    while (head->jobs_saving) {
        struct jobs_task *next = head->jobs_saving->next;
        task_free(head->jobs_saving);
        head->jobs_saving = next;
    }
}

void jobs_save(struct head *head, uint64_t id)
{
    const struct core *core = head->core;
    const struct core_job *job = core_job_find(head->core, id);
    if (!job)
        return;
    struct jobs_task *task = calloc(1, sizeof *task);
    if (!task)
        abort();
    task->head = head;
    task->next = head->jobs_saving;
    head->jobs_saving = task;
    struct db_job *to = &task->job;
    *to = (struct db_job){
        .id = (long long)job->id,
        .layer = job->layer == CORE_NONE ? -1 : (long long)job->layer,
        .uid = job->uid,
        .pid = job->pid,
        .queued = wall_of(core, job->queued_ns),
        .started = wall_of(core, job->started_ns),
        .ended = wall_of(core, job->ended_ns),
        .total_bytes = (long long)job->total_bytes,
        .read_bytes = (long long)job->read_bytes,
        .sent_bytes = (long long)job->sent_bytes,
        .total_tokens = (long long)job->total_tokens,
        .done_tokens = (long long)job->done_tokens,
        .result = job->result ? strdup(job->result) : NULL,
    };
    snprintf(to->kind, sizeof to->kind, "%s", job->kind);
    snprintf(to->model, sizeof to->model, "%s", job->model_name);
    snprintf(to->state, sizeof to->state, "%s", core_job_state_text(job->state));
    err_copy(&to->err, &job->err);
    worker_submit(head->disk, save_run, save_done, task);
}

static bool state_parse(const char *text, enum core_job_state *ret_state)
{
    for (int i = CORE_JOB_QUEUED; i <= CORE_JOB_CANCELLED; i++) {
        if (strcmp(core_job_state_text((enum core_job_state)i), text) != 0)
            continue;
        *ret_state = (enum core_job_state)i;
        return true;
    }
    return false;
}

static void restore(void *user, struct db_job *saved)
{
    struct head *head = user;
    struct core_job job = {
        .id = (uint64_t)saved->id,
        .layer = saved->layer < 0 ? CORE_NONE : (uint32_t)saved->layer,
        .uid = saved->uid,
        .pid = saved->pid,
        .queued_ns = clock_of(head->core, saved->queued),
        .started_ns = clock_of(head->core, saved->started),
        .ended_ns = clock_of(head->core, saved->ended),
        .total_bytes = (uint64_t)saved->total_bytes,
        .read_bytes = (uint64_t)saved->read_bytes,
        .sent_bytes = (uint64_t)saved->sent_bytes,
        .total_tokens = (uint64_t)saved->total_tokens,
        .done_tokens = (uint64_t)saved->done_tokens,
        .result = saved->result,
    };
    memcpy(job.model_name, saved->model, sizeof job.model_name);
    err_copy(&job.err, &saved->err);
    if (!state_parse(saved->state, &job.state))
        job.state = CORE_JOB_RUNNING; /* of a version that knew more */
    if (core_job_was(head->core, clock_now_ns(), &job, saved->kind))
        log_warning("job", "%lld: %s of %s was cut by the end of fp9d", saved->id, saved->kind, saved->model);
}

void jobs_restore(struct head *head)
{
    struct err err = {0};
    if (db_each_job(head->db, restore, head, &err) < 0)
        log_warning("db", "the history of jobs cannot be read: %s", err.message);
}

/* ---- results ---- */

static double seconds_of(const struct core_job *job)
{
    return job->ended_ns ? (double)(job->ended_ns - job->queued_ns) / 1e9 : 0.0;
}

static json_t *load_result(const struct core *core, const struct core_job *job)
{
    const struct core_model *model = &core->models[job->model];
    char key[DIGEST_HEX_SIZE], strategy[PLAN_STRATEGY_TEXT];
    digest_hex(model->key, key);
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:o, s:I}", "model", job->model_name, "model_key", key, "tp",
                     (json_int_t)model->plan->tp, "multiple_of", (json_int_t)model->plan->multiple_of, "strategy",
                     plan_strategy_name(model->plan->strategy, strategy), "cache", model->cache, "reason", model->reason, "bytes_read",
                     (json_int_t)job->read_bytes, "bytes_sent", (json_int_t)job->sent_bytes, "seconds", rpc_real(seconds_of(job)), "job",
                     (json_int_t)job->id);
}

void jobs_ended(struct head *head, const struct core_job *job)
{
    json_t *result = NULL;
    if (job->state == CORE_JOB_DONE && !job->result && job->model != CORE_NONE)
        result = load_result(head->core, job);
    else if (job->state == CORE_JOB_DONE && !job->result)
        result = json_pack("{s:I, s:s, s:o, s:I, s:o}", "job", (json_int_t)job->id, "model", job->model_name, "layer",
                           job->layer == CORE_NONE ? json_null() : json_integer(job->layer), "tokens", (json_int_t)job->done_tokens,
                           "seconds", rpc_real(seconds_of(job)));
    if (result)
        core_job_result(head->core, job->id, json_dumps(result, JSON_COMPACT | JSON_REAL_PRECISION(12)));
    json_decref(result);
    jobs_save(head, job->id);
}

/* ---- showing ---- */

static json_t *number_or_null(int64_t number)
{
    return number < 0 ? json_null() : json_integer(number);
}

json_t *jobs_json(const struct core *core, const struct core_job *job)
{
    json_t *json = json_pack("{s:I, s:s, s:s, s:s, s:o, s:o}", "id", (json_int_t)job->id, "kind", job->kind, "model", job->model_name,
                             "state", core_job_state_text(job->state), "progress", rpc_real(core_job_progress(job)), "error",
                             job->err.code ? rpc_error_flat(&job->err) : json_null());
    json_object_set_new(json, "layer", job->layer == CORE_NONE ? json_null() : json_integer(job->layer));
    json_object_set_new(json, "uid", number_or_null(job->uid));
    json_object_set_new(json, "pid", number_or_null(job->pid));
    json_object_set_new(json, "queued", time_json(core, job->queued_ns));
    json_object_set_new(json, "started", time_json(core, job->started_ns));
    json_object_set_new(json, "ended", time_json(core, job->ended_ns));
    json_object_set_new(json, "seconds", job->ended_ns ? rpc_real(seconds_of(job)) : json_null());
    if (job->total_tokens) {
        json_object_set_new(json, "done_tokens", json_integer((json_int_t)job->done_tokens));
        json_object_set_new(json, "total_tokens", json_integer((json_int_t)job->total_tokens));
    } else {
        json_object_set_new(json, "total_bytes", json_integer((json_int_t)job->total_bytes));
        json_object_set_new(json, "bytes_read", json_integer((json_int_t)job->read_bytes));
        json_object_set_new(json, "bytes_sent", json_integer((json_int_t)job->sent_bytes));
    }
    return json;
}

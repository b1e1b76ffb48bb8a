/* PURE. Jobs that are no loads: a batch of tokens, which lives with its session, and what the edges carry out themselves (cache verify). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/head/core_parts.h"

int core_errand_begin(struct core *core, uint64_t now, const char *kind, const char *model, uint32_t layer, uint64_t *ret_job,
                      struct err *err)
{
    struct core_job *job;
    int r = core_job_new(core, now, kind, CORE_NONE, &job, err);
    if (r < 0)
        return r;
    snprintf(job->model_name, sizeof job->model_name, "%s", model);
    job->layer = layer;
    job->state = CORE_JOB_RUNNING;
    job->started_ns = now;
    core_job_changed(core, job->id);
    *ret_job = job->id;
    return 0;
}

void core_errand_progress(struct core *core, uint64_t id, uint64_t done_bytes, uint64_t total_bytes)
{
    struct core_job *job = core_job_find(core, id);
    if (!job || core_job_over(job))
        return;
    job->read_bytes = done_bytes;
    job->total_bytes = total_bytes;
}

void core_errand_end(struct core *core, uint64_t now, uint64_t id, const struct err *err)
{
    struct core_job *job = core_job_find(core, id);
    if (job && !core_job_over(job))
        core_job_end(core, now, job, err ? CORE_JOB_FAILED : CORE_JOB_DONE, err);
}

void core_errand_cancel(struct core *core, uint64_t now, struct core_job *job, const struct err *why)
{
    struct core_session *session = job->session ? core_session_find(core, job->session) : NULL;
    core_job_end(core, now, job, CORE_JOB_CANCELLED, why);
    if (session)
        core_session_end(core, now, session, why);
    else
        core_push(core, CORE_ACT_ERRAND_STOP, CORE_NONE, job->id);
}

/* ---- batches ---- */

int core_batch_begin(struct core *core, uint64_t now, uint64_t id, bool prefill, uint32_t layer, uint64_t tokens, uint64_t *ret_job,
                     struct err *err)
{
    struct core_session *session = core_session_find(core, id);
    const struct core_model *model = &core->models[session->model];
    if (layer >= model->arch->layers)
        return core_model_no_layer(model, layer, err);
    int r = core_errand_begin(core, now, prefill ? "prefill" : "decode", model->name, layer, ret_job, err);
    if (r < 0)
        return r;
    struct core_job *job = core_job_find(core, *ret_job);
    job->session = id;
    job->total_tokens = tokens;
    session->job = *ret_job;
    return 0;
}

void core_batch_progress(struct core *core, uint64_t now, const struct core_session *session, uint32_t tokens)
{
    struct core_job *job = session->job ? core_job_find(core, session->job) : NULL;
    if (!job || core_job_over(job))
        return;
    job->done_tokens += tokens;
    job->err.code = 0;
    if (job->done_tokens >= job->total_tokens)
        core_job_end(core, now, job, CORE_JOB_DONE, NULL);
}

void core_batch_trouble(struct core *core, const struct core_session *session, const struct err *err)
{
    struct core_job *job = session->job ? core_job_find(core, session->job) : NULL;
    if (job && !core_job_over(job))
        err_copy(&job->err, err);
}

void core_batch_over(struct core *core, uint64_t now, const struct core_session *session, const struct err *err)
{
    struct core_job *job = session->job ? core_job_find(core, session->job) : NULL;
    if (!job || core_job_over(job))
        return;
    const struct err trouble = job->err;
    if (!err && trouble.code)
        err = &trouble;
    struct err left = {0};
    now = now > job->started_ns ? now : job->started_ns; /* it may be the time of the last tick */
    if (!err) {
        err_set(&left, -ECANCELED, ERR_CANCELLED, "job %" PRIu64 " (%s of %s): its client left after %" PRIu64 " of %" PRIu64 " tokens",
                job->id, job->kind, job->model_name, job->done_tokens, job->total_tokens);
        err_value_int(&left, "done_tokens", (long long)job->done_tokens);
        err_value_int(&left, "total_tokens", (long long)job->total_tokens);
        core_job_end(core, now, job, CORE_JOB_CANCELLED, &left);
        return;
    }
    core_job_end(core, now, job, CORE_JOB_FAILED, err);
}

/* PURE. The job table: queued, running, over; finished ones are kept for a while. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/clock.h"

bool core_job_over(const struct core_job *job)
{
    return job->state != CORE_JOB_QUEUED && job->state != CORE_JOB_RUNNING;
}

const char *core_job_phase_text(const struct core_job *job)
{
    static const char *const phases[] = {
        [CORE_PHASE_OPEN] = "open", [CORE_PHASE_DIGEST] = "digest", [CORE_PHASE_PREPARE] = "prepare", [CORE_PHASE_SEAL] = "seal"};
    if (job->state != CORE_JOB_RUNNING)
        return core_job_state_text(job->state);
    return job->model == CORE_NONE ? job->kind : phases[job->phase];
}

struct core_job *core_job_find(struct core *core, uint64_t id)
{
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++)
        if (core->jobs[i].used && core->jobs[i].id == id)
            return &core->jobs[i];
    return NULL;
}

void core_job_free(struct core_job *job)
{
    arch_free(job->arch);
    free(job->missing);
    free(job->digest);
    free(job->sources);
    free(job->known);
    free(job->rekeys);
    free(job->result);
}

int core_job_new(struct core *core, uint64_t now, const char *kind, uint32_t model, struct core_job **ret_job, struct err *err)
{
    struct core_job *job = NULL;
    int r = core_admit_job(core, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++) {
        struct core_job *other = &core->jobs[i];
        if (!other->used) {
            job = other;
            break;
        }
        if (core_job_over(other) && !other->streaming && (!job || other->id < job->id))
            job = other;
    }
    if (!job)
        return err_set(err, -EBUSY, ERR_BUSY, "%d jobs that are over still hold on to files, which is the limit", CORE_JOBS_MAX);
    core_job_free(job);
    *job = (struct core_job){
        .used = true,
        .id = core->next_job++,
        .kind = kind,
        .model = model,
        .layer = CORE_NONE,
        .state = CORE_JOB_QUEUED,
        .queued_ns = now,
        .uid = -1,
        .pid = -1,
    };
    core_push(core, CORE_ACT_JOB_SAVE, CORE_NONE, job->id);
    *ret_job = job;
    if (model == CORE_NONE)
        return 0;
    memcpy(job->model_name, core->models[model].name, sizeof job->model_name);
    core->models[model].job = job->id;
    return 0;
}

/* A notice that is queued already would show the end before what came with it: it becomes one of no job, and another follows. */
static void recall_notices(struct core *core, uint64_t id)
{
    for (size_t i = 0; i < core->action_count; i++) {
        struct core_action *action = &core->actions[(core->action_first + i) % core->action_capacity];
        if (action->type == CORE_ACT_JOB_CHANGED && action->id == id)
            action->id = 0;
    }
}

/* Several changes before the next look are one notice. */
void core_job_changed(struct core *core, uint64_t id)
{
    for (size_t i = 0; i < core->action_count; i++) {
        const struct core_action *action = &core->actions[(core->action_first + i) % core->action_capacity];
        if (action->type == CORE_ACT_JOB_CHANGED && action->id == id)
            return;
    }
    core_push(core, CORE_ACT_JOB_CHANGED, CORE_NONE, id);
}

static bool job_waits(struct core *core, const struct core_job *job)
{
    const struct core_job *other = job->waits_for ? core_job_find(core, job->waits_for) : NULL;
    return other && !core_job_over(other);
}

/* A start that has failed this often in a row is not waited for any more, and neither is one that is so far away. */
#define JOB_PATIENCE 2
#define JOB_BLINK CLOCK_NS_PER_S

static bool coming(const struct core_duck *duck)
{
    bool on_its_way = duck->state == CORE_DUCK_CONNECTING;
    bool blinked = duck->state == CORE_DUCK_LOST && duck->ever_up && duck->backoff_ns <= JOB_BLINK;
    return (on_its_way || blinked) && duck->failures < JOB_PATIENCE;
}

/* While ducks are starting, or starting again, nobody knows what the fleet is, so jobs wait. A registered model, after a start of fp9d,
 * waits for a while also for ducks that could not be reached yet: its slots may be there, and others would have to be filled anew. */
static bool fleet_unknown(const struct core *core, bool registered)
{
    bool fresh = registered && core->ticked_ns < core->started_ns + core->conf.grace_ns;
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct core_duck *duck = &core->ducks[i];
        if (coming(duck) || (fresh && !duck->ever_up))
            return true;
    }
    return false;
}

void core_job_start_queued(struct core *core, uint64_t now)
{
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++) {
        struct core_job *job = &core->jobs[i];
        if (!job->used || job->state != CORE_JOB_QUEUED || job_waits(core, job) || fleet_unknown(core, core->models[job->model].registered))
            continue;
        job->state = CORE_JOB_RUNNING;
        job->phase = CORE_PHASE_OPEN;
        job->started_ns = now > job->queued_ns ? now : job->queued_ns; /* it may be the time of the last tick */
        core_push(core, CORE_ACT_OPEN, CORE_NONE, job->id);
        core_job_changed(core, job->id);
    }
}

void core_job_end(struct core *core, uint64_t now, struct core_job *job, enum core_job_state state, const struct err *err)
{
    job->state = state;
    job->phase = CORE_PHASE_END;
    job->ended_ns = now;
    if (err)
        err_copy(&job->err, err);
    if (job->model != CORE_NONE && core->models[job->model].job == job->id)
        core->models[job->model].job = 0;
    if (job->streaming)
        core_push(core, CORE_ACT_STREAM_CANCEL, CORE_NONE, job->id);
    recall_notices(core, job->id);
    core_job_changed(core, job->id);
    core_job_start_queued(core, now); /* those that waited for it */
}

int core_job_cancel(struct core *core, uint64_t now, uint64_t id, const char *why, struct err *err)
{
    struct core_job *job = core_job_find(core, id);
    if (!job)
        return err_set(err, -ENOENT, ERR_NO_SUCH, "job %" PRIu64 ": there is none of that number", id);
    if (core_job_over(job))
        return err_set(err, -EALREADY, ERR_BAD_REQUEST, "job %" PRIu64 " is %s already", id, core_job_state_text(job->state));
    struct err cancelled = {0};
    err_set(&cancelled, -ECANCELED, ERR_CANCELLED, "job %" PRIu64 " (%s of %s) was cancelled%s%s", id, job->kind, job->model_name,
            why ? " " : "", why ? why : "");
    if (job->model == CORE_NONE) {
        core_errand_cancel(core, now, job, &cancelled);
        return 0;
    }
    struct core_model *model = &core->models[job->model];
    core_load_unwant(model, job);
    if (job->phase == CORE_PHASE_PREPARE) {
        char time[CORE_TIME_MAX];
        core_lost(core, job->begun_key, CORE_NONE, CORE_NONE, "unfinished: job %" PRIu64 " was cancelled at %s", id,
                  core_time_text(core, now, time));
        core_drop_leave(core, model, job);
    }
    if (model->state != CORE_MODEL_READY && !core_model_return(core, model)) {
        model->state = CORE_MODEL_FAILED;
        err_copy(&model->error, &cancelled);
    }
    core_job_end(core, now, job, CORE_JOB_CANCELLED, &cancelled);
    return 0;
}

double core_job_progress(const struct core_job *job)
{
    if (job->state == CORE_JOB_DONE)
        return 1.0;
    uint64_t total = job->total_tokens ? job->total_tokens : job->total_bytes;
    if (!total)
        return 0.0;
    double progress = (double)(job->total_tokens ? job->done_tokens : job->read_bytes) / (double)total;
    return progress < 1.0 ? progress : 1.0;
}

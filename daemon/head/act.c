/* Carries out what the core has decided. */
#include <stdlib.h>
#include <string.h>

#include "daemon/head/cache_check.h"
#include "daemon/head/cache_db.h"
#include "daemon/head/events.h"
#include "daemon/head/head.h"
#include "daemon/head/jobs.h"
#include "daemon/head/load.h"
#include "daemon/head/metrics.h"
#include "daemon/head/remember.h"
#include "daemon/head/revoked.h"
#include "daemon/head/rpc.h"
#include "daemon/head/session.h"
#include "daemon/head/step.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

static void send_ping(struct head *head, uint32_t duck)
{
    struct outgoing *out = outgoing_new();
    struct msg_ping ping = {.stamp = clock_now_ns()};
    if (msg_ping_encode(&out->buf, WIRE_PING, 0, &ping) < 0)
        abort();
    peer_send(head->peers[duck], out, false);
    outgoing_unref(out);
}

static void send_drop(struct head *head, uint32_t duck, uint64_t id)
{
    const struct core_drop *drop = core_drop_find(head->core, id);
    struct msg_drop msg = {.all = drop->all};
    memcpy(msg.model_key, drop->key, DIGEST_SIZE);
    struct outgoing *out = outgoing_new();
    if (msg_drop_encode(&out->buf, id, &msg) < 0)
        abort();
    peer_send(head->peers[duck], out, false);
    outgoing_unref(out);
}

static void job_changed(struct head *head, uint64_t id)
{
    const struct core_job *job = core_job_find(head->core, id);
    if (!job)
        return;
    if (core_job_over(job) && job->model == CORE_NONE) {
        log_write(job->state == CORE_JOB_DONE ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, "job", "%llu: %s of %s %s%s%s", (unsigned long long)id,
                  job->kind, job->model_name, core_job_state_text(job->state), job->err.code ? ": " : "", job->err.message);
        metrics_job_over(head, job);
        jobs_ended(head, job);
    } else if (core_job_over(job)) {
        const struct core_model *model = &head->core->models[job->model];
        if (job->state == CORE_JOB_DONE)
            log_info("job", "%llu: %s of %s done: cache %s (%s), %llu bytes read, %llu sent", (unsigned long long)id, job->kind,
                     job->model_name, model->cache, model->reason, (unsigned long long)job->read_bytes,
                     (unsigned long long)job->sent_bytes);
        else
            log_warning("job", "%llu: %s of %s %s: %s", (unsigned long long)id, job->kind, job->model_name, core_job_state_text(job->state),
                        job->err.message);
        metrics_job_over(head, job);
        cache_db_job_over(head, job);
        jobs_ended(head, job);
        load_forget(head, id);
    }
    if (core_job_over(job))
        events_job(head, job, false);
    waiters_job_changed(head, job);
}

/* Counted after the answer, for which the client need not wait; by then the lane may be another step's. */
static void step_done_and_counted(struct head *head, uint64_t session, uint32_t lane)
{
    struct metrics_step taken;
    bool counts = metrics_step_take(head, session, lane, &taken);
    step_done(head, session, lane);
    if (counts)
        metrics_step_add(head, &taken);
}

static void start_load(struct head *head, uint64_t id)
{
    const struct core_job *job = core_job_find(head->core, id);
    if (job && !job->opened_ns) /* else it opens anew */
        events_job(head, job, true);
    load_open(head, id);
}

/* A new one, but for those that an earlier life has left behind. A load that starts at once is told of when it does. */
static void save_job(struct head *head, uint64_t id)
{
    const struct core_job *job = core_job_find(head->core, id);
    jobs_save(head, id);
    if (job && !core_job_over(job) && (job->state == CORE_JOB_QUEUED || job->model == CORE_NONE))
        events_job(head, job, false);
}

static void act(struct head *head, const struct core_action *action)
{
    struct core *core = head->core;
    switch (action->type) {
    case CORE_ACT_START_DUCK: peer_start(head->peers[action->duck]); break;
    case CORE_ACT_STOP_DUCK: peer_stop(head->peers[action->duck]); break;
    case CORE_ACT_PING: send_ping(head, action->duck); break;
    case CORE_ACT_OPEN: start_load(head, action->id); break;
    case CORE_ACT_DIGEST: load_digest(head, action->id); break;
    case CORE_ACT_REKEY: load_send_rekeys(head, action->duck, action->id); break;
    case CORE_ACT_STREAM: load_stream(head, action->id); break;
    case CORE_ACT_STREAM_CANCEL: load_cancel(head, action->id); break;
    case CORE_ACT_JOB_CHANGED: job_changed(head, action->id); break;
    case CORE_ACT_JOB_SAVE: save_job(head, action->id); break;
    case CORE_ACT_ERRAND_STOP: cache_check_cancel(head, action->id); break;
    case CORE_ACT_SAVE_MODEL: remember_model(head, &core->models[action->id], false); break;
    case CORE_ACT_FORGET_MODEL:
        remember_model(head, &core->models[action->id], true);
        metrics_model_gone(head, (uint32_t)action->id);
        break;
    case CORE_ACT_SAVE_REVOKED: cache_db_save_revoked(head); break;
    case CORE_ACT_SAVE_LOSSES:
        cache_db_save_losses(head);
        events_losses(head);
        break;
    case CORE_ACT_MIRROR: cache_db_save_duck(head, action->duck); break;
    case CORE_ACT_DROP: send_drop(head, action->duck, action->id); break;
    case CORE_ACT_REVOKE:
        revoked_drop(head, core_drop_find(core, action->id));
        events_revoked(head, core_drop_find(core, action->id));
        break;
    case CORE_ACT_DROP_DONE:
        waiters_drop_done(head, core_drop_find(core, action->id));
        core_drop_release(core, action->id);
        break;
    case CORE_ACT_SESSION_OPEN: session_send_open(head, action->duck, action->id); break;
    case CORE_ACT_SESSION_CLOSE: session_send_close(head, action->duck, action->id); break;
    case CORE_ACT_SESSION_READY:
        metrics_session_ready(head, action->id);
        rpc_session_ready(head, action->id);
        break;
    case CORE_ACT_SESSION_FAILED: rpc_session_failed(head, action->id); break;
    case CORE_ACT_SESSION_GONE:
        metrics_session_gone(head, action->id);
        session_forget(head, action->id);
        break;
    case CORE_ACT_STEP_CHUNK: session_send_chunk(head, action->id, action->lane); break;
    case CORE_ACT_STEP_SUM: session_sum_chunk(head, action->id, action->lane); break;
    case CORE_ACT_STEP_DONE: step_done_and_counted(head, action->id, action->lane); break;
    case CORE_ACT_STEP_FAILED: step_failed(head, action->id, action->lane); break;
    case CORE_ACT_STEP_CANCEL: session_send_step_cancel(head, action->duck, action->id); break;
    }
}

void act_run(struct head *head)
{
    struct core_action action;
    bool news = false;
    while (core_next_action(head->core, &action)) {
        news |= action.type < CORE_ACT_STEP_CHUNK && action.type != CORE_ACT_PING; /* steps change nothing that is told */
        act(head, &action);
    }
    if (news)
        events_look(head);
}

/* job.*. */
#include <errno.h>
#include <inttypes.h>

#include "daemon/head/jobs.h"
#include "daemon/head/rpc.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"

json_t *rpc_error_flat(const struct err *err)
{
    json_t *error = rpc_error_json(err), *flat = json_incref(json_object_get(error, "data"));
    json_object_set(flat, "message", json_object_get(error, "message"));
    json_decref(error);
    return flat;
}

int rpc_job_list(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)err;
    json_t *jobs = json_array();
    const struct core *core = call->head->core;
    /* By id: the table is reused out of order. */
    for (uint64_t after = 0;;) {
        const struct core_job *next = NULL;
        for (uint32_t i = 0; i < CORE_JOBS_MAX; i++)
            if (core->jobs[i].used && core->jobs[i].id > after && (!next || core->jobs[i].id < next->id))
                next = &core->jobs[i];
        if (!next)
            break;
        json_array_append_new(jobs, jobs_json(core, next));
        after = next->id;
    }
    *ret_result = json_pack("{s:o}", "jobs", jobs);
    return 0;
}

static struct core_job *find(const struct call *call, struct err *err)
{
    uint64_t id = (uint64_t)rpc_param_int(call->params, "job", 0);
    struct core_job *job = core_job_find(call->head->core, id);
    if (!job) {
        err_set(err, -ENOENT, ERR_NO_SUCH, "job %" PRIu64 ": there is none of that number", id);
        err_value_int(err, "job", (long long)id);
    }
    return job;
}

int rpc_job_wait(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)ret_result;
    const struct core_job *job = find(call, err);
    if (!job)
        return -ENOENT;
    waiters_add(call->head->waiters, call->client, call->id, WAITERS_JOB, job->id);
    if (core_job_over(job))
        waiters_job_changed(call->head, job);
    else
        waiters_watch(call->head->waiters, call->client, call->id, job->id);
    return RPC_LATER;
}

int rpc_job_cancel(const struct call *call, json_t **ret_result, struct err *err)
{
    struct core_job *job = find(call, err);
    if (!job)
        return -ENOENT;
    char who[CONTROL_WHO_MAX], why[CONTROL_WHO_MAX + 3];
    snprintf(why, sizeof why, "by %s", control_client_who(call->head->control, call->client, who));
    int r = core_job_cancel(call->head->core, clock_now_ns(), job->id, why, err);
    if (r < 0)
        return r;
    *ret_result = json_pack("{s:I, s:s}", "job", (json_int_t)job->id, "state", core_job_state_text(job->state));
    return 0;
}

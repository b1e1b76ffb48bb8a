/* PURE. Jobs of earlier lives of fp9d, as they were remembered. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"

/* They are kept by pointer. */
static const char *kind_of(const char *text)
{
    static const char *const kinds[] = {"load", "prepare", "recover", "verify", "decode", "prefill"};
    for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++)
        if (strcmp(kinds[i], text) == 0)
            return kinds[i];
    return "unknown";
}

bool core_job_was(struct core *core, uint64_t now, const struct core_job *was, const char *kind)
{
    bool cut = !core_job_over(was);
    struct core_job *job = NULL;
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++) {
        struct core_job *other = &core->jobs[i];
        if (!job || !other->used || (job->used && other->id < job->id))
            job = other;
    }
    core_job_free(job);
    *job = *was;
    job->used = true;
    job->kind = kind_of(kind);
    job->model = CORE_NONE;
    job->phase = CORE_PHASE_END;
    if (core->next_job <= job->id)
        core->next_job = job->id + 1;
    if (cut) {
        job->state = CORE_JOB_FAILED;
        job->ended_ns = now;
        err_set(&job->err, -ECANCELED, ERR_INTERNAL, "job %" PRIu64 " (%s of %s): fp9d ended while it ran", job->id, job->kind,
                job->model_name);
        core_push(core, CORE_ACT_JOB_SAVE, CORE_NONE, job->id);
    }
    return cut;
}

void core_job_asked(struct core *core, uint64_t id, int64_t uid, int64_t pid)
{
    struct core_job *job = core_job_find(core, id);
    if (!job || job->uid >= 0)
        return; /* somebody joins a job that another has asked for */
    job->uid = uid;
    job->pid = pid;
}

void core_job_result(struct core *core, uint64_t id, char *result)
{
    struct core_job *job = core_job_find(core, id);
    if (!job) {
        free(result);
        return;
    }
    free(job->result);
    job->result = result;
}

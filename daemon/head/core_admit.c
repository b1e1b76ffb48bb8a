/* PURE. Admission: how much of what there is little of one client may have. Refusals are BUSY and say the limit and what is in use. */
#include <errno.h>

#include "daemon/head/core_parts.h"
#include "proto/wire/wire.h"

static int busy(struct err *err, const char *what, uint32_t limit, uint32_t in_use)
{
    err_value_str(err, "what", what);
    err_value_int(err, "limit", limit);
    err_value_int(err, "in_use", in_use);
    return -EBUSY;
}

/* Sessions with a rank on this duck. */
static uint32_t sessions_on(const struct core *core, uint32_t duck)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++)
        count += core->sessions[i].used && core_session_rank(&core->sessions[i], duck) != CORE_NONE;
    return count;
}

int core_admit_session(const struct core *core, uint64_t client, const struct core_model *model, struct err *err)
{
    uint32_t all = 0, own = 0;
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        all += core->sessions[i].used;
        own += core->sessions[i].used && core->sessions[i].client == client;
    }
    if (own >= CORE_SESSIONS_CLIENT_MAX) {
        err_set(err, -EBUSY, ERR_BUSY, "this connection has %u sessions open, the limit is %d for each; close some", own,
                CORE_SESSIONS_CLIENT_MAX);
        return busy(err, "sessions of a connection", CORE_SESSIONS_CLIENT_MAX, own);
    }
    if (all >= CORE_SESSIONS_MAX) {
        err_set(err, -EBUSY, ERR_BUSY, "%u sessions are open, the limit is %d", all, CORE_SESSIONS_MAX);
        return busy(err, "sessions", CORE_SESSIONS_MAX, all);
    }
    for (uint32_t rank = 0; rank < model->plan->tp; rank++) {
        uint32_t duck = model->duck_of_rank[rank], there = sessions_on(core, duck);
        if (there < WIRE_SESSIONS_MAX)
            continue;
        err_set(err, -EBUSY, ERR_BUSY, "duck %s has %u sessions open, the limit is %d for each", core->ducks[duck].name, there,
                WIRE_SESSIONS_MAX);
        err_value_str(err, "duck", core->ducks[duck].name);
        return busy(err, "sessions of a duck", WIRE_SESSIONS_MAX, there);
    }
    return 0;
}

int core_admit_job(const struct core *core, struct err *err)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++)
        live += core->jobs[i].used && !core_job_over(&core->jobs[i]);
    if (live < CORE_JOBS_LIVE_MAX)
        return 0;
    err_set(err, -EBUSY, ERR_BUSY, "%u jobs are queued or running, the limit is %d", live, CORE_JOBS_LIVE_MAX);
    return busy(err, "jobs", CORE_JOBS_LIVE_MAX, live);
}

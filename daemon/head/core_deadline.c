/* PURE. Deadlines: a step that is not whole when its time is up fails, and its session goes on. What its ducks still send is late and is
 * dropped, as the answers of any step that was given up. */
#include <errno.h>
#include <stdio.h>

#include "daemon/head/core_parts.h"
#include "proto/base/clock.h"

void core_step_deadline(struct core *core, uint64_t now, uint64_t id, uint32_t lane, uint32_t ms)
{
    struct core_session *session = core_session_find(core, id);
    struct core_step *step = session && lane < session->lanes ? &session->steps[lane] : NULL;
    if (!ms || !step || !step->running)
        return;
    step->deadline_ms = ms;
    step->deadline_ns = now + ms * CLOCK_NS_PER_MS;
    if (!core->deadline_ns || step->deadline_ns < core->deadline_ns)
        core->deadline_ns = step->deadline_ns;
}

static void fail(struct core *core, struct core_session *session, struct core_step *step)
{
    uint32_t silent = CORE_NONE, others = 0;
    for (uint32_t rank = 0; rank < session->tp; rank++) {
        if (step->answered[rank])
            continue;
        others += silent != CORE_NONE;
        silent = silent == CORE_NONE ? session->duck_of_rank[rank] : silent;
    }
    const char *phase = step->prefill ? "prefill" : "decode", *duck = silent == CORE_NONE ? "none" : core->ducks[silent].name;
    char more[48] = "";
    if (others)
        snprintf(more, sizeof more, ", nor have %u more", others);
    struct err err = {0};
    err_set(&err, -ETIMEDOUT, ERR_DEADLINE, "duck %s had not answered %s of layer %u when its deadline of %u ms passed%s", duck,
            phase, step->layer, step->deadline_ms, more);
    err_value_str(&err, "duck", duck);
    err_value_str(&err, "phase", phase);
    err_value_int(&err, "layer", step->layer);
    err_value_int(&err, "deadline_ms", step->deadline_ms);
    err_value_int(&err, "unanswered", others + (silent != CORE_NONE));
    core_step_end(core, session, step, &err);
}

void core_deadlines(struct core *core, uint64_t now)
{
    if (!core->deadline_ns || now < core->deadline_ns)
        return;
    core->deadline_ns = 0;
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        struct core_session *session = &core->sessions[i];
        for (uint32_t lane = 0; session->used && lane < session->lanes; lane++) {
            struct core_step *step = &session->steps[lane];
            if (!step->running || !step->deadline_ns)
                continue;
            if (now >= step->deadline_ns)
                fail(core, session, step);
            else if (!core->deadline_ns || step->deadline_ns < core->deadline_ns)
                core->deadline_ns = step->deadline_ns;
        }
    }
}

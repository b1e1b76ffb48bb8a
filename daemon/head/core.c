/* PURE. Life and death of the core, its action queue, names of states. */
#include "daemon/head/core_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CORE_ACTIONS_FIRST 1024

struct core *core_new(const struct core_conf *conf)
{
    _cleanup_(core_freep) struct core *core = calloc(1, sizeof *core);
    if (!core)
        return NULL;
    core->conf = *conf;
    core->next_id = core->next_job = 1;
    core->actions = calloc(CORE_ACTIONS_FIRST, sizeof *core->actions);
    if (!core->actions)
        return NULL;
    core->action_capacity = CORE_ACTIONS_FIRST;
    return STEAL(core);
}

void core_free(struct core *core)
{
    if (!core)
        return;
    for (size_t i = 0; i < CORE_DUCKS_MAX; i++) {
        free(core->ducks[i].slots);
        free(core->ducks[i].ranges);
    }
    for (size_t i = 0; i < CORE_MODELS_MAX; i++) {
        core_model_free_placements(&core->models[i]);
    }
    for (size_t i = 0; i < CORE_JOBS_MAX; i++)
        core_job_free(&core->jobs[i]);
    for (size_t i = 0; i < CORE_SESSIONS_MAX; i++)
        core_session_free(&core->sessions[i]);
    free(core->actions);
    free(core);
}

static void push(struct core *core, struct core_action action)
{
    if (core->action_count == core->action_capacity) {
        size_t capacity = core->action_capacity * 2;
        struct core_action *actions = calloc(capacity, sizeof *actions);
        if (!actions)
            abort(); /* a lost action would leave a client or a duck waiting for ever */
        for (size_t i = 0; i < core->action_count; i++)
            actions[i] = core->actions[(core->action_first + i) % core->action_capacity];
        free(core->actions);
        core->actions = actions;
        core->action_capacity = capacity;
        core->action_first = 0;
    }
    size_t at = (core->action_first + core->action_count++) % core->action_capacity;
    core->actions[at] = action;
}

void core_push(struct core *core, enum core_action_type type, uint32_t duck, uint64_t id)
{
    push(core, (struct core_action){.type = type, .duck = duck, .id = id});
}

void core_push_step(struct core *core, enum core_action_type type, const struct core_session *session, const struct core_step *step)
{
    push(core, (struct core_action){.type = type, .duck = CORE_NONE, .id = session->id, .lane = (uint32_t)(step - session->steps)});
}

bool core_next_action(struct core *core, struct core_action *ret_action)
{
    if (!core->action_count)
        return false;
    *ret_action = core->actions[core->action_first];
    core->action_first = (core->action_first + 1) % core->action_capacity;
    core->action_count--;
    return true;
}

void core_stop(struct core *core, uint64_t now)
{
    core->stopping = true;
    struct err err = {0};
    err_set(&err, -ESHUTDOWN, ERR_CANCELLED, "fp9d is stopping");
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (core->models[i].used)
            core_session_model_gone(core, now, i, &err);
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++)
        if (core->jobs[i].used && !core_job_over(&core->jobs[i]))
            core_job_cancel(core, now, core->jobs[i].id, "since fp9d is stopping", NULL);
    for (uint32_t i = 0; i < core->duck_count; i++)
        core_mirror_tick(core, now, i);
}

const char *core_state_text(const struct core *core)
{
    bool starting = false, degraded = false, recovering = false;
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct core_duck *duck = &core->ducks[i];
        if (duck->state == CORE_DUCK_UP)
            continue;
        if (!duck->ever_up && duck->state == CORE_DUCK_CONNECTING)
            starting = true;
        else
            degraded = true;
    }
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++) {
        const struct core_model *model = &core->models[i];
        if (!model->used)
            continue;
        switch (model->state) {
        case CORE_MODEL_DEGRADED: degraded = true; break;
        case CORE_MODEL_FAILED: degraded |= model->registered; break; /* else it was never ready: nobody misses it */
        case CORE_MODEL_RECOVERING: recovering = true; break;
        case CORE_MODEL_LOADING: recovering |= model->registered; break; /* was ready before, perhaps before a restart */
        case CORE_MODEL_READY:
        case CORE_MODEL_UNLOADED: break;
        }
    }
    return degraded ? "degraded" : recovering ? "recovering" : starting ? "starting" : "ready";
}

const char *core_duck_state_text(enum core_duck_state state)
{
    switch (state) {
    case CORE_DUCK_CONNECTING: return "connecting";
    case CORE_DUCK_UP: return "up";
    case CORE_DUCK_LOST: return "lost";
    }
    return "?";
}

const char *core_model_state_text(enum core_model_state state)
{
    switch (state) {
    case CORE_MODEL_LOADING: return "loading";
    case CORE_MODEL_READY: return "ready";
    case CORE_MODEL_DEGRADED: return "degraded";
    case CORE_MODEL_RECOVERING: return "recovering";
    case CORE_MODEL_FAILED: return "failed";
    case CORE_MODEL_UNLOADED: return "unloaded";
    }
    return "?";
}

const char *core_job_state_text(enum core_job_state state)
{
    switch (state) {
    case CORE_JOB_QUEUED: return "queued";
    case CORE_JOB_RUNNING: return "running";
    case CORE_JOB_DONE: return "done";
    case CORE_JOB_FAILED: return "failed";
    case CORE_JOB_CANCELLED: return "cancelled";
    }
    return "?";
}

/* PURE. Models: what is loaded under which name, where its slots are, what the loss and return of ducks means to it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"

struct core_model *core_model_find(struct core *core, const char *name)
{
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (core->models[i].used && strcmp(core->models[i].name, name) == 0)
            return &core->models[i];
    return NULL;
}

const struct core_model *core_model_sharing(const struct core *core, const struct core_model *model, const uint8_t key[DIGEST_SIZE])
{
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++) {
        const struct core_model *other = &core->models[i];
        if (!other->used || other == model)
            continue;
        if ((other->plan && memcmp(other->key, key, DIGEST_SIZE) == 0) ||
            (other->old.plan && memcmp(other->old.key, key, DIGEST_SIZE) == 0))
            return other;
    }
    return NULL;
}

int core_model_no_layer(const struct core_model *model, uint32_t layer, struct err *err)
{
    uint32_t layers = model->arch->layers;
    char which[32] = "layer 0 alone";
    if (layers > 1)
        snprintf(which, sizeof which, "layers 0 to %u", layers - 1);
    err_set(err, -EINVAL, ERR_BAD_SHAPE, "layer %u: model %s has %s", layer, model->name, which);
    err_value_int(err, "layer", layer);
    err_value_int(err, "layers", layers);
    return -EINVAL;
}

void core_placement_free(struct core_placement *placement)
{
    arch_free(placement->arch);
    plan_free(placement->plan);
    free(placement->duck_of_rank);
    *placement = (struct core_placement){0};
}

struct core_placement core_placement_take(struct core_model *model)
{
    struct core_placement taken = {.arch = model->arch, .plan = model->plan, .duck_of_rank = model->duck_of_rank};
    memcpy(taken.key, model->key, DIGEST_SIZE);
    model->arch = NULL;
    model->plan = NULL;
    model->duck_of_rank = NULL;
    return taken;
}

void core_model_free_placements(struct core_model *model)
{
    struct core_placement now = core_placement_take(model);
    core_placement_free(&now);
    core_placement_free(&model->old);
}
bool core_model_complete(const struct core *core, const struct core_model *model)
{
    for (uint32_t layer = 0; layer < model->arch->layers; layer++)
        for (uint32_t rank = 0; rank < model->plan->tp; rank++)
            if (!core_model_has_slot(core, model, layer, rank))
                return false;
    return true;
}

void core_model_set_ready(struct core *core, uint32_t index)
{
    struct core_model *model = &core->models[index];
    model->state = CORE_MODEL_READY;
    model->error = (struct err){0};
    core_session_model_ready(core, index);
}
bool core_model_return(struct core *core, struct core_model *model)
{
    if (!model->old.plan)
        return false;
    struct core_placement given_up = core_placement_take(model);
    core_placement_free(&given_up);
    model->arch = model->old.arch;
    model->plan = model->old.plan;
    model->duck_of_rank = model->old.duck_of_rank;
    memcpy(model->key, model->old.key, DIGEST_SIZE);
    model->provisional = false;
    model->old = (struct core_placement){0};
    snprintf(model->reason, sizeof model->reason, "returned to after a load that failed");
    if (core_model_complete(core, model)) {
        core_model_set_ready(core, core_model_index(core, model));
        return true;
    }
    model->state = CORE_MODEL_DEGRADED;
    err_set(&model->error, -EAGAIN, ERR_NOT_READY, "model %s: slots of its old plan are missing", model->name);
    return true;
}
/* ---- ducks come and go ---- */

static bool uses_duck(const struct core_model *model, uint32_t duck)
{
    for (uint32_t rank = 0; model->plan && rank < model->plan->tp; rank++)
        if (model->duck_of_rank[rank] == duck)
            return true;
    return false;
}

void core_model_duck_lost(struct core *core, uint64_t now, uint32_t duck)
{
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++) {
        struct core_model *model = &core->models[i];
        if (!model->used || !uses_duck(model, duck))
            continue;
        /* A later reason is the better one: that it cannot even be started, say. */
        if (model->state == CORE_MODEL_READY || (model->state == CORE_MODEL_DEGRADED && model->error.name == ERR_DUCK_LOST)) {
            model->state = CORE_MODEL_DEGRADED;
            core_err_duck_lost(core, duck, "idle", CORE_NONE, &model->error);
        }
        struct core_job *job = model->job ? core_job_find(core, model->job) : NULL;
        if (job && (job->phase == CORE_PHASE_PREPARE || job->phase == CORE_PHASE_SEAL) && !core_job_over(job)) {
            uint32_t layer = CORE_NONE;
            for (size_t m = 0; m < job->missing_count && layer == CORE_NONE; m++)
                if (!job->missing[m].done && model->duck_of_rank[job->missing[m].rank] == duck)
                    layer = job->missing[m].layer;
            struct err err = {0};
            core_err_duck_lost(core, duck, "prepare", layer, &err);
            core_load_fail(core, now, job, &err);
        }
    }
}

void core_model_reconcile(struct core *core, uint64_t now, uint32_t index)
{
    struct core_model *model = &core->models[index];
    if (!model->used || model->job || model->state != CORE_MODEL_DEGRADED || core->stopping)
        return;
    struct core_job *job;
    if (!model->plan) { /* registered, and there were too few ducks so far */
        if (core_job_new(core, now, "load", index, &job, NULL) == 0)
            model->state = CORE_MODEL_LOADING;
        return;
    }
    for (uint32_t rank = 0; rank < model->plan->tp; rank++)
        if (core->ducks[model->duck_of_rank[rank]].state != CORE_DUCK_UP)
            return;
    if (!model->provisional && core_model_complete(core, model)) {
        core_model_set_ready(core, index);
        return;
    }
    if (core_job_new(core, now, "recover", index, &job, NULL) == 0)
        model->state = CORE_MODEL_RECOVERING;
}

static void give_up_slot(struct core *core, uint64_t now, uint32_t index, const uint8_t key[DIGEST_SIZE], uint32_t layer, const char *why,
                         const char *seen_by)
{
    struct core_duck *duck = &core->ducks[index];
    char time[CORE_TIME_MAX];
    core_duck_forget_slot(duck, key, layer);
    duck->mirror_dirty = true;
    core_lost(core, key, index, layer, "duck %s, layer %u: %s (%s at %s)", duck->name, layer, why, seen_by,
              core_time_text(core, now, time));
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++) {
        struct core_model *model = &core->models[i];
        if (!model->used || !uses_duck(model, index) || memcmp(model->key, key, DIGEST_SIZE) != 0 || model->state != CORE_MODEL_READY)
            continue;
        model->state = CORE_MODEL_DEGRADED;
        err_set(&model->error, -ESTALE, ERR_CACHE_STALE, "model %s: duck %s, layer %u: %s; load it again", model->name, duck->name, layer,
                why);
        err_value_str(&model->error, "duck", duck->name);
        err_value_int(&model->error, "layer", layer);
    }
}

void core_slot_bad(struct core *core, uint64_t now, uint32_t index, const uint8_t key[DIGEST_SIZE], uint32_t layer, const char *why)
{
    give_up_slot(core, now, index, key, layer, why, "cache verify");
}

/* A load that writes slots of this key in their place has taken the old ones away itself. */
static bool key_loads(const struct core *core, const uint8_t key[DIGEST_SIZE])
{
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (core->models[i].used && core->models[i].job && memcmp(core->models[i].key, key, DIGEST_SIZE) == 0)
            return true;
    return false;
}

bool core_slot_gone(struct core *core, uint64_t now, uint32_t index, const uint8_t key[DIGEST_SIZE], uint32_t layer, const char *seen_by)
{
    const struct msg_slot *slot = core_duck_slot(&core->ducks[index], key, layer);
    if (!slot || slot->state != MSG_SLOT_FINISHED || key_loads(core, key))
        return false;
    give_up_slot(core, now, index, key, layer, CORE_SLOT_GONE, seen_by);
    return true;
}

void core_slots_gone(struct core *core, uint64_t now, uint32_t index, const uint8_t key[DIGEST_SIZE], const char *seen_by)
{
    const struct core_duck *duck = &core->ducks[index];
    for (size_t i = duck->slot_count; i-- > 0;) /* backwards: the last one takes the place of one that goes */
        if (memcmp(duck->slots[i].model_key, key, DIGEST_SIZE) == 0)
            core_slot_gone(core, now, index, key, duck->slots[i].layer, seen_by);
}

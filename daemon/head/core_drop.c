/* PURE. Giving weight memory back: unload and invalidate-cache. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"

struct core_drop *core_drop_find(struct core *core, uint64_t id)
{
    for (uint32_t i = 0; i < CORE_DROPS_MAX; i++)
        if (core->drops[i].used && core->drops[i].id == id)
            return &core->drops[i];
    return NULL;
}

void core_drop_release(struct core *core, uint64_t id)
{
    struct core_drop *drop = core_drop_find(core, id);
    if (drop)
        drop->used = false;
}

static int drop_new(struct core *core, struct core_drop **ret_drop, struct err *err)
{
    for (uint32_t i = 0; i < CORE_DROPS_MAX; i++) {
        if (core->drops[i].used)
            continue;
        core->drops[i] = (struct core_drop){.used = true, .id = core->next_id++};
        *ret_drop = &core->drops[i];
        return 0;
    }
    return err_set(err, -EBUSY, ERR_BUSY, "%d drops are under way, which is the limit", CORE_DROPS_MAX);
}

static bool drop_waits(const struct core *core, const struct core_drop *drop)
{
    for (uint32_t i = 0; i < core->duck_count; i++)
        if (drop->waiting[i])
            return true;
    return false;
}

/* At once, not when the duck has answered: a load that is planned meanwhile must not count on these slots. */
static void forget_slots(struct core *core, uint32_t index, const struct core_drop *drop)
{
    struct core_duck *duck = &core->ducks[index];
    size_t kept = 0;
    duck->used_bytes = 0;
    duck->mirror_dirty = true;
    for (size_t i = 0; i < duck->slot_count; i++) {
        if (drop->all || memcmp(duck->slots[i].model_key, drop->key, DIGEST_SIZE) == 0) {
            core_lost(core, duck->slots[i].model_key, index, CORE_NONE, "%s", drop->why);
            continue;
        }
        duck->used_bytes += duck->slots[i].bytes;
        duck->slots[kept++] = duck->slots[i];
    }
    duck->slot_count = kept;
}

/* Sends the drop to one duck, or notes that it cannot be reached. */
static void drop_send(struct core *core, struct core_drop *drop, uint32_t duck)
{
    if (core->ducks[duck].state == CORE_DUCK_UP) {
        forget_slots(core, duck, drop);
        drop->waiting[duck] = true;
        core_push(core, CORE_ACT_DROP, duck, drop->id);
    } else {
        drop->unreached[duck] = true;
    }
}

static void drop_sent(struct core *core, struct core_drop *drop)
{
    if (!drop_waits(core, drop))
        core_push(core, CORE_ACT_DROP_DONE, CORE_NONE, drop->id);
}

/* A model whose slots go, wholly or on one duck, is not ready any more. */
static void close_model(struct core *core, uint64_t now, uint32_t index, const char *why)
{
    struct core_model *model = &core->models[index];
    if (model->job)
        core_job_cancel(core, now, model->job, NULL);
    err_set(&model->error, -ESTALE, ERR_NOT_READY, "model %s: %s", model->name, why);
    err_value_str(&model->error, "model", model->name);
    core_session_model_gone(core, now, index, &model->error);
    model->state = CORE_MODEL_UNLOADED;
}

int core_unload(struct core *core, uint64_t now, const char *who, const char *name, bool drop_cache, uint64_t *ret_drop, struct err *err)
{
    char time[CORE_TIME_MAX];
    struct core_model *model = core_model_find(core, name);
    if (!model) {
        err_set(err, -ENOENT, ERR_NO_SUCH, "model %s: no model of that name is loaded", name);
        err_value_str(err, "model", name);
        return -ENOENT;
    }
    struct core_drop *drop = NULL;
    /* Slots that another name uses too are kept: they are that one's to drop. */
    if (drop_cache && model->plan && !core_model_sharing(core, model, model->key)) {
        int r = drop_new(core, &drop, err);
        if (r < 0)
            return r;
        memcpy(drop->key, model->key, DIGEST_SIZE);
        snprintf(drop->why, sizeof drop->why, "unloaded with its cache by %s at %s", who, core_time_text(core, now, time));
    }
    uint32_t index = (uint32_t)(model - core->models);
    close_model(core, now, index, "was unloaded");
    for (uint32_t rank = 0; drop && rank < model->plan->tp; rank++)
        drop_send(core, drop, model->duck_of_rank[rank]);
    core_push(core, CORE_ACT_FORGET_MODEL, CORE_NONE, index);
    core_model_free_placements(model);
    model->used = false;
    *ret_drop = drop ? drop->id : 0;
    if (drop)
        drop_sent(core, drop);
    return 0;
}

static bool model_on_duck(const struct core_model *model, uint32_t duck)
{
    for (uint32_t rank = 0; model->plan && rank < model->plan->tp; rank++)
        if (duck == CORE_NONE || model->duck_of_rank[rank] == duck)
            return true;
    return false;
}

static bool same_slots(const struct core_model *a, const struct core_model *b)
{
    return a == b || (a->plan && b->plan && memcmp(a->key, b->key, DIGEST_SIZE) == 0);
}

int core_invalidate(struct core *core, uint64_t now, const char *who, const char *name, const char *duck_name, uint64_t *ret_drop,
                    struct err *err)
{
    char time[CORE_TIME_MAX];
    struct core_model *model = name ? core_model_find(core, name) : NULL;
    uint32_t duck = duck_name ? core_duck_find(core, duck_name) : CORE_NONE;
    if (name && !model) {
        err_set(err, -ENOENT, ERR_NO_SUCH, "model %s: no model of that name is loaded (--all drops the slots of unloaded ones too)", name);
        err_value_str(err, "model", name);
        return -ENOENT;
    }
    if (duck_name && duck == CORE_NONE) {
        err_set(err, -ENOENT, ERR_NO_SUCH, "duck %s: there is none of that name", duck_name);
        err_value_str(err, "duck", duck_name);
        return -ENOENT;
    }
    if (model && !model->plan) { /* it never had a slot */
        close_model(core, now, (uint32_t)(model - core->models), "its load was called off by an invalidation");
        *ret_drop = 0;
        return 0;
    }
    struct core_drop *drop;
    int r = drop_new(core, &drop, err);
    if (r < 0)
        return r;
    drop->all = !model;
    snprintf(drop->why, sizeof drop->why, "invalidated by %s at %s", who, core_time_text(core, now, time));
    if (model)
        memcpy(drop->key, model->key, DIGEST_SIZE);
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (core->models[i].used && (!model || same_slots(model, &core->models[i])) && model_on_duck(&core->models[i], duck))
            close_model(core, now, i, "its cache was invalidated, load it again");
    for (uint32_t i = 0; i < core->duck_count; i++)
        if ((duck == CORE_NONE || duck == i) && (!model || model_on_duck(model, i)))
            drop_send(core, drop, i);
    *ret_drop = drop->id;
    drop_sent(core, drop);
    return 0;
}

void core_dropped(struct core *core, uint64_t now, uint32_t index, uint64_t id, uint64_t freed_bytes)
{
    (void)now;
    struct core_drop *drop = core_drop_find(core, id);
    if (!drop || !drop->waiting[index])
        return;
    drop->freed_bytes += freed_bytes;
    drop->waiting[index] = false;
    if (!drop_waits(core, drop))
        core_push(core, CORE_ACT_DROP_DONE, CORE_NONE, id);
}

void core_drop_duck_lost(struct core *core, uint32_t duck)
{
    for (uint32_t i = 0; i < CORE_DROPS_MAX; i++) {
        struct core_drop *drop = &core->drops[i];
        if (!drop->used || !drop->waiting[duck])
            continue;
        drop->waiting[duck] = false;
        drop->unreached[duck] = true;
        if (!drop_waits(core, drop))
            core_push(core, CORE_ACT_DROP_DONE, CORE_NONE, drop->id);
    }
}

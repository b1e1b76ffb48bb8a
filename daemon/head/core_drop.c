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
        core->drops[i] = (struct core_drop){.used = true, .id = core->next_id++, .only = CORE_NONE};
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

static void remember(struct core *core, struct core_drop *drop, uint32_t duck);

/* Sends the drop to one duck, or notes that it cannot be reached. */
static void drop_send(struct core *core, struct core_drop *drop, uint32_t duck)
{
    if (core->ducks[duck].state == CORE_DUCK_UP) {
        forget_slots(core, duck, drop);
        drop->waiting[duck] = true;
        core_push(core, CORE_ACT_DROP, duck, drop->id);
    } else {
        remember(core, drop, duck);
    }
}

static void drop_sent(struct core *core, struct core_drop *drop)
{
    if (!drop_waits(core, drop))
        core_push(core, CORE_ACT_DROP_DONE, CORE_NONE, drop->id);
}

/* A model whose slots go, wholly or on one duck, is not ready any more, and nothing but a load makes it so. why: "it was ..." */
static void close_model(struct core *core, uint64_t now, uint32_t index, const char *why)
{
    struct core_model *model = &core->models[index];
    char since[CORE_WHY_MAX + 8], again[CORE_AGAIN_MAX];
    snprintf(since, sizeof since, "since %s", why);
    if (model->job)
        core_job_cancel(core, now, model->job, since, NULL);
    snprintf(model->unloaded, sizeof model->unloaded, "%s", why);
    err_set(&model->error, -ESTALE, ERR_NOT_READY, "model %s: %s; %s", model->name, why, core_load_again_text(model, again));
    err_value_str(&model->error, "model", model->name);
    core_session_model_gone(core, now, index, &model->error);
    model->state = CORE_MODEL_UNLOADED;
    model->cache[0] = model->reason[0] = '\0'; /* what its load found is no more */
}

static void invalidate_model(struct core *core, uint64_t now, uint32_t index, const char *by)
{
    char why[CORE_WHY_MAX];
    snprintf(why, sizeof why, "its cache was %s", by);
    close_model(core, now, index, why);
    if (core->models[index].registered)
        core_push(core, CORE_ACT_SAVE_MODEL, CORE_NONE, index);
}

int core_unload(struct core *core, uint64_t now, const char *who, const char *name, bool drop_cache, uint64_t *ret_drop, struct err *err)
{
    char time[CORE_TIME_MAX], why[CORE_WHY_MAX];
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
    snprintf(why, sizeof why, "it was unloaded by %s", who);
    close_model(core, now, index, why);
    if (drop)
        core_push(core, CORE_ACT_REVOKE, CORE_NONE, drop->id);
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

/* Slots that a duck has, or had when it was seen last. */
static bool holds_key(const struct core_duck *duck, const uint8_t key[DIGEST_SIZE])
{
    for (size_t i = 0; i < duck->slot_count; i++)
        if (memcmp(duck->slots[i].model_key, key, DIGEST_SIZE) == 0)
            return true;
    return false;
}

/* Of one that this fp9d has not planned yet nobody knows on which ducks it was. */
static bool concerns(const struct core_model *model, const struct core_drop *drop, uint32_t duck)
{
    const uint8_t *key = model->plan ? model->key : model->was.key;
    return model->used && (model->plan || model->was.known) && (drop->all || memcmp(key, drop->key, DIGEST_SIZE) == 0) &&
           (!model->plan || model_on_duck(model, duck));
}

static void close_models(struct core *core, uint64_t now, const struct core_drop *drop, uint32_t duck)
{
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (concerns(&core->models[i], drop, duck))
            invalidate_model(core, now, i, drop->why);
}

int core_invalidate(struct core *core, uint64_t now, const char *who, const char *name, const char *duck_name, uint64_t *ret_drop,
                    struct err *err)
{
    char time[CORE_TIME_MAX], by[sizeof core->drops[0].why];
    struct core_model *model = name ? core_model_find(core, name) : NULL;
    uint32_t duck = duck_name ? core_duck_find(core, duck_name) : CORE_NONE;
    uint8_t key[DIGEST_SIZE] = {0};
    if (duck_name && duck == CORE_NONE) {
        err_set(err, -ENOENT, ERR_NO_SUCH, "duck %s: there is none of that name", duck_name);
        err_value_str(err, "duck", duck_name);
        return -ENOENT;
    }
    snprintf(by, sizeof by, "invalidated by %s at %s", who, core_time_text(core, now, time));
    if (model && !model->plan && !model->was.known) { /* it never had a slot */
        invalidate_model(core, now, (uint32_t)(model - core->models), by);
        *ret_drop = 0;
        return 0;
    }
    int r = name ? core_key_find(core, name, key, err) : 0;
    struct core_drop *drop;
    if (r == 0)
        r = drop_new(core, &drop, err);
    if (r < 0)
        return r;
    drop->all = !name;
    drop->only = duck;
    memcpy(drop->why, by, sizeof drop->why);
    memcpy(drop->key, key, DIGEST_SIZE);
    close_models(core, now, drop, duck);
    core_push(core, CORE_ACT_REVOKE, CORE_NONE, drop->id);
    for (uint32_t i = 0; i < core->duck_count; i++)
        if ((duck == CORE_NONE || duck == i) && (!name || (model && model_on_duck(model, i)) || holds_key(&core->ducks[i], key)))
            drop_send(core, drop, i);
    *ret_drop = drop->id;
    drop_sent(core, drop);
    return 0;
}

/* ---- what loads have left ---- */

void core_drop_left(struct core *core, struct core_model *model, const uint8_t key[DIGEST_SIZE])
{
    struct core_drop *drop;
    if (!model->left)
        return;
    if (memcmp(model->left_key, key, DIGEST_SIZE) != 0 && !core_model_sharing(core, model, model->left_key)) {
        if (drop_new(core, &drop, NULL) < 0)
            return; /* the next time */
        memcpy(drop->key, model->left_key, DIGEST_SIZE);
        snprintf(drop->why, sizeof drop->why, "left by a load that ended early, of files that have changed since");
        for (uint32_t i = 0; i < core->duck_count; i++)
            if (holds_key(&core->ducks[i], drop->key))
                drop_send(core, drop, i);
        drop_sent(core, drop);
    }
    model->left = false;
}

void core_drop_leave(struct core *core, struct core_model *model, const struct core_job *job)
{
    if (!job->begun_provisional)
        return;
    core_drop_left(core, model, job->begun_key);
    model->left = true;
    memcpy(model->left_key, job->begun_key, DIGEST_SIZE);
}

/* ---- ducks that were not there ---- */

/* Remembered until the duck is back. What was known of its slots goes at once. */
static void remember(struct core *core, struct core_drop *drop, uint32_t duck)
{
    drop->unreached[duck] = true;
    forget_slots(core, duck, drop);
    struct core_revoked *free_place = NULL;
    for (uint32_t i = 0; i < CORE_REVOKED_MAX; i++) {
        struct core_revoked *revoked = &core->revoked[i];
        if (revoked->used && revoked->duck == duck && (revoked->all || (!drop->all && memcmp(revoked->key, drop->key, DIGEST_SIZE) == 0)))
            return;
        if (revoked->used && revoked->duck == duck && drop->all)
            revoked->used = false;
        if (!revoked->used && !free_place)
            free_place = revoked;
    }
    if (!free_place) { /* too many to list: all of this duck's slots go, which is safe */
        for (uint32_t i = 0; i < CORE_REVOKED_MAX; i++)
            if (core->revoked[i].duck == duck || !free_place)
                free_place = &core->revoked[i];
        free_place->all = true;
        return;
    }
    *free_place = (struct core_revoked){.used = true, .duck = duck, .all = drop->all};
    memcpy(free_place->key, drop->key, DIGEST_SIZE);
    memcpy(free_place->why, drop->why, sizeof free_place->why);
    core_push(core, CORE_ACT_SAVE_REVOKED, CORE_NONE, 0);
}

void core_revoked_was(struct core *core, const struct core_revoked *was)
{
    for (uint32_t i = 0; i < CORE_REVOKED_MAX; i++) {
        if (core->revoked[i].used)
            continue;
        core->revoked[i] = *was;
        core->revoked[i].used = true;
        return;
    }
}

void core_drop_duck_up(struct core *core, uint32_t index)
{
    bool any = false;
    for (uint32_t i = 0; i < CORE_REVOKED_MAX; i++) {
        struct core_revoked *revoked = &core->revoked[i];
        if (!revoked->used || revoked->duck != index)
            continue;
        struct core_drop *drop;
        if (drop_new(core, &drop, NULL) < 0)
            return; /* it stays on the list; the next time it comes up there will be room */
        drop->all = revoked->all;
        drop->late = true;
        memcpy(drop->key, revoked->key, DIGEST_SIZE);
        memcpy(drop->why, revoked->why, sizeof drop->why);
        revoked->used = false;
        any = true;
        drop_send(core, drop, index);
    }
    if (any)
        core_push(core, CORE_ACT_SAVE_REVOKED, CORE_NONE, 0);
}

void core_dropped(struct core *core, uint64_t now, uint32_t index, uint64_t id, uint64_t freed_bytes)
{
    (void)now;
    struct core_drop *drop = core_drop_find(core, id);
    if (!drop || !drop->waiting[index])
        return;
    drop->freed_bytes += freed_bytes;
    drop->waiting[index] = false;
    forget_slots(core, index, drop); /* those that were finished while it was on its way */
    if (!drop_waits(core, drop))
        core_push(core, CORE_ACT_DROP_DONE, CORE_NONE, id);
}

void core_drop_refused(struct core *core, uint32_t index, uint64_t id)
{
    struct core_drop *drop = core_drop_find(core, id);
    if (!drop || !drop->waiting[index])
        return;
    drop->waiting[index] = false;
    remember(core, drop, index);
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
        remember(core, drop, duck);
        if (!drop_waits(core, drop))
            core_push(core, CORE_ACT_DROP_DONE, CORE_NONE, drop->id);
    }
}

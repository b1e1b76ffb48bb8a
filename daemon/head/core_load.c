/* PURE. Loads: asked for, opened, prepared slot by slot, ended. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/size.h"

const char *core_load_again_text(const struct core_model *model, char text[CORE_AGAIN_MAX])
{
    struct core_want had = model->want;
    if (model->plan)
        had = (struct core_want){
            .tp = model->plan->tp, .multiple_of = model->plan->multiple_of, .strategy = model->plan->strategy, .mtp = model->arch->mtp};
    else if (model->was.known)
        had = (struct core_want){
            .tp = model->was.tp, .multiple_of = model->was.multiple_of, .strategy = model->was.strategy, .mtp = model->was.mtp};
    char strategy[PLAN_STRATEGY_TEXT];
    plan_strategy_name(had.strategy, strategy);
    if (had.tp && had.multiple_of)
        snprintf(text, CORE_AGAIN_MAX, "load it again, before: --tp %u --multiple-of %u --strategy %s%s", had.tp, had.multiple_of, strategy,
                 had.mtp ? " --mtp" : "");
    else
        snprintf(text, CORE_AGAIN_MAX, "load it again");
    return text;
}

static int no_such(const char *name, struct err *err)
{
    err_set(err, -ENOENT, ERR_NO_SUCH, "model %s: no model of that name is loaded", name);
    err_value_str(err, "model", name);
    return -ENOENT;
}
/* ---- asking for a load ---- */

/* Well-formed UTF-8: a name goes into JSON and comes back. */
static bool utf8_ok(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : (*p & 0xf0) == 0xe0 ? 2 : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;
        if (more < 0)
            return false;
        for (p++; more > 0; more--, p++)
            if ((*p & 0xc0) != 0x80)
                return false;
    }
    return true;
}

static int check_name(const char *name, struct err *err)
{
    size_t length = strlen(name);
    if (!length || length >= CORE_NAME_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "model name \"%.80s\": must be 1 to %d bytes long", name, CORE_NAME_MAX - 1);
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f || *p == '/')
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "model name \"%s\": no blanks, control characters or slashes", name);
    if (!utf8_ok(name))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "model name: is not UTF-8");
    return 0;
}

/* The last component, "" when it is too long for a name. */
static void name_of_path(const char *path, char name[CORE_NAME_MAX])
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    size_t length = end - start < CORE_NAME_MAX ? end - start : 0;
    memcpy(name, path + start, length);
    name[length] = '\0';
}

static int model_for(struct core *core, const struct core_load_request *request, struct core_model **ret_model, struct err *err)
{
    char name[CORE_NAME_MAX];
    if (request->path[0] != '/' || strlen(request->path) >= CORE_PATH_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "path \"%.200s\": must be absolute and shorter than %d bytes", request->path,
                       CORE_PATH_MAX);
    if (!request->name)
        name_of_path(request->path, name);
    int r = check_name(request->name ? request->name : name, err);
    if (r < 0)
        return request->name ? r : err_prefix(err, "the directory's name makes no model name, so give --name");
    if (request->name)
        snprintf(name, sizeof name, "%s", request->name);
    struct core_model *model = core_model_find(core, name);
    if (model && model->state == CORE_MODEL_FAILED && !model->registered && !model->job) {
        /* It was never ready, so nobody uses it: its name is free for a better checkpoint. */
        core_model_free_placements(model);
        *model = (struct core_model){0};
        model = NULL;
    }
    if (model && strcmp(model->path, request->path) != 0)
        return err_set(err, -EEXIST, ERR_BAD_REQUEST, "model %s is loaded from %s: unload it or give another --name", name, model->path);
    for (uint32_t i = 0; !model && i < CORE_MODELS_MAX; i++) {
        if (core->models[i].used)
            continue;
        model = &core->models[i];
        *model = (struct core_model){.used = true, .state = CORE_MODEL_LOADING};
        snprintf(model->name, sizeof model->name, "%s", name);
        snprintf(model->path, sizeof model->path, "%s", request->path);
    }
    if (!model)
        return err_set(err, -E2BIG, ERR_BUSY, "%d models are loaded, which is the limit: unload one", CORE_MODELS_MAX);
    *ret_model = model;
    return 0;
}

static void want(struct core_model *model, const struct core_load_request *request)
{
    model->want =
        (struct core_want){.tp = request->tp, .multiple_of = request->multiple_of, .strategy = request->strategy, .mtp = request->mtp};
}

void core_load_unwant(struct core_model *model, const struct core_job *job)
{
    if (job->wanted)
        model->want = job->before;
}

bool core_job_again(const struct core_job *job, const struct core_model *model)
{
    return strcmp(job->kind, "load") != 0 && model->plan;
}

bool core_job_mtp(const struct core_job *job, const struct core_model *model)
{
    return core_job_again(job, model) ? model->arch->mtp : model->want.mtp;
}

/* Somebody wants it again: from now on it comes back by itself, also when fp9d is killed before the job is done. */
static void end_unloaded(struct core *core, struct core_model *model)
{
    if (!model->unloaded[0])
        return;
    model->unloaded[0] = '\0';
    if (model->registered)
        core_push(core, CORE_ACT_SAVE_MODEL, CORE_NONE, core_model_index(core, model));
}

/* registered: it comes from the database, and so its first job waits for what may hold its slots. */
static int load(struct core *core, uint64_t now, const struct core_load_request *request, bool registered, uint64_t *ret_job,
                struct err *err)
{
    struct core_model *model = NULL;
    int r = model_for(core, request, &model, err);
    if (r < 0)
        return r;
    if (model->job) {
        if (model->want.tp == request->tp && model->want.multiple_of == request->multiple_of && model->want.mtp == request->mtp &&
            plan_strategy_same(model->want.strategy, request->strategy) && !request->force) {
            *ret_job = model->job; /* the same is under way: join it */
            return 0;
        }
        return err_set(err, -EBUSY, ERR_BUSY, "model %s: job %llu works on it; wait for it or cancel it", model->name,
                       (unsigned long long)model->job);
    }
    struct core_job *job;
    r = core_job_new(core, now, "load", core_model_index(core, model), &job, err);
    if (r < 0) {
        if (!model->plan)
            model->used = false;
        return r;
    }
    job->force = request->force;
    job->wanted = model->plan || model->registered;
    job->before = model->want;
    want(model, request);
    end_unloaded(core, model);
    if (model->state != CORE_MODEL_READY) {
        model->state = CORE_MODEL_LOADING;
        model->error = (struct err){0};
    }
    model->registered |= registered;
    *ret_job = job->id;
    core_job_start_queued(core, now);
    return 0;
}

int core_load(struct core *core, uint64_t now, const struct core_load_request *request, uint64_t *ret_job, struct err *err)
{
    return load(core, now, request, false, ret_job, err);
}

/* As it was left: whoever has freed its memory does not want it filled again by a restart. */
static void stay_unloaded(struct core_model *model, const struct core_load_request *request)
{
    want(model, request);
    model->registered = true;
    model->state = CORE_MODEL_UNLOADED;
    snprintf(model->unloaded, sizeof model->unloaded, "%s", request->unloaded);
    char again[CORE_AGAIN_MAX];
    err_set(&model->error, -ESTALE, ERR_NOT_READY, "model %s: %s; %s", model->name, model->unloaded, core_load_again_text(model, again));
    err_value_str(&model->error, "model", model->name);
}

int core_restore(struct core *core, uint64_t now, const struct core_load_request *request, struct err *err)
{
    struct core_model *model = NULL;
    uint64_t job;
    bool unloaded = request->unloaded && *request->unloaded;
    int r = unloaded ? model_for(core, request, &model, err) : load(core, now, request, true, &job, err);
    if (r < 0)
        return r;
    if (unloaded)
        stay_unloaded(model, request);
    else
        model = &core->models[core_job_find(core, job)->model];
    if (request->was)
        model->was = *request->was;
    return 0;
}

int core_prepare(struct core *core, uint64_t now, const char *name, uint32_t layer, uint64_t *ret_job, struct err *err)
{
    struct core_model *model = core_model_find(core, name);
    if (!model)
        return no_such(name, err);
    if (model->job)
        return err_set(err, -EBUSY, ERR_BUSY, "model %s: job %llu works on it", name, (unsigned long long)model->job);
    if (!model->plan)
        return err_set(err, -EAGAIN, ERR_NOT_READY, "model %s was never planned: load it first", name);
    if (layer != CORE_NONE && layer >= model->arch->layers)
        return core_model_no_layer(model, layer, err);
    struct core_job *job;
    int r = core_job_new(core, now, "prepare", core_model_index(core, model), &job, err);
    if (r < 0)
        return r;
    job->layer = layer;
    end_unloaded(core, model);
    *ret_job = job->id;
    core_job_start_queued(core, now);
    return 0;
}
static int check_same_plan(const struct core_model *model, const struct core_load_request *request, struct err *err)
{
    const struct plan *plan = model->plan;
    char strategy[PLAN_STRATEGY_TEXT];
    uint32_t ranks = plan_strategy_ranks(request->strategy) ? plan_strategy_ranks(request->strategy) : request->tp;
    if ((ranks && ranks != plan->tp) || (request->multiple_of && request->multiple_of != plan->multiple_of) ||
        !plan_strategy_fits(request->strategy, plan))
        return err_set(err, -EEXIST, ERR_BAD_REQUEST,
                       "model %s is prepared with tp %u, multiple_of %u, strategy %s: unload it to change that", model->name, plan->tp,
                       plan->multiple_of, plan_strategy_name(plan->strategy, strategy));
    return 0;
}

int core_prepare_memory(struct core *core, uint64_t now, const struct core_load_request *request, uint32_t layer, uint64_t *ret_job,
                        struct err *err)
{
    struct core_model *model = core_model_find(core, request->name);
    if (!model && !request->path) {
        no_such(request->name, err);
        return err_prefix(err, "a new model needs a path, the directory of its config.json");
    }
    bool fresh = !model || !model->plan;
    int r = model && model->plan ? check_same_plan(model, request, err) : 0;
    if (r == 0 && request->path)
        r = model_for(core, request, &model, err);
    if (r == 0 && model->job)
        r = err_set(err, -EBUSY, ERR_BUSY, "model %s: job %llu works on it", model->name, (unsigned long long)model->job);
    struct core_job *job = NULL;
    if (r == 0)
        r = core_job_new(core, now, "prepare", core_model_index(core, model), &job, err);
    if (r < 0) {
        if (fresh && model && !model->plan && !model->job && !model->registered)
            model->used = false;
        return r;
    }
    if (!model->plan) {
        model->want.tp = request->tp;
        model->want.multiple_of = request->multiple_of;
        model->want.strategy = request->strategy;
    }
    job->layer = layer;
    job->memory = true;
    *ret_job = job->id;
    core_job_start_queued(core, now);
    return 0;
}

void core_load_fail(struct core *core, uint64_t now, struct core_job *job, const struct err *err)
{
    struct core_model *model = &core->models[job->model];
    core_load_unwant(model, job);
    if (model->state != CORE_MODEL_READY && !core_model_return(core, model)) {
        /* Lost ducks come back; anything else needs a person. */
        bool comes_back = (err->name == ERR_DUCK_LOST && model->plan) || (err->name == ERR_NOT_READY && model->registered);
        model->state = comes_back ? CORE_MODEL_DEGRADED : CORE_MODEL_FAILED;
        err_copy(&model->error, err);
    }
    if (job->phase == CORE_PHASE_PREPARE) {
        core_lost(core, job->begun_key, CORE_NONE, CORE_NONE, "unfinished: job %llu failed: %.120s", (unsigned long long)job->id,
                  err->message);
        core_drop_leave(core, model, job);
    }
    core_job_end(core, now, job, CORE_JOB_FAILED, err);
    if (model->state == CORE_MODEL_FAILED && !model->plan && !model->registered)
        model->used = false; /* it never came to anything: its job has the error */
}
void core_load_open_failed(struct core *core, uint64_t now, uint64_t id, const struct err *err)
{
    struct core_job *job = core_job_find(core, id);
    if (job && !core_job_over(job))
        core_load_fail(core, now, job, err);
}
/* A part of the model was prepared, and others are still missing. */
static void leave_incomplete(const struct core *core, struct core_model *model)
{
    size_t missing = 0;
    uint32_t first = CORE_NONE;
    for (uint32_t layer = 0; layer < model->arch->layers; layer++) {
        bool whole = true;
        for (uint32_t rank = 0; rank < model->plan->tp; rank++)
            whole &= core_model_has_slot(core, model, layer, rank);
        missing += !whole;
        first = whole || first != CORE_NONE ? first : layer;
    }
    model->state = CORE_MODEL_DEGRADED;
    model->error = (struct err){0};
    err_set(&model->error, -EAGAIN, ERR_NOT_READY, "model %s: %zu of %u layer%s %s not prepared, the first is layer %u", model->name,
            missing, model->arch->layers, size_plural(model->arch->layers), missing == 1 ? "is" : "are", first);
    err_value_str(&model->error, "model", model->name);
    err_value_int(&model->error, "layer", first);
}

void core_load_finish(struct core *core, uint64_t now, struct core_job *job)
{
    struct core_model *model = &core->models[job->model];
    if (!model->provisional && core_model_complete(core, model)) {
        core_model_set_ready(core, job->model);
        model->registered = true;
        model->was = (struct core_was){.known = true,
                                       .layout = LAYOUT_VERSION,
                                       .tp = model->plan->tp,
                                       .multiple_of = model->plan->multiple_of,
                                       .mtp = model->arch->mtp,
                                       .strategy = model->plan->strategy};
        memcpy(model->was.key, model->key, DIGEST_SIZE);
        core_loss_forget(core, model->key);
        core_loss_forget(core, job->begun_key);
        core_drop_left(core, model, model->key);
        core_push(core, CORE_ACT_SAVE_MODEL, CORE_NONE, job->model);
    } else if (job->layer != CORE_NONE || job->memory) {
        core_loss_forget_whole(core, job->begun_key); /* it was not cut */
        leave_incomplete(core, model);
    } else {
        struct err err = {0};
        err_set(&err, -ESTALE, ERR_CACHE_STALE, "model %s: slots that were there have gone meanwhile; load it again", model->name);
        core_load_fail(core, now, job, &err);
        return;
    }
    core_job_end(core, now, job, CORE_JOB_DONE, NULL);
}
/* Takes arch. */
static void plan(struct core *core, uint64_t now, struct core_job *job, struct arch *arch, const struct checkpoint *checkpoint)
{
    struct err err = {0};
    int r = core_load_plan(core, job, arch, checkpoint, &err);
    if (r == CORE_PLAN_DIGEST) {
        job->arch = arch;
        job->phase = CORE_PHASE_DIGEST;
        job->streaming = true;
        core_push(core, CORE_ACT_DIGEST, CORE_NONE, job->id);
        core_job_changed(core, job->id);
        return;
    }
    if (r) {
        arch_free(arch);
        if (r < 0) {
            core_load_fail(core, now, job, &err);
        } else if (r == CORE_PLAN_WHOLE) {
            job->whole = true;
            core_push(core, CORE_ACT_OPEN, CORE_NONE, job->id);
        } else {
            job->state = CORE_JOB_QUEUED;
        }
        return;
    }
    if (!job->missing_count) {
        r = core_seal_learn(core, job, checkpoint, &err);
        if (r < 0)
            core_load_fail(core, now, job, &err);
        else
            core_seal(core, now, job);
        return;
    }
    struct core_model *model = &core->models[job->model];
    model->state = strcmp(job->kind, "recover") == 0 ? CORE_MODEL_RECOVERING : CORE_MODEL_LOADING;
    job->phase = CORE_PHASE_PREPARE;
    job->streaming = true;
    memcpy(job->begun_key, model->key, DIGEST_SIZE);
    job->begun_provisional = model->provisional;
    char time[CORE_TIME_MAX];
    core_lost(core, model->key, CORE_NONE, CORE_NONE, "unfinished: the %s begun at %s was cut", job->kind, core_time_text(core, now, time));
    core_push(core, CORE_ACT_STREAM, CORE_NONE, job->id);
    core_job_changed(core, job->id);
}

void core_load_opened(struct core *core, uint64_t now, uint64_t id, struct arch *arch, const struct checkpoint *checkpoint)
{
    struct core_job *job = core_job_find(core, id);
    if (!job || core_job_over(job)) {
        arch_free(arch);
        return;
    }
    job->opened_ns = now;
    plan(core, now, job, arch, checkpoint);
}

void core_load_digested(struct core *core, uint64_t now, uint64_t id, const struct checkpoint *checkpoint, const struct err *err)
{
    struct core_job *job = core_job_find(core, id);
    if (!job)
        return;
    job->streaming = false;
    struct arch *arch = job->arch;
    job->arch = NULL;
    job->digested = true;
    if (core_job_over(job) || err) {
        arch_free(arch);
        if (!core_job_over(job))
            core_load_fail(core, now, job, err);
        return;
    }
    plan(core, now, job, arch, checkpoint);
}

/* ---- slots arrive ---- */

void core_stream_progress(struct core *core, uint64_t id, uint64_t read_bytes, uint64_t sent_bytes)
{
    struct core_job *job = core_job_find(core, id);
    if (!job || core_job_over(job))
        return;
    job->read_bytes = read_bytes;
    job->sent_bytes = sent_bytes;
    core_job_changed(core, job->id);
}

void core_stream_ended(struct core *core, uint64_t now, uint64_t id, const struct checkpoint *checkpoint, const struct err *err)
{
    struct core_job *job = core_job_find(core, id);
    if (!job)
        return;
    job->streaming = false;
    if (core_job_over(job))
        return;
    struct err learn = {0};
    if (!err && core_seal_learn(core, job, checkpoint, &learn) < 0)
        err = &learn;
    if (err)
        core_load_fail(core, now, job, err);
    else if (job->missing_done == job->missing_count)
        core_seal(core, now, job);
}

void core_duck_forget_slot(struct core_duck *duck, const uint8_t key[DIGEST_SIZE], uint32_t layer)
{
    struct msg_slot *slot = (struct msg_slot *)core_duck_slot(duck, key, layer);
    if (!slot)
        return;
    duck->used_bytes -= slot->bytes;
    *slot = duck->slots[--duck->slot_count];
}

static void remember_slot(struct core_duck *duck, const struct msg_slot *slot)
{
    struct msg_slot *old = (struct msg_slot *)core_duck_slot(duck, slot->model_key, slot->layer);
    if (old) {
        duck->used_bytes -= old->bytes;
        duck->used_bytes += slot->bytes;
        *old = *slot;
        return;
    }
    if (duck->slot_count == duck->slot_capacity) {
        size_t capacity = duck->slot_capacity ? duck->slot_capacity * 2 : 64;
        struct msg_slot *slots = realloc(duck->slots, capacity * sizeof *slots);
        if (!slots)
            abort(); /* the mirror of a duck's header must not silently lack a slot */
        duck->slots = slots;
        duck->slot_capacity = capacity;
    }
    duck->slots[duck->slot_count++] = *slot;
    duck->used_bytes += slot->bytes;
}

void core_slot_done(struct core *core, uint64_t now, uint32_t duck, const struct msg_slot *slot)
{
    remember_slot(&core->ducks[duck], slot);
    core->ducks[duck].mirror_dirty = true;
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++) {
        struct core_job *job = &core->jobs[i];
        if (!job->used || core_job_over(job) || job->model == CORE_NONE)
            continue;
        if (job->phase == CORE_PHASE_SEAL)
            core_seal_slot_done(core, now, job, duck, slot);
        if (job->phase != CORE_PHASE_PREPARE)
            continue;
        const struct core_model *model = &core->models[job->model];
        if (memcmp(model->key, slot->model_key, DIGEST_SIZE) != 0)
            continue;
        for (size_t m = 0; m < job->missing_count; m++) {
            struct core_missing *missing = &job->missing[m];
            if (missing->done || missing->layer != slot->layer || model->duck_of_rank[missing->rank] != duck)
                continue;
            missing->done = true;
            job->missing_done++;
        }
        if (job->missing_done == job->missing_count && !job->streaming)
            core_seal(core, now, job);
    }
}

void core_slot_failed(struct core *core, uint64_t now, uint32_t duck, uint64_t id, const struct err *err)
{
    struct core_job *job = core_job_find(core, id);
    if (!job || core_job_over(job))
        return;
    struct err named = *err;
    err_prefix(&named, "duck %s", core->ducks[duck].name);
    err_value_str(&named, "duck", core->ducks[duck].name);
    core_load_fail(core, now, job, &named);
}

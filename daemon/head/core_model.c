/* PURE. Models: asked for, planned, prepared, degraded, recovered, unloaded. */
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
        if (other->used && other != model && other->plan && memcmp(other->key, key, DIGEST_SIZE) == 0)
            return other;
    }
    return NULL;
}

static void placement_free(struct core_placement *placement)
{
    arch_free(placement->arch);
    plan_free(placement->plan);
    free(placement->duck_of_rank);
    *placement = (struct core_placement){0};
}

static struct core_placement placement_take(struct core_model *model)
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
    struct core_placement now = placement_take(model);
    placement_free(&now);
    placement_free(&model->old);
}

static uint32_t index_of(const struct core *core, const struct core_model *model)
{
    return (uint32_t)(model - core->models);
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

int core_load(struct core *core, uint64_t now, const struct core_load_request *request, uint64_t *ret_job, struct err *err)
{
    struct core_model *model = NULL;
    int r = model_for(core, request, &model, err);
    if (r < 0)
        return r;
    if (model->job) {
        if (model->want_tp == request->tp && model->want_multiple_of == request->multiple_of && !request->force) {
            *ret_job = model->job; /* the same is under way: join it */
            return 0;
        }
        return err_set(err, -EBUSY, ERR_BUSY, "model %s: job %llu works on it; wait for it or cancel it", model->name,
                       (unsigned long long)model->job);
    }
    struct core_job *job;
    r = core_job_new(core, now, "load", index_of(core, model), &job, err);
    if (r < 0) {
        if (!model->plan)
            model->used = false;
        return r;
    }
    job->force = request->force;
    model->want_tp = request->tp;
    model->want_multiple_of = request->multiple_of;
    model->want_strategy = request->strategy;
    if (model->state != CORE_MODEL_READY) {
        model->state = CORE_MODEL_LOADING;
        model->error = (struct err){0};
    }
    *ret_job = job->id;
    core_job_start_queued(core);
    return 0;
}

int core_restore(struct core *core, uint64_t now, const struct core_load_request *request, struct err *err)
{
    uint64_t job;
    int r = core_load(core, now, request, &job, err);
    if (r < 0)
        return r;
    core->models[core_job_find(core, job)->model].registered = true;
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
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "layer %u: model %s has layers 0 to %u", layer, name, model->arch->layers - 1);
    struct core_job *job;
    int r = core_job_new(core, now, "prepare", index_of(core, model), &job, err);
    if (r < 0)
        return r;
    job->layer = layer;
    *ret_job = job->id;
    core_job_start_queued(core);
    return 0;
}

/* ---- the checkpoint is open: plan, assign, list what is missing ---- */

static void fail(struct core *core, uint64_t now, struct core_job *job, const struct err *err)
{
    struct core_model *model = &core->models[job->model];
    if (model->state != CORE_MODEL_READY && !core_model_return(core, model)) {
        /* Lost ducks come back; anything else needs a person. */
        bool comes_back = (err->name == ERR_DUCK_LOST && model->plan) || (err->name == ERR_NOT_READY && model->registered);
        model->state = comes_back ? CORE_MODEL_DEGRADED : CORE_MODEL_FAILED;
        err_copy(&model->error, err);
    }
    core_job_end(core, now, job, CORE_JOB_FAILED, err);
    if (model->state == CORE_MODEL_FAILED && !model->plan && !model->registered)
        model->used = false; /* it never came to anything: its job has the error */
}

void core_load_open_failed(struct core *core, uint64_t now, uint64_t id, const struct err *err)
{
    struct core_job *job = core_job_find(core, id);
    if (job && !core_job_over(job))
        fail(core, now, job, err);
}

static void explain(const struct core_model *model, const struct plan *plan, bool same_key, bool force, size_t missing, size_t total,
                    char *text, size_t size)
{
    if (force)
        snprintf(text, size, "prepared anew on request");
    else if (!missing)
        snprintf(text, size, "all %zu slots are finished under this key", total);
    else if (same_key)
        snprintf(text, size, "%zu of %zu slots are missing", missing, total);
    else if (!model->plan)
        snprintf(text, size, "%zu of %zu slots are not on the ducks", missing, total);
    else if (model->plan->tp != plan->tp)
        snprintf(text, size, "tp %u -> %u", model->plan->tp, plan->tp);
    else if (model->plan->multiple_of != plan->multiple_of)
        snprintf(text, size, "multiple_of %u -> %u", model->plan->multiple_of, plan->multiple_of);
    else
        snprintf(text, size, "weights changed since the last load");
}

/* Bytes that the missing slots of one rank need beyond what they replace, against the duck's free room. */
static int check_room(const struct core *core, const struct core_model *model, const struct core_job *job, uint32_t rank, struct err *err)
{
    const struct core_duck *duck = &core->ducks[model->duck_of_rank[rank]];
    uint64_t need = 0, replaced = 0;
    for (size_t i = 0; i < job->missing_count; i++) {
        if (job->missing[i].rank != rank)
            continue;
        uint32_t layer = job->missing[i].layer;
        const struct plan_rank *share = &model->plan->ranks[rank];
        need += model->arch->layer_is_moe[layer] ? share->moe_slot_bytes : share->dense_slot_bytes;
        const struct msg_slot *old = core_duck_slot(duck, model->key, layer);
        replaced += old ? old->bytes : 0;
    }
    uint64_t has = duck->hello.capacity_bytes - (duck->used_bytes - replaced);
    if (need <= has)
        return 0;
    err_set(err, -ENOSPC, ERR_NO_MEMORY,
            "duck %s: rank %u needs %llu bytes, its weight buffer has %llu free of %llu; other models' cached slots hold %llu "
            "(cache list shows them, invalidate-cache frees them)",
            duck->name, rank, (unsigned long long)need, (unsigned long long)has, (unsigned long long)duck->hello.capacity_bytes,
            (unsigned long long)(duck->used_bytes - replaced));
    err_value_str(err, "duck", duck->name);
    err_value_int(err, "needs", (long long)need);
    err_value_int(err, "has", (long long)has);
    return -ENOSPC;
}

/* Checkpoint bytes that a load reads for one rank of a layer: its rows of gate and up. */
static uint64_t rank_source_bytes(const struct core_model *model, uint32_t layer, uint32_t rank)
{
    const struct plan_rank *share = &model->plan->ranks[rank];
    uint64_t neurons = model->arch->layer_is_moe[layer] ? (uint64_t)share->routed.neurons * model->arch->experts + share->shared.neurons
                                                        : share->dense.neurons;
    return neurons * model->arch->hidden * 2;
}

/* And once for all its ranks: down, whose rows all ranks share. */
static uint64_t layer_source_bytes(const struct core_model *model, uint32_t layer)
{
    const struct arch *arch = model->arch;
    uint64_t neurons =
        arch->layer_is_moe[layer] ? (uint64_t)arch->moe_intermediate * arch->experts + arch->shared_intermediate : arch->dense_intermediate;
    return neurons * arch->hidden;
}

static int list_missing(const struct core *core, const struct core_model *model, struct core_job *job, struct err *err)
{
    size_t total = (size_t)model->arch->layers * model->plan->tp;
    job->missing = calloc(total, sizeof *job->missing);
    if (!job->missing)
        return err_no_memory(err, "list of slots", total * sizeof *job->missing);
    for (uint32_t layer = 0; layer < model->arch->layers; layer++) {
        if (job->layer != CORE_NONE && job->layer != layer)
            continue;
        size_t before = job->missing_count;
        for (uint32_t rank = 0; rank < model->plan->tp; rank++) {
            if (!job->force && core_model_has_slot(core, model, layer, rank))
                continue;
            job->missing[job->missing_count++] = (struct core_missing){.layer = layer, .rank = rank};
            job->total_bytes += rank_source_bytes(model, layer, rank);
        }
        if (job->missing_count > before)
            job->total_bytes += layer_source_bytes(model, layer);
    }
    for (uint32_t rank = 0; rank < model->plan->tp; rank++) {
        int r = check_room(core, model, job, rank, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int make_plan(const struct core *core, const struct core_model *model, const struct core_job *job, const struct arch *arch,
                     struct plan **ret_plan, struct err *err)
{
    /* What is there already keeps its shape; only a load may change it. */
    bool again = strcmp(job->kind, "load") != 0 && model->plan;
    struct plan_request request = {
        .tp = again ? model->plan->tp : model->want_tp,
        .multiple_of = again ? model->plan->multiple_of : model->want_multiple_of,
        .strategy = model->want_strategy,
    };
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct core_duck *duck = &core->ducks[i];
        if (duck->state != CORE_DUCK_UP || duck->spare)
            continue;
        request.ducks++;
        if (!request.memory_bytes || duck->hello.capacity_bytes < request.memory_bytes)
            request.memory_bytes = duck->hello.capacity_bytes;
    }
    if (!request.ducks)
        return err_set(err, -EHOSTDOWN, ERR_NOT_READY, "no duck is up (local_ducks in fp9d.conf or --local-ducks says how many to run)");
    uint32_t all = 0;
    for (uint32_t i = 0; i < core->duck_count; i++)
        all += !core->ducks[i].spare;
    if (request.tp > request.ducks && request.tp <= all) {
        err_set(err, -EHOSTDOWN, ERR_NOT_READY, "tp %u needs %u ducks, %u of %u are up", request.tp, request.tp, request.ducks, all);
        err_value_int(err, "tp", request.tp);
        err_value_int(err, "up", request.ducks);
        return -EHOSTDOWN;
    }
    return plan_make(arch, &request, ret_plan, err);
}

/* Two names may share one set of slots (same weights, same plan); but only one at a time may prepare it, and not under the other's feet.
 * 1: the other prepares it right now, so this job waits. */
static int check_shared(const struct core *core, const struct core_model *model, struct core_job *job, const uint8_t key[DIGEST_SIZE],
                        struct err *err)
{
    const struct core_model *other = core_model_sharing(core, model, key);
    if (!other || other->state == CORE_MODEL_FAILED || other->state == CORE_MODEL_UNLOADED)
        return 0;
    if (other->job) {
        job->waits_for = other->job;
        return 1;
    }
    err_set(err, -EBUSY, ERR_BUSY, "model %s: has the weights and the plan of model %s, which is %s; prepare that one, or unload it first",
            model->name, other->name, core_model_state_text(other->state));
    err_value_str(err, "model", other->name);
    return -EBUSY;
}

/* Everything is worked out on a copy of the model and taken over only when all of it holds, so that a refused load leaves a loaded
 * model as it was. 1: nothing was taken over, the job waits for another. */
static int plan_load(struct core *core, struct core_job *job, struct arch *arch, const struct checkpoint *checkpoint, struct err *err)
{
    struct core_model *model = &core->models[job->model];
    struct core_model next = *model;
    _cleanup_(plan_freep) struct plan *plan = NULL;
    int r = make_plan(core, model, job, arch, &plan, err);
    if (r < 0)
        return r;
    r = checkpoint_model_key(checkpoint, arch, plan, next.key, err);
    if (r < 0)
        return r;
    _cleanup_(freep) uint32_t *duck_of_rank = calloc(plan->tp, sizeof *duck_of_rank);
    if (!duck_of_rank)
        return err_no_memory(err, "ranks", plan->tp * sizeof *duck_of_rank);
    r = core_assign(core, next.key, plan->tp, duck_of_rank, err);
    if (r < 0)
        return r;
    next.arch = arch;
    next.plan = plan;
    next.duck_of_rank = duck_of_rank;
    r = list_missing(core, &next, job, err);
    if (r == 0 && job->missing_count)
        r = check_shared(core, model, job, next.key, err);
    if (r)
        return r;
    bool same_key = model->plan && memcmp(model->key, next.key, DIGEST_SIZE) == 0;
    size_t total = (job->layer == CORE_NONE ? arch->layers : 1) * (size_t)plan->tp;
    explain(model, plan, same_key, job->force, job->missing_count, total, next.reason, sizeof next.reason);
    snprintf(next.cache, sizeof next.cache, "%s", !job->missing_count ? "hit" : job->missing_count < total ? "partial" : "miss");

    struct core_placement before = placement_take(model);
    bool keep = before.plan && !same_key && model->state == CORE_MODEL_READY && !model->old.plan;
    if (keep)
        next.old = before;
    else
        placement_free(&before);
    *model = next;
    plan = NULL;
    duck_of_rank = NULL;
    return 0;
}

static bool complete(const struct core *core, const struct core_model *model)
{
    for (uint32_t layer = 0; layer < model->arch->layers; layer++)
        for (uint32_t rank = 0; rank < model->plan->tp; rank++)
            if (!core_model_has_slot(core, model, layer, rank))
                return false;
    return true;
}

static void ready(struct core *core, uint32_t index)
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
    struct core_placement given_up = placement_take(model);
    placement_free(&given_up);
    model->arch = model->old.arch;
    model->plan = model->old.plan;
    model->duck_of_rank = model->old.duck_of_rank;
    memcpy(model->key, model->old.key, DIGEST_SIZE);
    model->old = (struct core_placement){0};
    snprintf(model->reason, sizeof model->reason, "returned to after a load that failed");
    if (complete(core, model)) {
        ready(core, index_of(core, model));
        return true;
    }
    model->state = CORE_MODEL_DEGRADED;
    err_set(&model->error, -EAGAIN, ERR_NOT_READY, "model %s: slots of its old plan are missing", model->name);
    return true;
}

static void finish(struct core *core, uint64_t now, struct core_job *job)
{
    struct core_model *model = &core->models[job->model];
    if (model->old.plan) {
        struct err gone = {0};
        err_set(&gone, -ESTALE, ERR_CACHE_STALE, "model %s was loaded again: %s", model->name, model->reason);
        core_session_key_gone(core, job->model, &gone);
        placement_free(&model->old);
    }
    if (complete(core, model)) {
        ready(core, job->model);
        model->registered = true;
        core_push(core, CORE_ACT_SAVE_MODEL, CORE_NONE, job->model);
    }
    core_job_end(core, now, job, CORE_JOB_DONE, NULL);
}

void core_load_opened(struct core *core, uint64_t now, uint64_t id, struct arch *arch, const struct checkpoint *checkpoint)
{
    struct core_job *job = core_job_find(core, id);
    if (!job || core_job_over(job)) {
        arch_free(arch);
        return;
    }
    job->started_ns = now;
    struct err err = {0};
    int r = plan_load(core, job, arch, checkpoint, &err);
    if (r) {
        arch_free(arch);
        if (r < 0) {
            fail(core, now, job, &err);
            return;
        }
        free(job->missing);
        job->missing = NULL;
        job->missing_count = job->total_bytes = 0;
        job->state = CORE_JOB_QUEUED;
        return;
    }
    if (!job->missing_count) {
        finish(core, now, job);
        return;
    }
    struct core_model *model = &core->models[job->model];
    model->state = strcmp(job->kind, "recover") == 0 ? CORE_MODEL_RECOVERING : CORE_MODEL_LOADING;
    job->phase = CORE_PHASE_PREPARE;
    job->streaming = true;
    core_push(core, CORE_ACT_STREAM, CORE_NONE, job->id);
    core_job_changed(core, job->id);
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

void core_stream_ended(struct core *core, uint64_t now, uint64_t id, const struct err *err)
{
    struct core_job *job = core_job_find(core, id);
    if (!job)
        return;
    job->streaming = false;
    if (core_job_over(job))
        return;
    if (err)
        fail(core, now, job, err);
    else if (job->missing_done == job->missing_count)
        finish(core, now, job);
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
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++) {
        struct core_job *job = &core->jobs[i];
        if (!job->used || core_job_over(job) || job->phase != CORE_PHASE_PREPARE)
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
            finish(core, now, job);
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
    fail(core, now, job, &named);
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
        if (model->state == CORE_MODEL_READY) {
            model->state = CORE_MODEL_DEGRADED;
            core_err_duck_lost(core, duck, "idle", CORE_NONE, &model->error);
        }
        struct core_job *job = model->job ? core_job_find(core, model->job) : NULL;
        if (job && job->phase == CORE_PHASE_PREPARE && !core_job_over(job)) {
            uint32_t layer = CORE_NONE;
            for (size_t m = 0; m < job->missing_count && layer == CORE_NONE; m++)
                if (!job->missing[m].done && model->duck_of_rank[job->missing[m].rank] == duck)
                    layer = job->missing[m].layer;
            struct err err = {0};
            core_err_duck_lost(core, duck, "prepare", layer, &err);
            fail(core, now, job, &err);
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
    if (complete(core, model)) {
        ready(core, index);
        return;
    }
    if (core_job_new(core, now, "recover", index, &job, NULL) == 0)
        model->state = CORE_MODEL_RECOVERING;
}

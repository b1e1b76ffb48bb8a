/* PURE. The end of a load: every slot goes under the model's key, which is known only now when the weights were streamed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"

int core_seal_learn(struct core *core, struct core_job *job, const struct checkpoint *checkpoint, struct err *err)
{
    const struct core_model *model = &core->models[job->model];
    struct core_wants wants;
    int r = core_wants_init(&wants, model, model, checkpoint, false, err);
    if (r < 0)
        return r;
    free(job->sources);
    free(job->known);
    job->sources = wants.sources;
    job->known = wants.known;
    job->key_known = checkpoint_model_key(checkpoint, model->arch, model->plan, job->key, NULL) == 0;
    if (job->key_known || job->layer != CORE_NONE || job->memory)
        return 0;
    return err_set(err, -EIO, ERR_INTERNAL, "model %s: all its weights were read and not all are digested", model->name);
}

static bool in_scope(const struct core_job *job, uint32_t layer)
{
    return job->layer == CORE_NONE || job->layer == layer || job->memory; /* what memory has completed goes under its key as a whole */
}

static int list(struct core *core, struct core_job *job, struct err *err)
{
    struct core_model *model = &core->models[job->model];
    size_t total = (size_t)model->arch->layers * model->plan->tp;
    struct core_wants wants = {.model = model, .next = model, .sources = job->sources, .known = job->known};
    job->rekeys = calloc(total, sizeof *job->rekeys);
    if (!job->rekeys)
        return err_no_memory(err, "list of slots", total * sizeof *job->rekeys);
    for (uint32_t layer = 0; layer < model->arch->layers; layer++) {
        for (uint32_t rank = 0; in_scope(job, layer) && rank < model->plan->tp; rank++) {
            const struct msg_slot *slot = core_wants_usable(core, &wants, model->duck_of_rank[rank], layer, rank);
            if (!slot || memcmp(slot->model_key, job->key, DIGEST_SIZE) == 0)
                continue;
            struct core_rekey *rekey = &job->rekeys[job->rekey_count++];
            *rekey = (struct core_rekey){.layer = layer, .rank = rank};
            memcpy(rekey->from, slot->model_key, DIGEST_SIZE);
            memcpy(rekey->sources, slot->sources, DIGEST_SIZE);
        }
    }
    return 0;
}

/* Sessions of the plan before end here: its slots may be among those that get the new key. */
static void leave_old(struct core *core, struct core_job *job)
{
    struct core_model *model = &core->models[job->model];
    if (!model->old.plan)
        return;
    struct err gone = {0};
    err_set(&gone, -ESTALE, ERR_CACHE_STALE, "model %s was loaded again: %s", model->name, model->reason);
    core_session_key_gone(core, job->model, &gone);
    core_placement_free(&model->old);
}

void core_seal(struct core *core, uint64_t now, struct core_job *job)
{
    struct core_model *model = &core->models[job->model];
    struct err err = {0};
    if (job->key_known && list(core, job, &err) < 0) {
        core_load_fail(core, now, job, &err);
        return;
    }
    leave_old(core, job);
    if (job->key_known) {
        memcpy(model->key, job->key, DIGEST_SIZE);
        model->provisional = false;
    }
    if (!job->rekey_count) {
        core_load_finish(core, now, job);
        return;
    }
    if (model->state == CORE_MODEL_READY)
        model->state = CORE_MODEL_LOADING;
    job->phase = CORE_PHASE_SEAL;
    for (uint32_t rank = 0; rank < model->plan->tp; rank++)
        core_push(core, CORE_ACT_REKEY, model->duck_of_rank[rank], job->id);
    core_job_changed(core, job->id);
}

void core_seal_slot_done(struct core *core, uint64_t now, struct core_job *job, uint32_t duck, const struct msg_slot *slot)
{
    const struct core_model *model = &core->models[job->model];
    if (memcmp(slot->model_key, model->key, DIGEST_SIZE) != 0)
        return;
    for (size_t i = 0; i < job->rekey_count; i++) {
        struct core_rekey *rekey = &job->rekeys[i];
        if (rekey->done || rekey->layer != slot->layer || model->duck_of_rank[rekey->rank] != duck)
            continue;
        rekey->done = true;
        job->rekey_done++;
        core_duck_forget_slot(&core->ducks[duck], rekey->from, rekey->layer);
    }
    if (job->rekey_done == job->rekey_count)
        core_load_finish(core, now, job);
}

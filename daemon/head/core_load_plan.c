/* PURE. What a load comes to: the plan, the ducks, the slots that are missing, whether they fit. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/size.h"

void core_list_droppable(const struct core *core, const uint8_t own[DIGEST_SIZE], const struct core_duck *duck, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < duck->slot_count; i++) {
        const uint8_t *key = duck->slots[i].model_key;
        uint64_t bytes = 0;
        bool first = memcmp(key, own, DIGEST_SIZE) != 0;
        for (size_t j = 0; j < duck->slot_count && first; j++) {
            if (memcmp(duck->slots[j].model_key, key, DIGEST_SIZE) != 0)
                continue;
            first = j >= i;
            bytes += duck->slots[j].bytes;
        }
        if (!first || at + 100 > size)
            continue;
        char hex[DIGEST_HEX_SIZE];
        digest_hex(key, hex);
        hex[12] = '\0';
        const struct core_model *user = core_model_sharing(core, NULL, key);
        at += (size_t)snprintf(text + at, size - at, "%s%s (%llu bytes%s)", at ? ", " : "invalidate-cache --model could drop ",
                               user ? user->name : hex, (unsigned long long)bytes, user ? "" : ", not in use");
    }
    if (!at)
        snprintf(text, size, "nothing could be dropped; more ducks, a larger weight buffer or a higher tp would do");
}

/* What a slot takes in a weight buffer: whole pages, and a checksum of each expert behind its bytes. Of another model's slot the number of
 * experts is not known here, so a page is allowed for it. */
#define ROOM_PAGE 4096u
static uint64_t room_for(uint64_t bytes, uint64_t sums)
{
    return size_round_up(bytes + sums, ROOM_PAGE);
}

/* Bytes that the missing slots of one rank need beyond what they replace, against the duck's free room. */
static int check_room(const struct core *core, const struct core_model *model, const struct core_job *job, uint32_t rank, struct err *err)
{
    const struct core_duck *duck = &core->ducks[model->duck_of_rank[rank]];
    uint64_t need = 0, used = 0, sums = (model->plan->ranks[rank].expert_count + UINT64_C(1)) * sizeof(uint64_t);
    for (size_t i = 0; i < duck->slot_count; i++)
        used += room_for(duck->slots[i].bytes, ROOM_PAGE);
    for (size_t i = 0; i < job->missing_count; i++) {
        if (job->missing[i].rank != rank)
            continue;
        uint32_t layer = job->missing[i].layer;
        const struct plan_rank *share = &model->plan->ranks[rank];
        need += room_for(model->arch->layer_is_moe[layer] ? share->moe_slot_bytes : share->dense_slot_bytes, sums);
        const struct msg_slot *old = core_duck_slot(duck, model->key, layer);
        used -= old ? room_for(old->bytes, ROOM_PAGE) : 0;
    }
    uint64_t has = duck->hello.capacity_bytes > used ? duck->hello.capacity_bytes - used : 0;
    if (need <= has)
        return 0;
    char droppable[256];
    core_list_droppable(core, model->key, duck, droppable, sizeof droppable);
    err_set(err, -ENOSPC, ERR_NO_MEMORY,
            "duck %s: rank %u needs %llu bytes, its weight buffer has %llu free of %llu, other slots hold %llu: %s", duck->name, rank,
            (unsigned long long)need, (unsigned long long)has, (unsigned long long)duck->hello.capacity_bytes, (unsigned long long)used,
            droppable);
    err_value_str(err, "droppable", droppable);
    err_value_str(err, "duck", duck->name);
    err_value_int(err, "needs", (long long)need);
    err_value_int(err, "has", (long long)has);
    return -ENOSPC;
}

/* What a duck takes for a slot, to the byte. */
static uint64_t slot_room(const struct core_model *model, uint32_t layer, uint32_t rank)
{
    const struct plan_rank *share = &model->plan->ranks[rank];
    bool moe = model->arch->layer_is_moe[layer];
    uint64_t parts = moe ? share->expert_count + (uint64_t)(share->shared.neurons > 0) : 1;
    return room_for(size_round_up(moe ? share->moe_slot_bytes : share->dense_slot_bytes, sizeof(uint64_t)), parts * sizeof(uint64_t));
}

static bool drop_is_on_its_way(const struct core *core, uint32_t duck)
{
    for (uint32_t i = 0; i < CORE_DROPS_MAX; i++)
        if (core->drops[i].used && core->drops[i].waiting[duck])
            return true;
    return false;
}

/* Room enough in sum may lie in pieces: slots are placed here as the duck will place them, first fit, by layer. */
static int check_pieces(const struct core *core, const struct core_model *model, const struct core_job *job, uint32_t rank, struct err *err)
{
    const struct core_duck *duck = &core->ducks[model->duck_of_rank[rank]];
    if (!duck->room_known || drop_is_on_its_way(core, model->duck_of_rank[rank]))
        return 0; /* not known right now: the duck itself refuses what does not fit */
    size_t count = duck->range_count;
    _cleanup_(freep) uint64_t *left = calloc(count + 1, sizeof *left);
    if (!left)
        return err_no_memory(err, "free ranges", count * sizeof *left);
    if (count)
        memcpy(left, duck->ranges, count * sizeof *left);
    uint64_t total = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        total += duck->ranges[i];
        largest = duck->ranges[i] > largest ? duck->ranges[i] : largest;
    }
    for (size_t i = 0; i < job->missing_count; i++) {
        uint32_t layer = job->missing[i].layer;
        const struct msg_slot *old = core_duck_slot(duck, model->key, layer);
        if (job->missing[i].rank != rank || old) /* one that is replaced leaves its place to it */
            continue;
        uint64_t needs = slot_room(model, layer, rank);
        size_t at = 0;
        while (at < count && left[at] < needs)
            at++;
        if (at < count) {
            left[at] -= needs;
            continue;
        }
        uint64_t leaves = 0;
        for (at = 0; at < count; at++)
            leaves = left[at] > leaves ? left[at] : leaves;
        char droppable[256], before[80] = "";
        if (leaves < largest)
            snprintf(before, sizeof before, ", %llu once the layers before it are placed", (unsigned long long)leaves);
        core_list_droppable(core, model->key, duck, droppable, sizeof droppable);
        err_set(err, -ENOSPC, ERR_NO_MEMORY,
                "duck %s: layer %u of rank %u needs %llu bytes in one piece; its weight buffer has %llu free, but in %zu piece%s of at "
                "most %llu%s: %s",
                duck->name, layer, rank, (unsigned long long)needs, (unsigned long long)total, count, size_plural(count),
                (unsigned long long)largest, before, droppable);
        err_value_str(err, "droppable", droppable);
        err_value_str(err, "duck", duck->name);
        err_value_int(err, "needs", (long long)needs);
        err_value_int(err, "largest", (long long)largest);
        err_value_int(err, "has", (long long)total);
        return -ENOSPC;
    }
    return 0;
}

/* Checkpoint bytes that a load reads for one rank of a layer: its rows of gate and up. */
static uint64_t rank_source_bytes(const struct core_model *model, uint32_t layer, uint32_t rank)
{
    const struct plan_rank *share = &model->plan->ranks[rank];
    uint64_t neurons = model->arch->layer_is_moe[layer] ? (uint64_t)share->routed.neurons * share->expert_count + share->shared.neurons
                                                        : share->dense.neurons;
    return neurons * model->arch->hidden * 2;
}

/* And once for all its ranks: down, whose rows all ranks share, of so many routed experts. */
static uint64_t layer_source_bytes(const struct core_model *model, uint32_t layer, uint32_t experts)
{
    const struct arch *arch = model->arch;
    uint64_t neurons =
        arch->layer_is_moe[layer] ? (uint64_t)arch->moe_intermediate * experts + arch->shared_intermediate : arch->dense_intermediate;
    return neurons * arch->hidden;
}

/* Which layers a job is about. */
static bool in_scope(const struct core_job *job, const struct checkpoint *checkpoint, uint32_t layer)
{
    return (job->layer == CORE_NONE || job->layer == layer) && (!job->memory || checkpoint_layer_there(checkpoint, layer));
}

/* A slot is missing whose weights are nowhere but with the client that gave them. */
static int not_there(const struct core_model *model, uint32_t layer, struct err *err)
{
    err_set(err, -ESTALE, ERR_NOT_READY, "model %s: layer %u has no slot, and its weights came from memory: prepare it again from there",
            model->name, layer);
    err_value_str(err, "model", model->name);
    err_value_int(err, "layer", layer);
    return -ESTALE;
}

static int list_missing(const struct core *core, const struct core_wants *wants, struct core_job *job, const struct checkpoint *checkpoint,
                        struct err *err)
{
    const struct core_model *model = wants->next;
    size_t total = (size_t)model->arch->layers * model->plan->tp;
    free(job->missing);
    job->missing_count = 0;
    job->total_bytes = job->read_bytes; /* what it has read to digest */
    job->missing = calloc(total, sizeof *job->missing);
    if (!job->missing)
        return err_no_memory(err, "list of slots", total * sizeof *job->missing);
    for (uint32_t layer = 0; layer < model->arch->layers; layer++) {
        if (!in_scope(job, checkpoint, layer))
            continue;
        size_t before = job->missing_count;
        uint32_t experts = 0, group = CORE_NONE; /* of the groups that miss something */
        for (uint32_t rank = 0; rank < model->plan->tp; rank++) {
            if (core_wants_usable(core, wants, model->duck_of_rank[rank], layer, rank))
                continue;
            const struct plan_rank *share = &model->plan->ranks[rank];
            experts += share->group == group ? 0 : share->expert_count;
            group = share->group;
            job->missing[job->missing_count++] = (struct core_missing){.layer = layer, .rank = rank};
            job->total_bytes += rank_source_bytes(model, layer, rank);
        }
        if (job->missing_count > before && !checkpoint_layer_there(checkpoint, layer))
            return checkpoint_is_glance(checkpoint) ? CORE_PLAN_WHOLE : not_there(model, layer, err);
        if (job->missing_count > before)
            job->total_bytes += layer_source_bytes(model, layer, experts);
    }
    for (uint32_t rank = 0; rank < model->plan->tp; rank++) {
        int r = check_room(core, model, job, rank, err);
        if (r == 0)
            r = check_pieces(core, model, job, rank, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int make_plan(const struct core *core, const struct core_model *model, const struct core_job *job, const struct arch *arch,
                     struct plan **ret_plan, struct err *err)
{
    /* What is there already keeps its shape; only a load may change it. */
    bool again = core_job_again(job, model);
    struct plan_request request = {
        .tp = again ? model->plan->tp : model->want.tp,
        .multiple_of = again ? model->plan->multiple_of : model->want.multiple_of,
        .strategy = again ? model->plan->strategy : model->want.strategy,
    };
    uint32_t ranks = plan_strategy_ranks(request.strategy) ? plan_strategy_ranks(request.strategy) : request.tp;
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct core_duck *duck = &core->ducks[i];
        if (duck->state != CORE_DUCK_UP || duck->spare)
            continue;
        request.ducks++;
        if (!request.memory_bytes || duck->hello.capacity_bytes < request.memory_bytes)
            request.memory_bytes = duck->hello.capacity_bytes;
    }
    if (!request.ducks)
        return core_err_no_duck(core, err);
    uint32_t all = 0;
    for (uint32_t i = 0; i < core->duck_count; i++)
        all += !core->ducks[i].spare;
    if (ranks > request.ducks && ranks <= all) {
        err_set(err, -EHOSTDOWN, ERR_NOT_READY, "tp %u needs %u ducks, %u of %u %s up", ranks, ranks, request.ducks, all,
                request.ducks == 1 ? "is" : "are");
        err_value_int(err, "tp", ranks);
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

/* Layers that may turn out to be there, once their weights are digested, and all that come from memory: their digests are all that remains
 * of them. True when there is one. */
static bool list_digests(const struct core *core, const struct core_wants *wants, struct core_job *job, const struct checkpoint *checkpoint,
                         struct err *err)
{
    const struct core_model *next = wants->next;
    bool any = false;
    free(job->digest);
    job->digest = calloc(next->arch->layers, sizeof *job->digest);
    if (!job->digest) {
        err_no_memory(err, "list of layers", next->arch->layers);
        return false;
    }
    for (uint32_t layer = 0; layer < next->arch->layers; layer++) {
        if (!in_scope(job, checkpoint, layer))
            continue;
        job->digest[layer] = job->memory && !wants->known[layer];
        for (uint32_t rank = 0; rank < next->plan->tp && !job->digest[layer]; rank++)
            job->digest[layer] = core_wants_candidate(core, wants, next->duck_of_rank[rank], layer, rank);
        any |= job->digest[layer];
        if (job->digest[layer])
            job->total_bytes += 3 * layer_source_bytes(next, layer, next->arch->experts);
    }
    return any;
}

/* The model as the job would make it: plan, key, ducks. What it owns is the caller's. */
static int place(const struct core *core, struct core_job *job, const struct checkpoint *checkpoint, struct core_wants *wants,
                 struct core_model *next, struct err *err)
{
    bool known = checkpoint_model_key(checkpoint, next->arch, next->plan, next->key, NULL) == 0;
    int r = known && job->force ? check_shared(core, wants->model, job, next->key, err) : 0;
    if (r)
        return r;
    next->provisional = !known || job->force;
    if (next->provisional) {
        r = checkpoint_provisional_key(checkpoint, next->arch, next->plan, next->key, err);
        if (r < 0)
            return r;
    }
    return core_assign(core, wants, next->duck_of_rank, err);
}

static size_t plan_total(const struct core_job *job, const struct core_model *next, const struct checkpoint *checkpoint)
{
    size_t layers = 0;
    for (uint32_t layer = 0; layer < next->arch->layers; layer++)
        layers += in_scope(job, checkpoint, layer);
    return layers * next->plan->tp;
}

static int check_scope(const struct core_job *job, const struct core_model *next, const struct checkpoint *checkpoint, struct err *err)
{
    if (job->layer != CORE_NONE && job->layer >= next->arch->layers)
        return core_model_no_layer(next, job->layer, err);
    if (!job->memory || plan_total(job, next, checkpoint))
        return 0;
    return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "the memfd holds no tensor of %s that model %s uses",
                   job->layer == CORE_NONE ? "a layer" : "that layer", next->name);
}

/* A duck of before there were slots of some of a layer's experts takes none. */
static int check_divided(const struct core *core, const struct core_model *next, struct err *err)
{
    char strategy[PLAN_STRATEGY_TEXT];
    for (uint32_t rank = 0; next->plan->groups > 1 && rank < next->plan->tp; rank++) {
        const struct core_duck *duck = &core->ducks[next->duck_of_rank[rank]];
        if (duck->hello.features & WIRE_FEATURE_EXPERTS)
            continue;
        err_set(err, -EPROTO, ERR_BAD_REQUEST, "duck %s runs %s, which knows no strategy but tp: %s needs a newer one there", duck->name,
                duck->hello.software, plan_strategy_name(next->plan->strategy, strategy));
        err_value_str(err, "duck", duck->name);
        return -EPROTO;
    }
    return 0;
}

static int plan_slots(const struct core *core, struct core_job *job, const struct checkpoint *checkpoint, struct core_wants *wants,
                      struct core_model *next, struct err *err)
{
    int r = place(core, job, checkpoint, wants, next, err);
    if (r == 0)
        r = check_divided(core, next, err);
    if (r)
        return r;
    if (!job->digested && list_digests(core, wants, job, checkpoint, err))
        return CORE_PLAN_DIGEST;
    r = list_missing(core, wants, job, checkpoint, err);
    if (r == -ENOSPC && job->force && checkpoint_model_key(checkpoint, next->arch, next->plan, next->key, NULL) == 0) {
        /* No room beside what is there: in its place. */
        struct err beside = {0};
        if (list_missing(core, wants, job, checkpoint, &beside) == 0) {
            *err = (struct err){0};
            r = 0;
        }
    }
    return r == 0 && job->missing_count ? check_shared(core, wants->model, job, next->key, err) : r;
}

int core_load_plan(struct core *core, struct core_job *job, struct arch *arch, const struct checkpoint *checkpoint, struct err *err)
{
    struct core_model *model = &core->models[job->model];
    struct core_model next = *model;
    _cleanup_(plan_freep) struct plan *plan = NULL;
    int r = make_plan(core, model, job, arch, &plan, err);
    if (r < 0)
        return r;
    _cleanup_(freep) uint32_t *duck_of_rank = calloc(plan->tp, sizeof *duck_of_rank);
    if (!duck_of_rank)
        return err_no_memory(err, "ranks", plan->tp * sizeof *duck_of_rank);
    next.arch = arch;
    next.plan = plan;
    next.duck_of_rank = duck_of_rank;
    struct core_wants wants;
    r = check_scope(job, &next, checkpoint, err);
    if (r < 0)
        return r;
    r = core_wants_init(&wants, model, &next, checkpoint, job->force, err);
    if (r < 0)
        return r;
    r = plan_slots(core, job, checkpoint, &wants, &next, err);
    core_wants_release(&wants);
    if (r)
        return r;
    bool same_key = model->plan && memcmp(model->key, next.key, DIGEST_SIZE) == 0;
    size_t total = plan_total(job, &next, checkpoint);
    core_reason(core, model, &next, job, checkpoint, total, next.reason);
    snprintf(next.cache, sizeof next.cache, "%s", !job->missing_count ? "hit" : job->missing_count < total ? "partial" : "miss");

    struct core_placement before = core_placement_take(model);
    bool keep = before.plan && !same_key && model->state == CORE_MODEL_READY && !model->old.plan;
    if (keep)
        next.old = before;
    else
        core_placement_free(&before);
    job->wanted &= keep || same_key; /* there is nothing else to go back to */
    *model = next;
    plan = NULL;
    duck_of_rank = NULL;
    return 0;
}

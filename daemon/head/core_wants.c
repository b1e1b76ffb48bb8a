/* PURE. What of the slots on the ducks a load can keep.
 *
 * A slot fits by its place in the plan and its size; it can stay when it was prepared from the very weights that are wanted. Under the
 * wanted key that is sure. Under another key (of an older version of the model, of a load that was cut) its sources digest decides, and
 * only when no other model uses that key. */
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"

int core_wants_init(struct core_wants *wants, const struct core_model *model, const struct core_model *next,
                    const struct checkpoint *checkpoint, bool force, struct err *err)
{
    uint32_t layers = next->arch->layers;
    *wants = (struct core_wants){.model = model, .next = next, .force = force};
    wants->sources = calloc(layers, sizeof *wants->sources);
    wants->known = calloc(layers, sizeof *wants->known);
    if (!wants->sources || !wants->known) {
        core_wants_release(wants);
        return err_no_memory(err, "list of layers", layers * sizeof *wants->sources);
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        wants->known[layer] = checkpoint_layer_sources(checkpoint, layer, wants->sources[layer]);
        if (plan_slot_sources(next->arch, next->plan, layer, wants->sources[layer]) < 0) {
            core_wants_release(wants);
            return err_no_memory(err, "digest of a slot's sources", 0);
        }
    }
    return 0;
}

void core_wants_release(struct core_wants *wants)
{
    free(wants->sources);
    free(wants->known);
    wants->sources = NULL;
    wants->known = NULL;
}

static bool fits(const struct core_model *next, const struct msg_slot *slot, uint32_t layer, uint32_t rank)
{
    const struct plan_rank *share = &next->plan->ranks[rank];
    bool moe = next->arch->layer_is_moe[layer];
    return slot->state == MSG_SLOT_FINISHED && slot->layer == layer && slot->rank == rank && slot->tp == next->plan->tp &&
           slot->multiple_of == next->plan->multiple_of && slot->kind == (moe ? MSG_SLOT_MOE : MSG_SLOT_DENSE) &&
           slot->bytes == (moe ? share->moe_slot_bytes : share->dense_slot_bytes);
}

static bool is_wanted_key(const struct core_wants *wants, const struct msg_slot *slot)
{
    return memcmp(slot->model_key, wants->next->key, DIGEST_SIZE) == 0;
}

static bool may_take(const struct core *core, const struct core_wants *wants, const struct msg_slot *slot)
{
    return is_wanted_key(wants, slot) || !core_model_sharing(core, wants->model, slot->model_key);
}

const struct msg_slot *core_wants_usable(const struct core *core, const struct core_wants *wants, uint32_t index, uint32_t layer,
                                         uint32_t rank)
{
    const struct core_duck *duck = &core->ducks[index];
    const struct msg_slot *found = NULL;
    if (wants->force || !wants->known[layer] || duck->state != CORE_DUCK_UP)
        return NULL;
    for (size_t i = 0; i < duck->slot_count; i++) {
        const struct msg_slot *slot = &duck->slots[i];
        if (!fits(wants->next, slot, layer, rank) || memcmp(slot->sources, wants->sources[layer], DIGEST_SIZE) != 0)
            continue;
        if (is_wanted_key(wants, slot))
            return slot;
        if (!found && may_take(core, wants, slot))
            found = slot;
    }
    return found;
}

/* Another model's slots are worth a look only when all of its layers may be ours: then it may be the same model from elsewhere. */
static bool likely_same(const struct core *core, const struct core_wants *wants, const uint8_t key[DIGEST_SIZE])
{
    const struct core_model *other = core_model_sharing(core, wants->model, key), *next = wants->next;
    if (!other || !other->plan || memcmp(other->key, key, DIGEST_SIZE) != 0 || other->arch->layers != next->arch->layers ||
        other->plan->tp != next->plan->tp || other->plan->multiple_of != next->plan->multiple_of ||
        !plan_strategy_same(other->plan->strategy, next->plan->strategy))
        return false;
    for (uint32_t layer = 0; layer < next->arch->layers; layer++) {
        const struct msg_slot *slot = core_duck_slot(&core->ducks[other->duck_of_rank[0]], key, layer);
        if (!slot || memcmp(slot->sources, wants->sources[layer], CHECKPOINT_SCALES_DIGEST) != 0)
            return false;
    }
    return true;
}

bool core_wants_candidate(const struct core *core, const struct core_wants *wants, uint32_t index, uint32_t layer, uint32_t rank)
{
    const struct core_duck *duck = &core->ducks[index];
    if (wants->force || wants->known[layer] || duck->state != CORE_DUCK_UP)
        return false;
    for (size_t i = 0; i < duck->slot_count; i++) {
        const struct msg_slot *slot = &duck->slots[i];
        if (fits(wants->next, slot, layer, rank) && memcmp(slot->sources, wants->sources[layer], CHECKPOINT_SCALES_DIGEST) == 0 &&
            (may_take(core, wants, slot) || likely_same(core, wants, slot->model_key)))
            return true;
    }
    return false;
}

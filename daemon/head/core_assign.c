/* PURE. Which duck becomes which rank: one that holds the rank's slots already, else the one with most room. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/size.h"

const struct msg_slot *core_duck_slot(const struct core_duck *duck, const uint8_t key[DIGEST_SIZE], uint32_t layer)
{
    for (size_t i = 0; i < duck->slot_count; i++)
        if (duck->slots[i].layer == layer && memcmp(duck->slots[i].model_key, key, DIGEST_SIZE) == 0)
            return &duck->slots[i];
    return NULL;
}

bool core_model_has_slot(const struct core *core, const struct core_model *model, uint32_t layer, uint32_t rank)
{
    const struct core_duck *duck = &core->ducks[model->duck_of_rank[rank]];
    const struct msg_slot *slot = duck->state == CORE_DUCK_UP ? core_duck_slot(duck, model->key, layer) : NULL;
    return slot && slot->state == MSG_SLOT_FINISHED && slot->rank == rank;
}

/* Slots that a duck has for a rank, or may turn out to have. */
static uint32_t held(const struct core *core, const struct core_wants *wants, uint32_t duck, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t layer = 0; core->ducks[duck].slot_count && layer < wants->next->arch->layers; layer++)
        count += core_wants_usable(core, wants, duck, layer, rank) || core_wants_candidate(core, wants, duck, layer, rank);
    return count;
}

static uint64_t room(const struct core_duck *duck)
{
    return duck->hello.capacity_bytes > duck->used_bytes ? duck->hello.capacity_bytes - duck->used_bytes : 0;
}

static uint32_t most_held(const struct core *core, const struct core_wants *wants, const bool *taken, uint32_t rank)
{
    uint32_t best = CORE_NONE, best_held = 0;
    for (uint32_t i = 0; i < core->duck_count; i++) {
        if (taken[i] || core->ducks[i].state != CORE_DUCK_UP)
            continue;
        uint32_t here = held(core, wants, i, rank);
        if (here > best_held) {
            best = i;
            best_held = here;
        }
    }
    return best;
}

static uint32_t most_room(const struct core *core, const bool *taken)
{
    uint32_t best = CORE_NONE;
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct core_duck *duck = &core->ducks[i];
        if (!taken[i] && duck->state == CORE_DUCK_UP && !duck->spare && (best == CORE_NONE || room(duck) > room(&core->ducks[best])))
            best = i;
    }
    return best;
}

int core_assign(const struct core *core, const struct core_wants *wants, uint32_t *ret_duck_of_rank, struct err *err)
{
    uint32_t tp = wants->next->plan->tp;
    bool taken[CORE_DUCKS_MAX] = {false};
    for (uint32_t rank = 0; rank < tp; rank++) {
        ret_duck_of_rank[rank] = most_held(core, wants, taken, rank);
        if (ret_duck_of_rank[rank] != CORE_NONE)
            taken[ret_duck_of_rank[rank]] = true;
    }
    for (uint32_t rank = 0; rank < tp; rank++) {
        if (ret_duck_of_rank[rank] != CORE_NONE)
            continue;
        uint32_t best = most_room(core, taken);
        if (best == CORE_NONE) {
            uint32_t up = 0;
            for (uint32_t i = 0; i < core->duck_count; i++)
                up += core->ducks[i].state == CORE_DUCK_UP && !core->ducks[i].spare;
            err_set(err, -EHOSTDOWN, ERR_NOT_READY, "tp %u needs %u duck%s, %u of %u %s up", tp, tp, size_plural(tp), up, core->duck_count,
                    up == 1 ? "is" : "are");
            err_value_int(err, "tp", tp);
            err_value_int(err, "up", up);
            return err ? err->code : -EHOSTDOWN;
        }
        ret_duck_of_rank[rank] = best;
        taken[best] = true;
    }
    return 0;
}

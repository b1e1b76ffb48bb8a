#include "daemon/head/core_plan_room.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/size.h"

struct room {
    const struct core_duck *duck;
    uint64_t held, free; /* of its weight buffer: slots that cannot be the plan's, and the rest */
};

/* It may turn out to be of this very plan, loaded or left by an unload: config.json alone does not tell. */
static bool may_be_its(const struct msg_slot *slot, const struct arch *arch, const struct plan *plan)
{
    if (slot->tp != plan->tp || slot->rank >= plan->tp || slot->multiple_of != plan->multiple_of || slot->layer >= arch->layers)
        return false;
    bool moe = arch->layer_is_moe[slot->layer];
    const struct plan_rank *share = &plan->ranks[slot->rank];
    uint64_t bytes = moe ? share->moe_slot_bytes : share->dense_slot_bytes;
    return moe == (slot->kind == MSG_SLOT_MOE) && (slot->bytes == bytes || slot->bytes == size_round_up(bytes, sizeof(uint64_t)));
}

static int most_first(const void *a, const void *b)
{
    const struct room *x = a, *y = b;
    return x->free < y->free ? 1 : x->free > y->free ? -1 : 0;
}

static int largest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

int core_plan_room(const struct core *core, const struct arch *arch, const struct plan *plan, uint64_t *ret_held, struct err *err)
{
    struct room rooms[CORE_DUCKS_MAX];
    uint64_t needs[PLAN_TP_MAX], all = 0;
    uint32_t ducks = 0;
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct core_duck *duck = &core->ducks[i];
        if (duck->spare || !duck->ever_up)
            continue;
        struct room room = {.duck = duck};
        for (size_t slot = 0; slot < duck->slot_count; slot++)
            room.held += may_be_its(&duck->slots[slot], arch, plan) ? 0 : duck->slots[slot].bytes;
        room.free = duck->hello.capacity_bytes > room.held ? duck->hello.capacity_bytes - room.held : 0;
        all += room.held;
        rooms[ducks++] = room;
    }
    *ret_held = all;
    for (uint32_t rank = 0; rank < plan->tp; rank++)
        needs[rank] = plan->ranks[rank].bytes;
    qsort(rooms, ducks, sizeof *rooms, most_first);
    qsort(needs, plan->tp, sizeof *needs, largest_first);
    /* The largest rank to the duck with most room, and so on: what does not fit so fits in no other way. */
    for (uint32_t i = 0; i < plan->tp && i < ducks; i++) {
        const struct core_duck *duck = rooms[i].duck;
        if (needs[i] <= rooms[i].free || needs[i] > duck->hello.capacity_bytes)
            continue;
        static const uint8_t none[DIGEST_SIZE];
        char droppable[256];
        core_list_droppable(core, none, duck, droppable, sizeof droppable);
        err_set(
            err, -ENOSPC, ERR_NO_MEMORY,
            "beside what is on the ducks it does not fit: a rank needs %llu bytes, duck %s has %llu free of %llu, other slots hold %llu: "
            "%s",
            (unsigned long long)needs[i], duck->name, (unsigned long long)rooms[i].free, (unsigned long long)duck->hello.capacity_bytes,
            (unsigned long long)rooms[i].held, droppable);
        return -ENOSPC;
    }
    return 0;
}

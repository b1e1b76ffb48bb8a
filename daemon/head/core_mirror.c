/* PURE. What was known of a duck's slots against what its header says when it comes up. The header is right; the difference is counted for
 * the log, and what is gone is noted with the reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/clock.h"

#define MIRROR_EVERY (1 * CLOCK_NS_PER_S)

void core_duck_was(struct core *core, uint32_t index, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t slot_count)
{
    struct core_duck *duck = &core->ducks[index];
    struct msg_slot *copy = slot_count ? malloc(slot_count * sizeof *copy) : NULL;
    if (slot_count && !copy)
        return; /* then nothing is known */
    if (slot_count)
        memcpy(copy, slots, slot_count * sizeof *copy);
    free(duck->slots);
    duck->slots = copy;
    duck->slot_count = duck->slot_capacity = slot_count;
    duck->hello = *hello;
    duck->mirrored = true;
}

static bool same_slot(const struct msg_slot *a, const struct msg_slot *b)
{
    return a->layer == b->layer && a->rank == b->rank && a->checksum == b->checksum && a->bytes == b->bytes && a->state == b->state &&
           memcmp(a->model_key, b->model_key, DIGEST_SIZE) == 0;
}

static bool among(const struct msg_slot *slot, const struct msg_slot *slots, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (same_slot(slot, &slots[i]))
            return true;
    return false;
}

static void explain_loss(struct core *core, uint32_t index, const struct msg_hello_duck *hello, const struct msg_slot *slot)
{
    const struct core_duck *duck = &core->ducks[index];
    const struct msg_hello_duck *was = &duck->hello;
    const struct core_loss *known = core_loss_find(core, slot->model_key, index, slot->layer);
    bool same_buffer = strcmp(was->boot_id, hello->boot_id) == 0;
    if (same_buffer && known && known->duck == index)
        return; /* fp9d was killed before its mirror followed: why is known better */
    if (same_buffer)
        core_lost(core, slot->model_key, index, slot->layer, "duck %s: slot of layer %u is gone from its header", duck->name, slot->layer);
    else if (was->cores != hello->cores || was->capacity_bytes != hello->capacity_bytes || strcmp(was->isa, hello->isa) != 0)
        core_lost(core, slot->model_key, index, CORE_NONE, "duck %s was replaced (%u cores %s -> %u cores %s, boot id %.8s -> %.8s)",
                  duck->name, was->cores, was->isa, hello->cores, hello->isa, was->boot_id, hello->boot_id);
    else
        core_lost(core, slot->model_key, index, CORE_NONE, "duck %s rebooted, its weight buffer is a new one (boot id %.8s -> %.8s)",
                  duck->name, was->boot_id, hello->boot_id);
}

void core_mirror_compare(struct core *core, uint32_t index, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t count)
{
    struct core_duck *duck = &core->ducks[index];
    duck->mirror_gone = duck->mirror_new = 0;
    duck->mirror_dirty = true;
    if (!duck->mirrored) {
        duck->mirrored = true;
        return;
    }
    for (size_t i = 0; i < duck->slot_count; i++) {
        if (duck->slots[i].state != MSG_SLOT_FINISHED || among(&duck->slots[i], slots, count))
            continue;
        duck->mirror_gone++;
        explain_loss(core, index, hello, &duck->slots[i]);
    }
    for (size_t i = 0; i < count; i++)
        duck->mirror_new += slots[i].state == MSG_SLOT_FINISHED && !among(&slots[i], duck->slots, duck->slot_count);
}

void core_mirror_tick(struct core *core, uint64_t now, uint32_t index)
{
    struct core_duck *duck = &core->ducks[index];
    if (!duck->mirror_dirty || (now - duck->mirror_ns < MIRROR_EVERY && !core->stopping) || !duck->ever_up)
        return;
    duck->mirror_dirty = false;
    duck->mirror_ns = now;
    core_push(core, CORE_ACT_MIRROR, index, 0);
}

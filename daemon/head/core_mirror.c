/* PURE. What was known of a duck's slots against what its header says when it comes up. The header is right; the difference is counted for
 * the log, and what is gone is noted with the reason. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"

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

#define CHANGE_MAX 96

/* What of a duck is another one now: cores and kernels, the weight buffer's size, or both. False: nothing. */
static bool change_text(const struct msg_hello_duck *was, const struct msg_hello_duck *is, char text[CHANGE_MAX])
{
    char before[32], after[32];
    bool cores = was->cores != is->cores || strcmp(was->isa, is->isa) != 0, size = was->capacity_bytes != is->capacity_bytes;
    text[0] = '\0';
    if (cores)
        snprintf(text, CHANGE_MAX, "%u core%s %s -> %u core%s %s", was->cores, was->cores == 1 ? "" : "s", was->isa, is->cores,
                 is->cores == 1 ? "" : "s", is->isa);
    if (size) {
        size_format(was->capacity_bytes, before, sizeof before);
        size_format(is->capacity_bytes, after, sizeof after);
        if (strcmp(before, after) == 0) { /* rounded */
            snprintf(before, sizeof before, "%" PRIu64, was->capacity_bytes);
            snprintf(after, sizeof after, "%" PRIu64 " bytes", is->capacity_bytes);
        }
        size_t used = strlen(text);
        snprintf(text + used, CHANGE_MAX - used, "%sweight buffer %s -> %s", cores ? ", " : "", before, after);
    }
    return cores || size;
}

bool core_duck_ended(const struct core_duck *duck)
{
    return duck->fresh && !duck->ever_up && duck->mirrored;
}

static void explain_loss(struct core *core, uint32_t index, const struct msg_hello_duck *hello, const struct msg_slot *slot)
{
    const struct core_duck *duck = &core->ducks[index];
    const struct msg_hello_duck *was = &duck->hello;
    const struct core_loss *known = core_loss_find(core, slot->model_key, index, slot->layer);
    char change[CHANGE_MAX];
    bool same_buffer = strcmp(was->boot_id, hello->boot_id) == 0;
    if (same_buffer && known && known->duck == index)
        return; /* fp9d was killed before its mirror followed: why is known better */
    if (!same_buffer && core_duck_ended(duck)) {
        core_lost(core, slot->model_key, index, CORE_NONE, "fp9d was restarted and its local ducks' weight buffers ended with it");
        return;
    }
    if (same_buffer)
        core_lost(core, slot->model_key, index, slot->layer, "duck %s: slot of layer %u is gone from its header", duck->name, slot->layer);
    else if (change_text(was, hello, change))
        core_lost(core, slot->model_key, index, CORE_NONE, "duck %s was replaced (%s, boot id %.8s -> %.8s)", duck->name, change,
                  was->boot_id, hello->boot_id);
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

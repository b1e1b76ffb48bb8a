/* PURE. Ducks: started, heard, lost, started again with a growing wait. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/clock.h"

#define FLEET_BACKOFF_FIRST (200 * CLOCK_NS_PER_MS)
#define FLEET_BACKOFF_MAX (30 * CLOCK_NS_PER_S)
#define FLEET_STABLE (2 * CLOCK_NS_PER_S) /* up for so long: the wait starts small again */
#define FLEET_SILENT_HEARTBEATS 3         /* so many heartbeats without a frame: lost */

int core_duck_add(struct core *core, const char *name, bool spare, struct err *err)
{
    if (core->duck_count == CORE_DUCKS_MAX)
        return err_set(err, -E2BIG, ERR_BAD_REQUEST, "duck %s: a fleet has at most %d ducks", name, CORE_DUCKS_MAX);
    if (strlen(name) >= CORE_NAME_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "duck %s: its name is longer than %d bytes", name, CORE_NAME_MAX - 1);
    if (core_duck_find(core, name) != CORE_NONE)
        return err_set(err, -EEXIST, ERR_BAD_REQUEST, "duck %s: there is one of that name already", name);
    struct core_duck *duck = &core->ducks[core->duck_count++];
    snprintf(duck->name, sizeof duck->name, "%s", name);
    duck->spare = spare;
    duck->state = CORE_DUCK_LOST;
    return 0;
}

uint32_t core_duck_find(const struct core *core, const char *name)
{
    for (uint32_t i = 0; i < core->duck_count; i++)
        if (strcmp(core->ducks[i].name, name) == 0)
            return i;
    return CORE_NONE;
}

static void start(struct core *core, uint64_t now, uint32_t index)
{
    struct core_duck *duck = &core->ducks[index];
    duck->state = CORE_DUCK_CONNECTING;
    duck->state_since_ns = now;
    core_push(core, CORE_ACT_START_DUCK, index, 0);
}

void core_start(struct core *core, uint64_t now)
{
    core->started_ns = now;
    for (uint32_t i = 0; i < core->duck_count; i++)
        start(core, now, i);
}

void core_duck_up(struct core *core, uint64_t now, uint32_t index, const struct msg_hello_duck *hello, const struct msg_slot *slots,
                  size_t slot_count)
{
    struct core_duck *duck = &core->ducks[index];
    struct msg_slot *copy = slot_count ? malloc(slot_count * sizeof *copy) : NULL;
    if (slot_count && !copy) {
        core_duck_broken(core, now, index, "out of memory for its list of slots");
        return;
    }
    if (slot_count)
        memcpy(copy, slots, slot_count * sizeof *copy);
    core_mirror_compare(core, index, hello, slots, slot_count);
    free(duck->slots);
    duck->slots = copy;
    duck->slot_count = duck->slot_capacity = slot_count;
    duck->used_bytes = 0;
    for (size_t i = 0; i < slot_count; i++)
        duck->used_bytes += slots[i].bytes;
    duck->hello = *hello;
    duck->room_known = false;
    duck->state = CORE_DUCK_UP;
    duck->ever_up = true;
    duck->up_since_ns = duck->heard_ns = duck->pinged_ns = now;
    duck->lost_reason[0] = '\0';
    core_drop_duck_up(core, index);
    duck->failures = 0;
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        core_model_reconcile(core, now, i);
    core_job_start_queued(core, now);
}

void core_duck_lost(struct core *core, uint64_t now, uint32_t index, const char *reason)
{
    struct core_duck *duck = &core->ducks[index];
    if (duck->state == CORE_DUCK_LOST)
        return;
    bool stable = duck->state == CORE_DUCK_UP && now - duck->up_since_ns >= FLEET_STABLE;
    duck->failures += duck->state == CORE_DUCK_CONNECTING;
    duck->state = CORE_DUCK_LOST;
    duck->state_since_ns = now;
    if (stable || !duck->backoff_ns)
        duck->backoff_ns = FLEET_BACKOFF_FIRST;
    else if (duck->backoff_ns < FLEET_BACKOFF_MAX)
        duck->backoff_ns = duck->backoff_ns * 2 < FLEET_BACKOFF_MAX ? duck->backoff_ns * 2 : FLEET_BACKOFF_MAX;
    duck->start_at_ns = now + duck->backoff_ns;
    duck->rtt_ns = 0;
    snprintf(duck->lost_reason, sizeof duck->lost_reason, "%s", reason);
    core_drop_duck_lost(core, index);
    core_session_duck_lost(core, now, index);
    core_model_duck_lost(core, now, index);
    core_job_start_queued(core, now);
}

void core_duck_room(struct core *core, uint32_t index, uint64_t *ranges, size_t count)
{
    struct core_duck *duck = &core->ducks[index];
    free(duck->ranges);
    duck->ranges = ranges;
    duck->range_count = count;
    duck->room_known = true;
}

void core_duck_broken(struct core *core, uint64_t now, uint32_t duck, const char *reason)
{
    core_push(core, CORE_ACT_STOP_DUCK, duck, 0);
    core_duck_lost(core, now, duck, reason);
}

void core_duck_heard(struct core *core, uint64_t now, uint32_t duck)
{
    core->ducks[duck].heard_ns = now;
}

void core_duck_pong(struct core *core, uint64_t now, uint32_t duck, uint64_t rtt_ns)
{
    core_duck_heard(core, now, duck);
    core->ducks[duck].rtt_ns = rtt_ns;
}

static void tick(struct core *core, uint64_t now, uint32_t index)
{
    struct core_duck *duck = &core->ducks[index];
    char reason[128];
    switch (duck->state) {
    case CORE_DUCK_LOST:
        if (!core->stopping && now >= duck->start_at_ns)
            start(core, now, index);
        break;
    case CORE_DUCK_CONNECTING:
        if (now - duck->state_since_ns < core->conf.start_timeout_ns)
            break;
        snprintf(reason, sizeof reason, "did not answer within %.0f s of its start", (double)core->conf.start_timeout_ns / 1e9);
        core_duck_broken(core, now, index, reason);
        break;
    case CORE_DUCK_UP:
        if (now - duck->heard_ns > FLEET_SILENT_HEARTBEATS * core->conf.heartbeat_ns) {
            snprintf(reason, sizeof reason, "silent for %.1f s", (double)(now - duck->heard_ns) / 1e9);
            core_duck_broken(core, now, index, reason);
        } else if (now - duck->pinged_ns >= core->conf.heartbeat_ns) {
            duck->pinged_ns = now;
            core_push(core, CORE_ACT_PING, index, 0);
        }
        break;
    }
}

void core_tick(struct core *core, uint64_t now)
{
    /* After a stop of fp9d itself (SIGSTOP, suspend) the silence is ours, not theirs. */
    if (core->ticked_ns && now - core->ticked_ns > core->conf.heartbeat_ns)
        for (uint32_t i = 0; i < core->duck_count; i++)
            core->ducks[i].heard_ns = now;
    core->ticked_ns = now;
    core_deadlines(core, now);
    for (uint32_t i = 0; i < core->duck_count; i++)
        tick(core, now, i);
    core_job_start_queued(core, now); /* waiting may be over by time alone */
    for (uint32_t i = 0; i < core->duck_count; i++)
        core_mirror_tick(core, now, i);
}

void core_err_duck_lost(const struct core *core, uint32_t index, const char *phase, uint32_t layer, struct err *err)
{
    const struct core_duck *duck = &core->ducks[index];
    const char *reason = duck->lost_reason[0] ? duck->lost_reason : "not up yet";
    if (strcmp(phase, "idle") == 0) /* nothing was under way, and it may not have been there for long */
        err_set(err, -EHOSTDOWN, ERR_DUCK_LOST, "duck %s is lost: %s", duck->name, reason);
    else if (layer == CORE_NONE)
        err_set(err, -EHOSTDOWN, ERR_DUCK_LOST, "duck %s was lost during %s: %s", duck->name, phase, reason);
    else
        err_set(err, -EHOSTDOWN, ERR_DUCK_LOST, "duck %s was lost during %s of layer %u: %s", duck->name, phase, layer, reason);
    err_value_str(err, "duck", duck->name);
    err_value_str(err, "phase", phase);
    if (layer != CORE_NONE)
        err_value_int(err, "layer", layer);
}

#define NAMED_MAX 4 /* ducks, with their reasons: what a sentence holds */

int core_err_no_duck(const struct core *core, struct err *err)
{
    char text[ERR_MESSAGE_MAX - 256] = "";
    size_t at = 0;
    uint32_t down = 0, named = 0;
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct core_duck *duck = &core->ducks[i];
        if (duck->spare || duck->state == CORE_DUCK_UP)
            continue;
        if (down++ >= NAMED_MAX || at >= sizeof text)
            continue;
        named++;
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s is %s: %.160s", at ? "; " : "", duck->name,
                               core_duck_state_text(duck->state), duck->lost_reason[0] ? duck->lost_reason : "not up yet");
    }
    if (!core->duck_count)
        err_set(err, -EHOSTDOWN, ERR_NOT_READY,
                "no duck is configured (local_ducks in fp9d.conf or --local-ducks says how many to run here, [duck \"NAME\"] where "
                "others are)");
    else if (!down)
        err_set(err, -EHOSTDOWN, ERR_NOT_READY, "no duck but spares: spare = yes on all %u", core->duck_count);
    else if (down > named)
        err_set(err, -EHOSTDOWN, ERR_NOT_READY, "no duck is up: %s; and %u more", text, down - named);
    else
        err_set(err, -EHOSTDOWN, ERR_NOT_READY, "no duck is up: %s", text);
    err_value_int(err, "ducks", core->duck_count);
    return -EHOSTDOWN;
}

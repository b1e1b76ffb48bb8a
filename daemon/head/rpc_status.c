/* status, duck.list, cache.list: reading what the core knows. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/head/cache_db.h"
#include "daemon/head/rpc.h"
#include "daemon/head/timing_json.h"
#include "proto/base/clock.h"

static json_t *duck_json(uint32_t index, const struct core_duck *duck, const char *address)
{
    bool known = duck->ever_up;
    json_t *json =
        json_pack("{s:I, s:s, s:s, s:s, s:b, s:s, s:I, s:I, s:I, s:s, s:s, s:o}", "id", (json_int_t)index, "name", duck->name, "address",
                  address, "state", core_duck_state_text(duck->state), "spare", duck->spare, "isa", known ? duck->hello.isa : "", "cores",
                  (json_int_t)(known ? duck->hello.cores : 0), "capacity_bytes", (json_int_t)(known ? duck->hello.capacity_bytes : 0),
                  "used_bytes", (json_int_t)duck->used_bytes, "boot_id", known ? duck->hello.boot_id : "", "version",
                  known ? duck->hello.software : "", "rtt_us", duck->rtt_ns ? rpc_real((double)duck->rtt_ns / 1e3) : json_null());
    if (duck->lost_reason[0])
        json_object_set_new(json, "reason", json_string(duck->lost_reason));
    return json;
}

static json_t *ducks_json(const struct head *head)
{
    json_t *ducks = json_array();
    for (uint32_t i = 0; i < head->core->duck_count; i++) {
        json_t *duck = duck_json(i, &head->core->ducks[i], peer_address(head->peers[i]));
        if (peer_pid(head->peers[i]))
            json_object_set_new(duck, "pid", json_integer(peer_pid(head->peers[i])));
        const struct peer_counts counts = peer_counts(head->peers[i]);
        json_object_set_new(duck, "channel", json_boolean(peer_has_channel(head->peers[i])));
        json_object_set_new(duck, "channel_steps", json_integer((json_int_t)counts.channel_steps));
        json_object_set_new(duck, "socket_steps", json_integer((json_int_t)counts.socket_steps));
        json_array_append_new(ducks, duck);
    }
    return ducks;
}

int rpc_duck_list(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)err;
    *ret_result = json_pack("{s:o}", "ducks", ducks_json(call->head));
    return 0;
}

int rpc_status(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)err;
    const struct core *core = call->head->core;
    json_int_t sessions = 0, one_shot = 0, jobs = 0;
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        sessions += core->sessions[i].used;
        one_shot += core->sessions[i].used && core->sessions[i].one_shot;
    }
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++)
        jobs += core->jobs[i].used && !core_job_over(&core->jobs[i]);
    *ret_result =
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:s, s:s}", "state", core_state_text(core), "version", FP9_VERSION, "uptime_s",
                  rpc_real((double)(clock_now_ns() - call->head->started_ns) / 1e9), "ducks", ducks_json(call->head), "models",
                  rpc_models_json(call->head), "sessions", sessions, "jobs", jobs, "clients",
                  (json_int_t)control_client_count(call->head->control), "isa", kernels_tier_name(), "kernels", kernels_variant_name());
    json_object_set_new(*ret_result, "one_shot_sessions", json_integer(one_shot));
    json_object_set_new(*ret_result, "persistent_judge", json_boolean(core->conf.persistent_judge));
    json_object_set_new(*ret_result, "timing", timing_json_summary(call->head, NULL, clock_now_ns()));
    return 0;
}

/* Names of the models whose slots these are; none when they are left of an unloaded one or of an older plan. */
static json_t *models_of(const struct core *core, const struct msg_slot *slot)
{
    json_t *names = json_array();
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (core->models[i].used && core->models[i].plan && memcmp(core->models[i].key, slot->model_key, DIGEST_SIZE) == 0)
            json_array_append_new(names, json_string(core->models[i].name));
    return names;
}

static json_t *slot_json(const struct core *core, const struct core_duck *duck, const struct msg_slot *slot)
{
    char key[DIGEST_HEX_SIZE], checksum[17];
    digest_hex(slot->model_key, key);
    snprintf(checksum, sizeof checksum, "%016" PRIx64, slot->checksum);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:o}", "duck", duck->name, "model_key", key, "layer",
                     (json_int_t)slot->layer, "kind", slot->kind == MSG_SLOT_MOE ? "moe" : "dense", "state",
                     slot->state == MSG_SLOT_FINISHED ? "finished" : "filling", "bytes", (json_int_t)slot->bytes, "checksum", checksum,
                     "rank", (json_int_t)slot->rank, "tp", (json_int_t)slot->tp, "multiple_of", (json_int_t)slot->multiple_of, "models",
                     models_of(core, slot));
}

int rpc_cache_list(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)err;
    json_t *slots = json_array();
    const struct core *core = call->head->core;
    for (uint32_t i = 0; i < core->duck_count; i++)
        for (size_t s = 0; core->ducks[i].state == CORE_DUCK_UP && s < core->ducks[i].slot_count; s++)
            json_array_append_new(slots, slot_json(core, &core->ducks[i], &core->ducks[i].slots[s]));
    *ret_result = json_pack("{s:o, s:o, s:o}", "slots", slots, "lost", cache_db_losses_json(call->head), "history",
                            cache_db_history_json(call->head));
    return 0;
}

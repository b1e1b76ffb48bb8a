/* What a load keeps of the slots that are there, and what it says about the others. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim.h"

#define CAPACITY (64u << 20)

static struct core_model *model(struct sim *sim, const char *name)
{
    struct core_model *found = core_model_find(sim->core, name);
    assert_non_null(found);
    return found;
}

static void reason_is(struct sim *sim, const char *cache, const char *words)
{
    const struct core_model *found = model(sim, "tiny");
    assert_string_equal(found->cache, cache);
    if (!strstr(found->reason, words))
        fail_msg("\"%s\" does not hold \"%s\"", found->reason, words);
    assert_int_equal(found->state, CORE_MODEL_READY);
}

/* A load that is refused, called off or broken leaves what its model wants as it was. */
static void test_failed_load_changes_no_wants(void **state)
{
    (void)state;
    static const struct plan_strategy grid = {.width = 2, .groups = 4};
    for (int how = 0; how < 3; how++) {
        struct sim sim;
        sim_start(&sim, 4, CAPACITY);
        sim_load(&sim, "tiny", 3, 64);
        const struct core_want before = model(&sim, "tiny")->want;
        assert_int_equal(before.tp, 3);
        sim.hold_streams = true;
        struct core_load_request request = {
            .path = model(&sim, "tiny")->path, .name = "tiny", .multiple_of = 16, .tp = how ? 4 : 0, .mtp = true};
        if (how == 0)
            request.strategy = grid; /* of 8 ranks */
        uint64_t id;
        assert_int_equal(core_load(sim.core, sim.now, &request, &id, NULL), 0);
        assert_true(model(&sim, "tiny")->want.mtp);
        sim_run(&sim, 10 * SIM_LATENCY);
        assert_int_equal(core_job_over(core_job_find(sim.core, id)), how == 0);
        if (how == 1)
            assert_int_equal(core_job_cancel(sim.core, sim.now, id, NULL, NULL), 0);
        else if (how == 2)
            sim_kill(&sim, model(&sim, "tiny")->duck_of_rank[3], "gone");
        sim_run(&sim, 10 * SIM_LATENCY);
        const struct core_want *after = &model(&sim, "tiny")->want;
        assert_int_equal(after->tp, before.tp);
        assert_int_equal(after->multiple_of, before.multiple_of);
        assert_true(plan_strategy_same(after->strategy, before.strategy));
        assert_false(after->mtp);
        assert_int_equal(model(&sim, "tiny")->plan->tp, 3);
        sim_stop(&sim);
    }
}

/* Files that only look new are digested once; nothing is sent, the key stays. */
static void test_touched(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(sim.rekeys, 12); /* the model key was not known before the weights had been read */
    assert_int_equal(sim.digests, 0);
    uint8_t key[DIGEST_SIZE];
    memcpy(key, model(&sim, "tiny")->key, DIGEST_SIZE);
    assert_false(model(&sim, "tiny")->provisional);

    sim.touched = true;
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->missing_count, 0);
    assert_int_equal(sim.digests, 1);
    assert_int_equal(sim.rekeys, 12);
    reason_is(&sim, "hit", "all 12 slots");
    assert_memory_equal(key, model(&sim, "tiny")->key, DIGEST_SIZE);
    sim_stop(&sim);
}

/* A fine-tune of the last layer: its slots are sent, the others go under the new key, nothing of the old key is left of them. */
static void test_changed_layer(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny");
    uint8_t old[DIGEST_SIZE];
    memcpy(old, model(&sim, "tiny")->key, DIGEST_SIZE);
    sim.touched = true;
    sim.salt = 7;
    sim.salted_from = 3;
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->missing_count, 3);
    for (size_t i = 0; i < job->missing_count; i++)
        assert_int_equal(job->missing[i].layer, 3);
    reason_is(&sim, "partial", "weights changed: model-");
    reason_is(&sim, "partial", "3 of 12 slots were missing");
    assert_memory_not_equal(old, model(&sim, "tiny")->key, DIGEST_SIZE);
    size_t left = 0;
    for (uint32_t i = 0; i < sim.duck_count; i++)
        for (size_t s = 0; s < sim.ducks[i].slot_count; s++)
            left += memcmp(sim.ducks[i].slots[s].model_key, old, DIGEST_SIZE) == 0;
    assert_int_equal(left, 3); /* the old layer 3 */
    struct err err = {0};
    assert_true(core_step_submit(sim.core, sim.now, session, 1, 1, 2, false, &err) < 0);
    assert_string_equal(err_name_text(err.name), "CACHE_STALE");
    sim_stop(&sim);
}

/* The same while another name still uses the old weights: those slots are not taken from it. */
static void test_other_names_keep_theirs(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    sim_load(&sim, "other", 3, 64);
    sim.touched = true;
    sim.salt = 7;
    sim.salted_from = 3;
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->state, CORE_JOB_DONE);
    assert_int_equal(job->missing_count, 12);
    uint64_t session = sim_session(&sim, "other");
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 3, 1, 2, false, NULL), 0);
    assert_int_equal(model(&sim, "other")->state, CORE_MODEL_READY);
    sim_stop(&sim);
}

static void test_force_replaces(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    struct core_load_request force = {.path = model(&sim, "tiny")->path, .name = "tiny", .tp = 3, .multiple_of = 64, .force = true};
    uint64_t id;
    assert_int_equal(core_load(sim.core, sim.now, &force, &id, NULL), 0);
    sim_run(&sim, 20 * SIM_LATENCY);
    const struct core_job *job = core_job_find(sim.core, id);
    assert_int_equal(job->state, CORE_JOB_DONE);
    assert_int_equal(job->missing_count, 12);
    assert_int_equal(sim.rekeys, 24);
    reason_is(&sim, "miss", "prepared anew on request");
    for (uint32_t i = 0; i < sim.duck_count; i++)
        assert_true(sim.ducks[i].slot_count == 4 || sim.ducks[i].slot_count == 0);
    sim_stop(&sim);
}

/* A load that is cut goes on from its finished slots, though the model key is not known yet. */
static void test_cut_and_resumed(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim.hold_streams = true;
    uint64_t id = sim_load_begin(&sim, "tiny", 3, 64);
    sim_stream_slots(&sim, 5);
    assert_int_equal(core_job_cancel(sim.core, sim.now, id, NULL, NULL), 0);
    sim_run(&sim, 0);
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++)
        buf_release(&sim.records[i]); /* nor did the digests reach the database */
    sim.hold_streams = false;
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->state, CORE_JOB_DONE);
    assert_int_equal(job->missing_count, 7);
    reason_is(&sim, "partial", "unfinished: job 1 was cancelled at 1970-");
    sim_stop(&sim);
}

static void test_reboot_and_replacement(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint32_t duck = model(&sim, "tiny")->duck_of_rank[1];
    sim.ducks[duck].slot_count = 0;
    sim.ducks[duck].boots++;
    sim_kill(&sim, duck, "power");
    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    reason_is(&sim, "partial", "rebooted, its weight buffer is a new one (boot id boot-0 -> boot-1) (4 slots)");

    sim.ducks[duck].slot_count = 0;
    sim.ducks[duck].boots++;
    sim.ducks[duck].capacity *= 2;
    sim_kill(&sim, duck, "power");
    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    reason_is(&sim, "partial", "was replaced (weight buffer 64.0 MiB -> 128 MiB, boot id boot-1 -> boot-2) (4 slots)");

    sim.ducks[duck].slot_count--;
    sim_kill(&sim, duck, "bit rot");
    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    reason_is(&sim, "partial", "is gone from its header (1 slot)");
    assert_int_equal(sim.core->ducks[duck].mirror_gone, 1);
    sim_stop(&sim);
}

/* Before a restart of fp9d: what the database holds is compared with what the ducks say. */
static void test_mirror_of_before(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    struct msg_hello_duck hello = sim.core->ducks[0].hello;
    struct msg_slot slots[8];
    memcpy(slots, sim.core->ducks[0].slots, 4 * sizeof slots[0]);
    core_free(sim.core);
    struct core_conf conf = {.heartbeat_ns = CLOCK_NS_PER_S, .start_timeout_ns = 5 * CLOCK_NS_PER_S};
    sim.core = core_new(&conf);
    for (uint32_t i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "local%u", i);
        assert_int_equal(core_duck_add(sim.core, name, false, NULL), 0);
        sim.ducks[i].running = false;
    }
    slots[0].checksum++; /* one row is wrong, one is of a slot that is not there */
    slots[4] = slots[3];
    slots[4].layer = 9;
    core_duck_was(sim.core, 0, &hello, slots, 5);
    core_start(sim.core, sim.now);
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_int_equal(sim.core->ducks[0].mirror_gone, 2);
    assert_int_equal(sim.core->ducks[0].mirror_new, 1);
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->missing_count, 0); /* the ducks' word counts */
    sim_stop(&sim);
}

/* A local duck's buffer may end with fp9d: that is no reboot. One that systemd kept, or a remote one, is another matter. */
static void test_buffers_ended_with_fp9d(void **state)
{
    (void)state;
    for (int fresh = 0; fresh < 2; fresh++) {
        struct sim sim;
        sim_start(&sim, 2, CAPACITY);
        sim_load(&sim, "tiny", 2, 64);
        struct msg_hello_duck hello = sim.core->ducks[0].hello;
        const struct msg_slot slot = sim.core->ducks[0].slots[0];
        const struct core_was was = model(&sim, "tiny")->was;
        core_free(sim.core);
        struct core_conf conf = {.heartbeat_ns = CLOCK_NS_PER_S, .start_timeout_ns = 5 * CLOCK_NS_PER_S};
        sim.core = core_new(&conf);
        assert_int_equal(core_duck_add(sim.core, "local0", false, NULL), 0);
        assert_int_equal(core_duck_add(sim.core, "local1", false, NULL), 0);
        core_duck_was(sim.core, 0, &hello, &slot, 1);
        sim.core->ducks[0].fresh = fresh;
        sim.ducks[0].slot_count = 0;
        sim.ducks[0].boots++;
        sim.ducks[0].running = sim.ducks[1].running = false;
        core_start(sim.core, sim.now);
        struct core_load_request request = {
            .path = FP9_TEST_DATA "/shakespeare-moe-fp8", .name = "tiny", .tp = 2, .multiple_of = 64, .was = &was};
        assert_int_equal(core_restore(sim.core, sim.now, &request, NULL), 0);
        assert_int_equal(core_duck_ended(&sim.core->ducks[0]), fresh);
        sim_run(&sim, 5 * CLOCK_NS_PER_S);
        reason_is(&sim, "partial", fresh ? "fp9d was restarted and its local ducks' weight buffers ended with it" : "duck local0 rebooted");
        assert_false(core_duck_ended(&sim.core->ducks[0]));
        sim_stop(&sim);
    }
}

static void test_invalidated_by(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t drop;
    const char *duck = sim.core->ducks[model(&sim, "tiny")->duck_of_rank[2]].name;
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 17", "tiny", duck, &drop, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    sim_load(&sim, "tiny", 3, 64);
    reason_is(&sim, "partial", "invalidated by uid 17 at 1970-01-01T00:00:0");
    sim_load(&sim, "tiny", 3, 64);
    reason_is(&sim, "hit", "all 12");
    sim_stop(&sim);
}

/* The client of the load hears who has called it off, and why. */
static void test_called_off_by(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t drop;
    sim_start(&sim, 4, CAPACITY);
    sim.hold_streams = true;
    static const char *const words[] = {"since its cache was invalidated by uid 17 at 1970-01-01T00:00:0", "since it was unloaded by uid 4",
                                        "by uid 3", "since fp9d is stopping"};
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++) {
        uint64_t id = sim_load_begin(&sim, "tiny", 3, 64);
        sim_stream_slots(&sim, 2);
        if (i == 0)
            assert_int_equal(core_invalidate(sim.core, sim.now, "uid 17", "tiny", NULL, &drop, NULL), 0);
        else if (i == 1)
            assert_int_equal(core_unload(sim.core, sim.now, "uid 4", "tiny", true, &drop, NULL), 0);
        else if (i == 2)
            assert_int_equal(core_job_cancel(sim.core, sim.now, id, "by uid 3", NULL), 0);
        else
            core_stop(sim.core, sim.now);
        const struct core_job *job = core_job_find(sim.core, id);
        assert_int_equal(job->state, CORE_JOB_CANCELLED);
        assert_int_equal(job->err.name, ERR_CANCELLED);
        if (!strstr(job->err.message, words[i]))
            fail_msg("%s: not in \"%s\"", words[i], job->err.message);
        sim_run(&sim, 10 * SIM_LATENCY);
    }
    assert_int_equal(sim.saved, 0); /* it was never registered */
    sim_stop(&sim);
}

/* What an earlier fp9d was told: the model is there, unloaded, and nothing but a load changes that. */
static void test_stays_unloaded(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t drop, id;
    struct err err = {0};
    sim_start(&sim, 3, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    unsigned saved = sim.saved;
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 17", "tiny", NULL, &drop, NULL), 0);
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_int_equal(sim.saved, saved + 1);
    char unloaded[CORE_WHY_MAX];
    memcpy(unloaded, model(&sim, "tiny")->unloaded, sizeof unloaded);
    assert_non_null(strstr(unloaded, "its cache was invalidated by uid 17 at 1970-"));
    const struct core_was was = model(&sim, "tiny")->was;
    sim_restart(&sim, 0);
    struct core_load_request request = {
        .path = FP9_TEST_DATA "/shakespeare-moe-fp8", .name = "tiny", .tp = 3, .multiple_of = 64, .was = &was, .unloaded = unloaded};
    assert_int_equal(core_restore(sim.core, sim.now, &request, NULL), 0);
    sim_run(&sim, 60 * CLOCK_NS_PER_S);
    assert_int_equal(model(&sim, "tiny")->state, CORE_MODEL_UNLOADED);
    assert_int_equal(model(&sim, "tiny")->job, 0);
    assert_non_null(strstr(model(&sim, "tiny")->error.message, unloaded));
    assert_non_null(strstr(model(&sim, "tiny")->error.message, "; load it again, before: --tp 3 --multiple-of 64 --strategy tp"));
    assert_string_equal(core_state_text(sim.core), "ready");
    struct core_session_request session = {.client = 1, .model = "tiny", .max_tokens = 1};
    assert_true(core_session_open(sim.core, sim.now, &session, &id, &err) < 0);
    assert_int_equal(err.name, ERR_NOT_READY);
    assert_non_null(strstr(err.message, unloaded));
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 18", "tiny", NULL, &drop, NULL), 0); /* once more does no harm */
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_int_equal(sim_load(&sim, "tiny", 3, 64)->state, CORE_JOB_DONE);
    assert_int_equal(model(&sim, "tiny")->state, CORE_MODEL_READY);
    assert_string_equal(model(&sim, "tiny")->unloaded, "");
    sim_stop(&sim);
}

/* fp9d has come back and has not got to the model yet: its slots go all the same, and it stays away. */
static void test_invalidated_before_it_came_back(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        struct sim sim;
        uint64_t drop;
        sim_start(&sim, 3, CAPACITY);
        sim_load(&sim, "tiny", 2, 64);
        const struct core_was was = model(&sim, "tiny")->was;
        sim.ducks[2].refuses_start = true; /* whoever is registered waits for it */
        sim_restart(&sim, 30 * CLOCK_NS_PER_S);
        struct core_load_request request = {
            .path = FP9_TEST_DATA "/shakespeare-moe-fp8", .name = "tiny", .tp = 2, .multiple_of = 64, .was = &was};
        assert_int_equal(core_restore(sim.core, sim.now, &request, NULL), 0);
        sim_run(&sim, CLOCK_NS_PER_S);
        assert_int_equal(model(&sim, "tiny")->state, CORE_MODEL_LOADING);
        assert_null(model(&sim, "tiny")->plan);
        unsigned saved = sim.saved;
        assert_int_equal(core_invalidate(sim.core, sim.now, "uid 17", all ? NULL : "tiny", NULL, &drop, NULL), 0);
        assert_true(drop != 0);
        sim_run(&sim, 60 * CLOCK_NS_PER_S);
        assert_true(sim.last_freed > 0);
        assert_int_equal(model(&sim, "tiny")->state, CORE_MODEL_UNLOADED);
        assert_int_equal(sim.saved, saved + 1);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(sim.ducks[i].slot_count, 0);
        sim_stop(&sim);
    }
}

/* An invalidation that a duck was not there for is applied when it is back, also when fp9d was started anew meanwhile. */
static void test_absent_duck(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint32_t duck = model(&sim, "tiny")->duck_of_rank[0];
    sim.ducks[duck].refuses_start = true;
    sim_kill(&sim, duck, "unplugged");
    uint64_t drop;
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 5", "tiny", NULL, &drop, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.drops_done, 1);
    assert_int_equal(sim.last_unreached, 1);
    assert_int_equal(sim.ducks[duck].slot_count, 4);
    assert_true(sim.core->revoked[0].used);
    struct core_revoked saved = sim.core->revoked[0];
    sim.core->revoked[0].used = false;
    core_revoked_was(sim.core, &saved); /* as after a restart */
    sim.ducks[duck].refuses_start = false;
    sim_run(&sim, 60 * CLOCK_NS_PER_S);
    assert_int_equal(sim.core->ducks[duck].state, CORE_DUCK_UP);
    assert_int_equal(sim.ducks[duck].slot_count, 0);
    assert_false(sim.core->revoked[0].used);
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->missing_count, 12);
    reason_is(&sim, "miss", "invalidated by uid 5");
    sim_stop(&sim);
}

static void test_bad_slot(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    struct core_model *tiny = model(&sim, "tiny");
    uint32_t duck = tiny->duck_of_rank[1];
    core_slot_bad(sim.core, sim.now, duck, tiny->key, 2, "slot checksum wrong: expert 3");
    for (size_t s = 0; s < sim.ducks[duck].slot_count; s++)
        if (sim.ducks[duck].slots[s].layer == 2)
            sim.ducks[duck].slots[s] = sim.ducks[duck].slots[--sim.ducks[duck].slot_count];
    assert_int_equal(tiny->state, CORE_MODEL_DEGRADED);
    assert_string_equal(core_state_text(sim.core), "degraded");
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->missing_count, 1);
    reason_is(&sim, "partial", "layer 2: slot checksum wrong: expert 3 (cache verify at 1970-");
    sim_stop(&sim);
}

static void forget(struct sim_duck *duck, uint32_t layer)
{
    for (size_t s = 0; s < duck->slot_count; s++)
        if (duck->slots[s].layer == layer)
            duck->slots[s] = duck->slots[--duck->slot_count];
}

/* A duck whose header has lost a slot under a loaded model: whoever asks for it first, a step, a session or a verify. */
static void test_slot_gone(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    struct core_model *tiny = model(&sim, "tiny");
    uint32_t duck = tiny->duck_of_rank[1];
    const struct core_session_request open = {.model = "tiny", .max_tokens = 4};
    uint64_t session;
    assert_int_equal(core_session_open(sim.core, sim.now, &open, &session, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 2, 1, 2, false, NULL), 0);
    forget(&sim.ducks[duck], 2);
    struct err stale = {0};
    err_set(&stale, -ESTALE, ERR_CACHE_STALE, "layer 2 has no finished slot here");
    core_step_failed(sim.core, sim.now, duck, session, core_session_find(sim.core, session)->steps[0].id, &stale);
    assert_int_equal(tiny->state, CORE_MODEL_DEGRADED);
    assert_string_equal(core_state_text(sim.core), "degraded");
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->missing_count, 1);
    reason_is(&sim, "partial", "layer 2: the duck has lost the slot (decode at 1970-");
    assert_int_equal(tiny->state, CORE_MODEL_READY);

    sim.ducks[duck].slot_count = 0;
    core_session_failed(sim.core, sim.now, duck, session, &stale);
    assert_int_equal(tiny->state, CORE_MODEL_DEGRADED);
    job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->missing_count, 4);
    assert_int_equal(tiny->state, CORE_MODEL_READY);

    forget(&sim.ducks[duck], 3);
    assert_true(core_slot_gone(sim.core, sim.now, duck, tiny->key, 3, "cache verify"));
    assert_false(core_slot_gone(sim.core, sim.now, duck, tiny->key, 3, "cache verify"));
    job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->missing_count, 1);
    reason_is(&sim, "partial", "layer 3: the duck has lost the slot (cache verify at 1970-");
    sim_stop(&sim);
}

/* Keys of slots that no model uses any more can be named by their first digits. */
static void test_drop_by_key(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    char hex[DIGEST_HEX_SIZE];
    digest_hex(model(&sim, "tiny")->key, hex);
    sim_load(&sim, "tiny", 2, 64);
    uint64_t drop;
    struct err err = {0};
    hex[8] = '\0';
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 0", hex, NULL, &drop, &err), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(model(&sim, "tiny")->state, CORE_MODEL_READY);
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 0", hex, NULL, &drop, &err), -ENOENT);
    hex[5] = '\0';
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 0", hex, NULL, &drop, &err), -ENOENT);
    sim_load(&sim, "tiny", 3, 64);
    reason_is(&sim, "miss", "tp 2 -> 3; invalidated by uid 0");
    sim_stop(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failed_load_changes_no_wants), cmocka_unit_test(test_buffers_ended_with_fp9d),
        cmocka_unit_test(test_touched),          cmocka_unit_test(test_changed_layer),   cmocka_unit_test(test_other_names_keep_theirs),
        cmocka_unit_test(test_force_replaces),   cmocka_unit_test(test_cut_and_resumed), cmocka_unit_test(test_reboot_and_replacement),
        cmocka_unit_test(test_mirror_of_before), cmocka_unit_test(test_invalidated_by),  cmocka_unit_test(test_absent_duck),
        cmocka_unit_test(test_bad_slot),         cmocka_unit_test(test_slot_gone),       cmocka_unit_test(test_drop_by_key),
        cmocka_unit_test(test_called_off_by),    cmocka_unit_test(test_stays_unloaded),
        cmocka_unit_test(test_invalidated_before_it_came_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

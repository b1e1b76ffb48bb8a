/* Ducks that are lost, silent, or never start; what models, sessions and steps make of it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim.h"

#define CAPACITY (64u << 20)

static struct core_model *model(struct sim *sim)
{
    struct core_model *found = core_model_find(sim->core, "tiny");
    assert_non_null(found);
    return found;
}

static void test_load_hit_and_reasons(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    assert_string_equal(core_state_text(sim.core), "ready");
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(job->state, CORE_JOB_DONE);
    assert_string_equal(model(&sim)->cache, "miss");
    assert_int_equal(job->missing_count, 12);
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY);
    assert_int_equal(sim.saved, 1);

    job = sim_load(&sim, "tiny", 3, 64);
    assert_string_equal(model(&sim)->cache, "hit");
    assert_int_equal(job->missing_count, 0);

    sim_load(&sim, "tiny", 2, 64);
    assert_string_equal(model(&sim)->reason, "tp 3 -> 2");
    sim_load(&sim, "tiny", 2, 32);
    assert_string_equal(model(&sim)->reason, "multiple_of 64 -> 32");
    sim_load(&sim, "tiny", 3, 64);
    assert_string_equal(model(&sim)->cache, "hit"); /* the first plan's slots are still there */
    sim_stop(&sim);
}

static void test_refused_load_leaves_the_loaded_model(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny");
    const struct core_job *job = sim_load(&sim, "tiny", 4, 64);
    assert_int_equal(job->state, CORE_JOB_FAILED);
    assert_string_equal(err_name_text(job->err.name), "BAD_SHAPE");
    assert_string_equal(job->err.message,
                        "moe_intermediate_size 192 = 3 units of 64: tp is at most 3; 128 allows 2, 32 allows 6, 16 allows 12, 8 allows 24");
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 1, 1, 2, false, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    sim_stop(&sim);
}

static void test_capacity(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 2, 1u << 20); /* a rank of two needs about 2.2 MB */
    const struct core_job *job = sim_load(&sim, "tiny", 2, 64);
    assert_int_equal(job->state, CORE_JOB_FAILED);
    assert_string_equal(err_name_text(job->err.name), "NO_MEMORY");
    assert_int_equal(sim.ducks[0].slot_count, 0);
    sim_stop(&sim);
}

static void test_duck_lost_while_idle(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    sim_kill(&sim, 1, "its process was killed by signal 9 (Killed)");
    assert_int_equal(model(&sim)->state, CORE_MODEL_DEGRADED);
    assert_string_equal(core_state_text(sim.core), "degraded");
    struct core_session_request request = {.model = "tiny", .max_tokens = 1};
    uint64_t session;
    struct err err = {0};
    assert_true(core_session_open(sim.core, sim.now, &request, &session, &err) < 0);
    assert_string_equal(err_name_text(err.name), "DUCK_LOST");
    assert_non_null(strstr(err.message, "local1"));
    assert_non_null(strstr(err.message, "signal 9"));
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY); /* its buffer kept the slots */
    assert_string_equal(core_state_text(sim.core), "ready");
    sim_stop(&sim);
}

static void test_duck_lost_with_its_slots(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny");
    sim_kill(&sim, 2, "gone");
    sim.ducks[2].slot_count = 0;
    sim.hold_streams = true;
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_int_equal(model(&sim)->state, CORE_MODEL_RECOVERING);
    assert_string_equal(core_state_text(sim.core), "recovering");
    struct err err = {0};
    assert_true(core_step_submit(sim.core, sim.now, session, 0, 1, 0, false, &err) < 0);
    assert_string_equal(err_name_text(err.name), "NOT_READY");
    assert_int_equal(core_job_find(sim.core, sim.streaming)->missing_count, 4); /* only the lost rank's */
    sim_stream_slots(&sim, 4);
    sim_stream_end(&sim);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 0, 1, 0, false, NULL), 0); /* the old session, opened again */
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    sim_stop(&sim);
}

static void test_duck_lost_during_a_step(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny");
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 2, 1, 2, false, NULL), 0);
    uint64_t old_step = core_session_find(sim.core, session)->steps[0].id;
    sim_run(&sim, 0);
    sim_kill(&sim, 0, "its process was killed by signal 9 (Killed)");
    assert_int_equal(sim.steps_failed, 1);
    assert_string_equal(sim.last_step_err.message,
                        "duck local0 was lost during decode of layer 2: its process was killed by signal 9 (Killed)");
    sim_run(&sim, CLOCK_NS_PER_S); /* the other two ducks' answers come late and are dropped */
    assert_int_equal(sim.steps_done, 0);

    assert_int_equal(core_step_submit(sim.core, sim.now, session, 2, 1, 2, false, NULL), 0);
    struct msg_step_done stale = {.duck_time_ns = 1};
    core_step_result(sim.core, sim.now, 1, session, old_step, &stale);
    assert_int_equal(core_session_find(sim.core, session)->steps[0].waiting, 3);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    sim_stop(&sim);
}

static void test_duck_lost_during_prepare(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim.hold_streams = true;
    uint64_t id = sim_load_begin(&sim, "tiny", 3, 64);
    sim_stream_slots(&sim, 5);
    sim_kill(&sim, 2, "its process was killed by signal 9 (Killed)");
    const struct core_job *job = core_job_find(sim.core, id);
    assert_int_equal(job->state, CORE_JOB_FAILED);
    assert_string_equal(job->err.message, "duck local2 was lost during prepare of layer 1: its process was killed by signal 9 (Killed)");
    sim.hold_streams = false;
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY); /* it went on with what was missing by itself */
    assert_string_equal(model(&sim)->reason, "unfinished: job 1 failed: duck local2 was lost during prepare of layer 1: its process was "
                                             "killed by signal 9 (Killed) (7 slots); 7 of 12 slots were missing");
    assert_string_equal(model(&sim)->cache, "partial");
    sim_stop(&sim);
}

static void test_silent_duck(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 2, CAPACITY);
    sim_load(&sim, "tiny", 2, 64);
    sim_run(&sim, 10 * CLOCK_NS_PER_S);
    assert_int_equal(sim.ducks[1].starts, 1);
    sim.ducks[1].mute = true;
    sim_run(&sim, 2 * CLOCK_NS_PER_S);
    assert_int_equal(sim.core->ducks[1].state, CORE_DUCK_UP); /* a long kernel is no loss */
    sim_run(&sim, 3 * CLOCK_NS_PER_S);
    assert_true(strstr(sim.core->ducks[1].lost_reason, "silent") || sim.ducks[1].starts == 2);
    sim.ducks[1].mute = false;
    sim_run(&sim, 10 * CLOCK_NS_PER_S);
    assert_int_equal(sim.core->ducks[1].state, CORE_DUCK_UP);
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY);
    sim_stop(&sim);
}

static void test_fp9d_itself_was_stopped(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 2, CAPACITY);
    sim_run(&sim, 2 * CLOCK_NS_PER_S);
    sim.now += 60 * CLOCK_NS_PER_S; /* no tick, no frame was handled meanwhile */
    sim.ticked = sim.now;
    core_tick(sim.core, sim.now);
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_int_equal(sim.ducks[0].starts, 1);
    assert_int_equal(sim.ducks[1].starts, 1);
    sim_stop(&sim);
}

static void test_backoff(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 1, CAPACITY);
    sim.ducks[0].refuses_start = true;
    sim_kill(&sim, 0, "gone");
    sim_run(&sim, 600 * CLOCK_NS_PER_S);
    assert_in_range(sim.ducks[0].starts, 20, 30); /* 0.2 s doubling to 30 s */
    sim.ducks[0].refuses_start = false;
    sim_run(&sim, 60 * CLOCK_NS_PER_S);
    assert_int_equal(sim.core->ducks[0].state, CORE_DUCK_UP);
    unsigned starts = sim.ducks[0].starts;
    sim_kill(&sim, 0, "gone"); /* was up for long: the wait is short again */
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_int_equal(sim.ducks[0].starts, starts + 1);
    assert_int_equal(sim.core->ducks[0].state, CORE_DUCK_UP);
    sim_stop(&sim);
}

static void test_unload_and_invalidate(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny"), drop = 0;
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 0", "tiny", NULL, &drop, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.drops_done, 1);
    assert_true(sim.last_freed > 3u << 20);
    assert_int_equal(model(&sim)->state, CORE_MODEL_UNLOADED);
    assert_int_equal(sim.core->ducks[0].used_bytes, 0);
    struct err err = {0};
    assert_true(core_step_submit(sim.core, sim.now, session, 0, 1, 0, false, &err) < 0);
    assert_non_null(strstr(err.message, "invalidated"));

    sim_load(&sim, "tiny", 3, 64);
    assert_string_equal(model(&sim)->cache, "miss");
    sim_kill(&sim, 1, "gone");
    assert_int_equal(core_unload(sim.core, sim.now, "uid 0", "tiny", true, &drop, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.last_unreached, 1);
    assert_null(core_model_find(sim.core, "tiny"));
    assert_int_equal(sim.forgotten, 1);
    assert_true(core_unload(sim.core, sim.now, "uid 0", "tiny", false, &drop, &err) < 0);
    assert_string_equal(err_name_text(err.name), "NO_SUCH");
    assert_true(core_invalidate(sim.core, sim.now, "uid 0", NULL, "local9", &drop, &err) < 0);
    sim_stop(&sim);
}

/* Two names, one set of slots. */
static void test_shared_slots(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    const struct core_job *job = sim_load(&sim, "twin", 3, 64);
    assert_int_equal(job->state, CORE_JOB_DONE);
    assert_string_equal(core_model_find(sim.core, "twin")->cache, "hit");

    struct core_load_request force = {.path = model(&sim)->path, .name = "twin", .tp = 3, .multiple_of = 64, .force = true};
    uint64_t id, drop;
    assert_int_equal(core_load(sim.core, sim.now, &force, &id, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_string_equal(err_name_text(core_job_find(sim.core, id)->err.name), "BUSY"); /* not under tiny's feet */
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY);

    assert_int_equal(core_unload(sim.core, sim.now, "uid 0", "twin", true, &drop, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(drop, 0); /* nothing was freed: tiny lives on */
    assert_int_equal(sim.ducks[0].slot_count, 4);

    sim_load(&sim, "twin", 3, 64);
    assert_int_equal(core_invalidate(sim.core, sim.now, "uid 0", "twin", NULL, &drop, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(model(&sim)->state, CORE_MODEL_UNLOADED); /* both are gone and say so */
    assert_int_equal(core_model_find(sim.core, "twin")->state, CORE_MODEL_UNLOADED);
    sim_stop(&sim);
}

/* A load by another plan that fails or is cancelled half way leaves the model, and its sessions, as they were. */
static void test_failed_reload_returns(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny");
    sim.hold_streams = true;
    uint64_t id = sim_load_begin(&sim, "tiny", 2, 64);
    sim_stream_slots(&sim, 3);
    assert_int_equal(model(&sim)->state, CORE_MODEL_LOADING);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 1, 1, 2, false, NULL), 0); /* sessions go on meanwhile */
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    struct err err = {0};
    err_set(&err, -EINVAL, ERR_BAD_CHECKPOINT, "a NaN code");
    core_stream_ended(sim.core, sim.now, id, NULL, &err);
    sim_run(&sim, 0);
    assert_int_equal(core_job_find(sim.core, id)->state, CORE_JOB_FAILED);
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY);
    assert_int_equal(model(&sim)->plan->tp, 3);

    id = sim_load_begin(&sim, "tiny", 2, 64);
    assert_int_equal(core_job_cancel(sim.core, sim.now, id, NULL, NULL), 0);
    sim_run(&sim, 0);
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 1, 1, 2, false, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 2);

    sim.hold_streams = false;
    sim_load(&sim, "tiny", 2, 64);
    assert_int_equal(model(&sim)->plan->tp, 2);
    assert_true(core_step_submit(sim.core, sim.now, session, 1, 1, 2, false, &err) < 0); /* now its slots are not the model's any more */
    assert_string_equal(err_name_text(err.name), "CACHE_STALE");
    sim_stop(&sim);
}

/* fp9d starts, and one duck is late: what was registered waits for it. */
static void test_restored_model_waits_for_a_late_duck(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim.ducks[2].refuses_start = true;
    sim_kill(&sim, 2, "gone");
    struct core_load_request request = {.path = FP9_TEST_DATA "/shakespeare-moe-fp8", .name = "tiny", .tp = 3, .multiple_of = 64};
    assert_int_equal(core_restore(sim.core, sim.now, &request, NULL), 0);
    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    assert_int_equal(model(&sim)->state, CORE_MODEL_DEGRADED);
    assert_string_equal(model(&sim)->error.message, "tp 3 needs 3 ducks, 2 of 3 are up");
    assert_string_equal(core_state_text(sim.core), "degraded");
    sim.ducks[2].refuses_start = false;
    sim_run(&sim, 60 * CLOCK_NS_PER_S);
    assert_int_equal(model(&sim)->state, CORE_MODEL_READY);
    sim_stop(&sim);
}

/* fp9d starts anew while a duck that holds slots cannot be reached: what is registered waits for it for a while and then makes do. */
static void test_restored_model_waits_for_its_slots(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct sim sim;
        sim_start(&sim, 4, CAPACITY);
        sim_load(&sim, "tiny", 2, 64);
        uint32_t holder = model(&sim)->duck_of_rank[1];
        sim.ducks[holder].refuses_start = true;
        sim_restart(&sim, 10 * CLOCK_NS_PER_S);
        struct core_load_request request = {.path = FP9_TEST_DATA "/shakespeare-moe-fp8", .name = "tiny", .tp = 2, .multiple_of = 64};
        assert_int_equal(core_restore(sim.core, sim.now, &request, NULL), 0);
        sim_run(&sim, 5 * CLOCK_NS_PER_S);
        assert_int_equal(model(&sim)->state, CORE_MODEL_LOADING);
        /* A load that somebody has typed does not wait. */
        uint64_t job = sim_load_begin(&sim, "typed", 1, 64);
        sim_run(&sim, 20 * SIM_LATENCY);
        assert_int_equal(core_job_find(sim.core, job)->state, CORE_JOB_DONE);
        assert_int_equal(model(&sim)->state, CORE_MODEL_LOADING);
        sim.ducks[holder].refuses_start = late;
        sim_run(&sim, 25 * CLOCK_NS_PER_S);
        assert_int_equal(model(&sim)->state, CORE_MODEL_READY);
        assert_int_equal(model(&sim)->duck_of_rank[1] == holder, !late);
        assert_string_equal(model(&sim)->cache, late ? "partial" : "hit");
        sim_stop(&sim);
    }
}

/* A duck that has just died is started again at once: a load that comes meanwhile waits that moment, and no longer. */
static void test_load_waits_for_a_duck_that_blinked(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    sim_kill(&sim, 1, "gone");
    uint64_t job = sim_load_begin(&sim, "tiny", 3, 64);
    sim_run(&sim, 20 * SIM_LATENCY);
    assert_int_equal(core_job_find(sim.core, job)->state, CORE_JOB_QUEUED);
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_int_equal(core_job_find(sim.core, job)->state, CORE_JOB_DONE);
    sim.ducks[1].refuses_start = true;
    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    sim_kill(&sim, 1, "gone");
    job = sim_load_begin(&sim, "other", 3, 32);
    sim_run(&sim, 2 * CLOCK_NS_PER_S);
    assert_int_equal(core_job_find(sim.core, job)->state, CORE_JOB_FAILED);
    assert_string_equal(core_job_find(sim.core, job)->err.message, "tp 3 needs 3 ducks, 2 of 3 are up");
    sim_stop(&sim);
}

/* Whoever has configured ducks is told what is wrong with them, and not how to configure some. */
static void test_load_without_a_duck(void **state)
{
    (void)state;
    static const struct {
        uint32_t ducks;
        bool spare;
        const char *message;
    } cases[] = {
        {0, false,
         "no duck is configured (local_ducks in fp9d.conf or --local-ducks says how many to run here, [duck \"NAME\"] where others are)"},
        {2, false,
         "no duck is up: local0 is lost: 10.0.0.1:7909: Connection refused; local1 is lost: 10.0.0.2:7909: Connection refused"},
        {6, false,
         "no duck is up: local0 is lost: 10.0.0.1:7909: Connection refused; local1 is lost: 10.0.0.2:7909: Connection refused; "
         "local2 is lost: 10.0.0.3:7909: Connection refused; local3 is lost: 10.0.0.4:7909: Connection refused; and 2 more"},
        {2, true, "no duck but spares: spare = yes on all 2"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sim sim;
        sim_start(&sim, cases[c].ducks, CAPACITY);
        for (uint32_t i = 0; i < cases[c].ducks; i++) {
            char reason[64];
            snprintf(reason, sizeof reason, "10.0.0.%u:7909: Connection refused", i + 1);
            sim.ducks[i].refuses_start = true;
            core_duck_lost(sim.core, sim.now, i, reason);
            sim.core->ducks[i].backoff_ns = CLOCK_NS_PER_S * 3600; /* long gone, so that nothing waits for them */
            sim.core->ducks[i].spare = cases[c].spare;
        }
        uint64_t id = sim_load_begin(&sim, "tiny", 1, 64);
        assert_int_equal(core_job_find(sim.core, id)->state, CORE_JOB_FAILED);
        assert_int_equal(core_job_find(sim.core, id)->err.name, ERR_NOT_READY);
        assert_string_equal(core_job_find(sim.core, id)->err.message, cases[c].message);
        sim_stop(&sim);
    }
}

static void test_names(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 1, CAPACITY);
    struct err err = {0};
    uint64_t id;
    struct core_load_request request = {.path = "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\u00e9\u00e9"};
    assert_true(core_load(sim.core, sim.now, &request, &id, &err) < 0); /* never cut in the middle of a character */
    assert_non_null(strstr(err.message, "--name"));
    request.name = "bad\xc3";
    assert_true(core_load(sim.core, sim.now, &request, &id, &err) < 0);
    assert_non_null(strstr(err.message, "UTF-8"));
    sim_stop(&sim);
}

static void test_cancel(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim.hold_streams = true;
    uint64_t job = sim_load_begin(&sim, "tiny", 3, 64);
    assert_int_equal(core_job_cancel(sim.core, sim.now, job, NULL, NULL), 0);
    sim_run(&sim, 0);
    assert_int_equal(core_job_find(sim.core, job)->state, CORE_JOB_CANCELLED);
    assert_true(core_job_cancel(sim.core, sim.now, job, NULL, NULL) < 0);
    /* It was never ready, so the fleet lacks nothing. */
    assert_int_equal(model(&sim)->state, CORE_MODEL_FAILED);
    assert_string_equal(core_state_text(sim.core), "ready");
    sim.hold_streams = false;
    assert_int_equal(sim_load(&sim, "tiny", 3, 64)->state, CORE_JOB_DONE);
    sim_stop(&sim);
}

/* The first load of a model that fails is that load's affair; that of a registered one, which people count on, is the fleet's. */
static void test_failed_load_of_a_new_and_of_a_registered_model(void **state)
{
    (void)state;
    for (int registered = 0; registered < 2; registered++) {
        struct sim sim;
        sim_start(&sim, 3, CAPACITY);
        sim.hold_streams = true;
        struct core_load_request request = {.path = FP9_TEST_DATA "/shakespeare-moe-fp8", .name = "tiny", .tp = 3, .multiple_of = 64};
        if (registered)
            assert_int_equal(core_restore(sim.core, sim.now, &request, NULL), 0);
        else
            sim_load_begin(&sim, "tiny", 3, 64);
        sim_run(&sim, 20 * SIM_LATENCY);
        uint64_t id = model(&sim)->job;
        assert_int_equal(model(&sim)->state, CORE_MODEL_LOADING);
        assert_string_equal(core_state_text(sim.core), registered ? "recovering" : "ready");
        struct err err = {0};
        err_set(&err, -EINVAL, ERR_BAD_CHECKPOINT, "a NaN code");
        core_stream_ended(sim.core, sim.now, id, NULL, &err);
        sim_run(&sim, 0);
        assert_int_equal(core_job_find(sim.core, id)->state, CORE_JOB_FAILED);
        assert_int_equal(model(&sim)->state, CORE_MODEL_FAILED);
        assert_string_equal(core_state_text(sim.core), registered ? "degraded" : "ready");
        sim_stop(&sim);
    }
}

/* A long prefill goes out in chunks and comes back whole. */
static void test_chunks(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    struct core_session_request request = {.client = 1, .model = "tiny", .max_tokens = 4096};
    uint64_t session;
    assert_int_equal(core_session_open(sim.core, sim.now, &request, &session, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 1, 4096, 2, true, NULL), 0);
    sim_run(&sim, 100 * SIM_LATENCY);
    const struct core_step *step = &core_session_find(sim.core, session)->steps[0];
    assert_int_equal(sim.steps_done, 1);
    assert_int_equal(step->chunks, 8); /* 512 at a time */
    assert_int_equal(step->params, 8 * 3 * 10);
    assert_int_equal(step->judge_wait_ns, 8 * SIM_LATENCY);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 1, 0, 2, true, NULL), 0); /* nothing to do is done at once */
    sim_run(&sim, 0);
    assert_int_equal(sim.steps_done, 2);
    sim_stop(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_hit_and_reasons),
        cmocka_unit_test(test_refused_load_leaves_the_loaded_model),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_duck_lost_while_idle),
        cmocka_unit_test(test_duck_lost_with_its_slots),
        cmocka_unit_test(test_duck_lost_during_a_step),
        cmocka_unit_test(test_duck_lost_during_prepare),
        cmocka_unit_test(test_silent_duck),
        cmocka_unit_test(test_fp9d_itself_was_stopped),
        cmocka_unit_test(test_backoff),
        cmocka_unit_test(test_unload_and_invalidate),
        cmocka_unit_test(test_shared_slots),
        cmocka_unit_test(test_failed_reload_returns),
        cmocka_unit_test(test_restored_model_waits_for_a_late_duck),
        cmocka_unit_test(test_restored_model_waits_for_its_slots),
        cmocka_unit_test(test_load_waits_for_a_duck_that_blinked),
        cmocka_unit_test(test_load_without_a_duck),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_failed_load_of_a_new_and_of_a_registered_model),
        cmocka_unit_test(test_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

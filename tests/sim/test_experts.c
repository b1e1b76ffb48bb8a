/* Divided experts in virtual time: whom steps go to, what the loss of a duck does to them, what a load keeps. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim.h"

#define SPACE (64u << 20)
#define TOP_K 2
#define CHUNK 512 /* tokens of a chunk */

/* The trained checkpoint has 8 experts: over four ducks two each, expert e on rank e / 2. */
static uint64_t ep4(struct sim *sim)
{
    sim_start(sim, 4, SPACE);
    uint64_t job = sim_load_begin_as(sim, "tiny", PLAN_EP, 4, 32);
    sim_run(sim, 10 * SIM_LATENCY);
    assert_int_equal(core_job_find(sim->core, job)->state, CORE_JOB_DONE);
    struct core_session_request request = {.client = 1, .model = "tiny", .max_tokens = 4 * CHUNK, .lanes = 4};
    uint64_t session;
    assert_int_equal(core_session_open(sim->core, sim->now, &request, &session, NULL), 0);
    sim_run(sim, 5 * SIM_LATENCY);
    assert_int_equal(sim->sessions_ready, 1);
    return session;
}

static int submit(struct sim *sim, uint64_t session, const int32_t *ids, uint32_t tokens, struct err *err)
{
    return core_step_submit_routed(sim->core, sim->now, session, 1, tokens, TOP_K, ids, tokens > 1, err);
}

static const struct core_model *model(struct sim *sim)
{
    return core_model_find(sim->core, "tiny");
}

static uint32_t owner(struct sim *sim, uint32_t expert)
{
    return model(sim)->duck_of_rank[expert / 2];
}

static void test_only_owners_are_asked(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = ep4(&sim);
    const struct core_step *step = &core_session_find(sim.core, session)->steps[0];
    static const int32_t ids[][TOP_K] = {{0, 1}, {0, 7}, {5, -1}, {4, 4}};
    static const uint32_t asked[] = {1, 2, 1, 1};
    for (size_t i = 0; i < ARRAY_LENGTH(ids); i++) {
        /* Whoever is not asked may be as slow as he likes. */
        for (uint32_t duck = 0; duck < 4; duck++)
            sim.ducks[duck].idle = true;
        for (size_t k = 0; k < TOP_K; k++)
            if (ids[i][k] >= 0)
                sim.ducks[owner(&sim, (uint32_t)ids[i][k])].idle = false;
        assert_int_equal(submit(&sim, session, ids[i], 1, NULL), 0);
        assert_int_equal(step->waiting, asked[i]);
        sim_run(&sim, 3 * SIM_LATENCY);
        assert_int_equal(sim.steps_done, i + 1);
        assert_int_equal(step->params, 10 * asked[i]); /* what those did that were asked */
        for (uint32_t duck = 0; duck < 4; duck++)
            sim.ducks[duck].idle = false;
    }
    /* Nobody: done at once. And a dense layer is everybody's. */
    static const int32_t nobody[TOP_K] = {-1, -1};
    assert_int_equal(submit(&sim, session, nobody, 1, NULL), 0);
    sim_run(&sim, 0);
    assert_int_equal(sim.steps_done, ARRAY_LENGTH(ids) + 1);
    assert_int_equal(step->judge_wait_ns, 0);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 0, 1, 0, false, NULL), 0);
    assert_int_equal(step->waiting, 4);
    sim_run(&sim, 3 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, ARRAY_LENGTH(ids) + 2);
    assert_int_equal(sim.steps_failed, 0);
    sim_stop(&sim);
}

static void test_an_answer_of_one_that_was_not_asked(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = ep4(&sim);
    const struct core_step *step = &core_session_find(sim.core, session)->steps[0];
    static const int32_t ids[TOP_K] = {2, 3};
    const struct msg_step_done done = {.duck_time_ns = 1000, .params = 10};
    assert_int_equal(submit(&sim, session, ids, 1, NULL), 0);
    core_step_result(sim.core, sim.now, owner(&sim, 6), session, step->id, &done);
    assert_int_equal(step->waiting, 1);
    assert_int_equal(step->params, 0);
    sim_run(&sim, 3 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    sim_stop(&sim);
}

/* A prefill's chunks each go to the owners of their own tokens' experts. */
static void test_chunks(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = ep4(&sim);
    const struct core_step *step = &core_session_find(sim.core, session)->steps[0];
    static int32_t ids[4 * CHUNK][TOP_K];
    for (size_t t = 0; t < 4 * CHUNK; t++) {
        ids[t][0] = t < CHUNK ? 0 : t < 2 * CHUNK ? -1 : t < 3 * CHUNK ? 7 : (int32_t)(t % 8);
        ids[t][1] = t / CHUNK == 1 ? -1 : ids[t][0];
    }
    assert_int_equal(submit(&sim, session, ids[0], 4 * CHUNK, NULL), 0);
    assert_int_equal(step->waiting, 1);
    sim_run(&sim, 20 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    assert_int_equal(step->chunks, 4);
    assert_int_equal(step->params, 10 * (1 + 0 + 1 + 4));
    assert_int_equal(step->judge_wait_ns, 3 * SIM_LATENCY); /* nobody was waited for in the second */
    sim_stop(&sim);
}

static void test_loss_of_an_owner(void **state)
{
    (void)state;
    struct sim sim;
    struct err err = {0};
    uint64_t session = ep4(&sim);
    const struct core_session *known = core_session_find(sim.core, session);
    static const int32_t low[TOP_K] = {0, 1}, high[TOP_K] = {6, 7}, both[TOP_K] = {1, 6};
    uint32_t lost = owner(&sim, 6);
    sim.ducks[lost].refuses_start = true;
    assert_int_equal(submit(&sim, session, low, 1, NULL), 0);
    assert_int_equal(submit(&sim, session, high, 1, NULL), 0);
    assert_int_equal(submit(&sim, session, both, 1, NULL), 0);
    sim_run(&sim, 0);
    sim_kill(&sim, lost, "gone");
    /* The steps that it was asked for end by its name; the one beside them does not. */
    assert_int_equal(sim.steps_failed, 2);
    assert_int_equal(sim.last_step_err.name, ERR_DUCK_LOST);
    assert_non_null(strstr(sim.last_step_err.message, sim.core->ducks[lost].name));
    assert_true(known->steps[0].running);
    sim_run(&sim, 3 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    /* While it is gone: who needs it is told at once, who does not goes on. */
    assert_string_equal(core_model_state_text(model(&sim)->state), "degraded");
    assert_true(submit(&sim, session, both, 1, &err) < 0);
    assert_int_equal(err.name, ERR_DUCK_LOST);
    assert_true(core_step_submit(sim.core, sim.now, session, 0, 1, 0, false, &err) < 0); /* a dense layer */
    assert_int_equal(submit(&sim, session, low, 1, NULL), 0);
    sim_run(&sim, 3 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 2);
    assert_int_equal(sim.steps_failed, 2);
    /* Back with its slots: the same session, all experts. */
    sim.ducks[lost].refuses_start = false;
    sim_run(&sim, 120 * CLOCK_NS_PER_S);
    assert_string_equal(core_model_state_text(model(&sim)->state), "ready");
    assert_int_equal(submit(&sim, session, both, 1, NULL), 0);
    sim_run(&sim, 3 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 3);
    sim_stop(&sim);
}

/* Lost while a prefill's other chunks are under way: the chunk that comes to need it ends the step. */
static void test_loss_before_a_later_chunk(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = ep4(&sim);
    static int32_t ids[2 * CHUNK][TOP_K];
    for (size_t t = 0; t < 2 * CHUNK; t++)
        ids[t][0] = ids[t][1] = t < CHUNK ? 0 : 7;
    assert_int_equal(submit(&sim, session, ids[0], 2 * CHUNK, NULL), 0);
    sim_run(&sim, 0);
    uint32_t lost = owner(&sim, 7);
    sim.ducks[lost].refuses_start = true;
    sim_kill(&sim, lost, "gone");
    assert_int_equal(sim.steps_failed, 0);
    sim_run(&sim, 3 * SIM_LATENCY);
    assert_int_equal(sim.steps_failed, 1);
    assert_int_equal(sim.last_step_err.name, ERR_DUCK_LOST);
    assert_non_null(strstr(sim.last_step_err.message, "prefill"));
    sim_stop(&sim);
}

static void test_deadline_names_who_was_asked(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = ep4(&sim);
    static const int32_t ids[TOP_K] = {4, 5};
    uint32_t silent = owner(&sim, 4);
    char words[160];
    for (uint32_t duck = 0; duck < 4; duck++)
        sim.ducks[duck].idle = true;
    assert_int_equal(submit(&sim, session, ids, 1, NULL), 0);
    core_step_deadline(sim.core, sim.now, session, 0, 100);
    sim_run(&sim, 200 * CLOCK_NS_PER_MS);
    assert_int_equal(sim.steps_failed, 1);
    snprintf(words, sizeof words, "duck %s had not answered decode of layer 1 when its deadline of 100 ms passed",
             sim.core->ducks[silent].name);
    assert_string_equal(sim.last_step_err.message, words);
    for (uint32_t duck = 0; duck < 4; duck++)
        assert_int_equal(sim.ducks[duck].cancels + sim.ducks[duck].stray_cancels, duck == silent); /* the others have nothing to stop */
    sim_stop(&sim);
}

/* Another division makes other slots; the dense layer's stay. */
static void test_what_another_strategy_keeps(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = ep4(&sim);
    uint8_t key[DIGEST_SIZE];
    memcpy(key, model(&sim)->key, DIGEST_SIZE);
    const struct plan_strategy both = {.width = 2, .groups = 2};
    sim_load_begin_as(&sim, "tiny", both, 0, 32);
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_string_equal(core_model_state_text(model(&sim)->state), "ready");
    assert_string_equal(model(&sim)->cache, "partial");
    assert_non_null(strstr(model(&sim)->reason, "strategy ep -> tp2xep2"));
    assert_non_null(strstr(model(&sim)->reason, "12 of 16 slots were missing"));
    assert_memory_not_equal(model(&sim)->key, key, DIGEST_SIZE);
    assert_int_equal(core_session_find(sim.core, session)->err.name, ERR_CACHE_STALE);
    /* And back, where all are still there. */
    sim_load_begin_as(&sim, "tiny", PLAN_EP, 4, 32);
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_string_equal(model(&sim)->cache, "hit");
    assert_memory_equal(model(&sim)->key, key, DIGEST_SIZE);
    sim_stop(&sim);
}

/* While the next plan is prepared, sessions of the one before go on by its owners. */
static void test_sessions_go_on_by_their_own_owners(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = ep4(&sim);
    static const int32_t ids[TOP_K] = {7, 7};
    sim.hold_streams = true;
    sim_load_begin_as(&sim, "tiny", PLAN_TP, 2, 64);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(model(&sim)->plan->tp, 2);
    assert_int_equal(submit(&sim, session, ids, 1, NULL), 0);
    const struct core_session *known = core_session_find(sim.core, session);
    assert_int_equal(known->steps[0].waiting, 1);
    assert_true(known->steps[0].asked[3]);
    sim_run(&sim, 3 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    sim_stop(&sim);
}

static void test_old_ducks_take_no_part_of_a_layer(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 4, SPACE);
    sim_kill(&sim, 2, "upgraded the wrong way");
    sim.ducks[2].old = true;
    sim_run(&sim, 60 * CLOCK_NS_PER_S);
    uint64_t job = sim_load_begin_as(&sim, "tiny", PLAN_EP, 4, 32);
    sim_run(&sim, 10 * SIM_LATENCY);
    const struct core_job *ended = core_job_find(sim.core, job);
    assert_int_equal(ended->state, CORE_JOB_FAILED);
    assert_non_null(strstr(ended->err.message, "duck local2 runs sim, which knows no strategy but tp"));
    assert_int_equal(sim_load(&sim, "tiny", 4, 32)->state, CORE_JOB_DONE);
    sim_stop(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_owners_are_asked),
        cmocka_unit_test(test_an_answer_of_one_that_was_not_asked),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_loss_of_an_owner),
        cmocka_unit_test(test_loss_before_a_later_chunk),
        cmocka_unit_test(test_deadline_names_who_was_asked),
        cmocka_unit_test(test_what_another_strategy_keeps),
        cmocka_unit_test(test_sessions_go_on_by_their_own_owners),
        cmocka_unit_test(test_old_ducks_take_no_part_of_a_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Steps in virtual time: deadlines, late answers. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/sim/sim.h"

#define SPACE (64u << 20)

static void submit(struct sim *sim, uint64_t session, uint32_t layer, bool prefill, uint32_t deadline_ms)
{
    struct err err = {0};
    uint32_t lane = core_session_lane(core_session_find(sim->core, session));
    if (core_step_submit(sim->core, sim->now, session, layer, 1, layer ? 2 : 0, prefill, &err) < 0)
        fail_msg("%s", err.message);
    core_step_deadline(sim->core, sim->now, session, lane, deadline_ms);
}

static void one_good_step(struct sim *sim, uint64_t session)
{
    unsigned done = sim->steps_done, failed = sim->steps_failed;
    submit(sim, session, 2, false, 50);
    sim_run(sim, 10 * SIM_LATENCY);
    assert_int_equal(sim->steps_done, done + 1);
    assert_int_equal(sim->steps_failed, failed);
}

static void test_passed(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, SPACE);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny");
    /* It hears, it answers pings, it never answers a step: nothing but the deadline ends that. */
    sim.ducks[1].idle = sim.ducks[2].idle = true;
    submit(&sim, session, 3, true, 250);
    uint64_t begun = sim.now;
    sim_run(&sim, 249 * CLOCK_NS_PER_MS);
    assert_int_equal(sim.steps_failed, 0);
    sim_run(&sim, CLOCK_NS_PER_MS);
    assert_int_equal(sim.now - begun, 250 * CLOCK_NS_PER_MS);
    assert_int_equal(sim.steps_failed, 1);
    assert_int_equal(sim.last_step_err.name, ERR_DEADLINE);
    assert_string_equal(sim.last_step_err.message,
                        "duck local1 had not answered prefill of layer 3 when its deadline of 250 ms passed, nor have 1 more");
    assert_non_null(strstr(sim.last_step_err.values, "\"layer\":3"));
    assert_non_null(strstr(sim.last_step_err.values, "\"duck\":\"local1\""));
    assert_non_null(strstr(sim.last_step_err.values, "\"phase\":\"prefill\""));
    /* A minute later the duck is still up, and a step of it ends in time all the same. */
    sim_run(&sim, 60 * CLOCK_NS_PER_S);
    assert_int_equal(sim.core->ducks[1].state, CORE_DUCK_UP);
    sim.ducks[1].idle = sim.ducks[2].idle = false;
    one_good_step(&sim, session);
    assert_int_equal(sim.ducks[1].starts, 1);
    sim_stop(&sim);
}

static void test_late_answers_are_dropped(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 3, SPACE);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny");
    sim.ducks[0].lagging = true;
    submit(&sim, session, 1, false, 20);
    sim_run(&sim, 30 * CLOCK_NS_PER_MS);
    assert_int_equal(sim.steps_failed, 1);
    /* The next step is sent while the late answer is still out; only its own answers count. */
    submit(&sim, session, 2, false, 1000);
    sim_run(&sim, 5 * SIM_LATENCY);
    const struct core_session *known = core_session_find(sim.core, session);
    assert_true(known->steps[0].running);
    assert_int_equal(known->steps[0].waiting, 1);
    sim.ducks[0].lagging = false;
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    assert_int_equal(sim.steps_failed, 1);
    assert_int_equal(known->steps_done, 1);
    sim_stop(&sim);
}

/* What a duck says of a step that was given up, or says twice, is nothing to the step at hand. */
static void test_only_its_own_answers_count(void **state)
{
    (void)state;
    struct sim sim;
    struct err late = {0};
    const struct msg_step_done done = {.duck_time_ns = 1000, .params = 10, .weight_bytes = 11};
    sim_start(&sim, 3, SPACE);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny");
    const struct core_step *step = &core_session_find(sim.core, session)->steps[0];
    sim.ducks[0].lagging = true;
    submit(&sim, session, 1, false, 20);
    sim_run(&sim, 0);
    uint64_t old = step->id;
    sim_run(&sim, 30 * CLOCK_NS_PER_MS);
    assert_int_equal(sim.steps_failed, 1);
    submit(&sim, session, 2, false, 1000);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(step->waiting, 1);
    uint64_t params = step->params;
    err_set(&late, -EIO, ERR_INTERNAL, "late");
    for (uint32_t duck = 0; duck < 3; duck++) {
        core_step_result(sim.core, sim.now, duck, session, old, &done);
        core_step_failed(sim.core, sim.now, duck, session, old, &late);
    }
    core_step_result(sim.core, sim.now, 1, session, step->id, &done);
    assert_true(step->running);
    assert_int_equal(step->waiting, 1);
    assert_int_equal(step->params, params);
    assert_int_equal(sim.steps_failed, 1);
    sim.ducks[0].lagging = false;
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    assert_int_equal(sim.steps_failed, 1);
    sim_stop(&sim);
}

static unsigned cancels(const struct sim *sim)
{
    unsigned all = 0;
    for (uint32_t duck = 0; duck < sim->duck_count; duck++) {
        all += sim->ducks[duck].cancels;
        assert_int_equal(sim->ducks[duck].stray_cancels, 0);
    }
    return all;
}

/* Whatever ends a step early, the ducks that work on it are told, and only they. */
static void test_ducks_are_told(void **state)
{
    (void)state;
    struct sim sim;
    struct err refused = {0};
    err_set(&refused, -EINVAL, ERR_BAD_SHAPE, "no");
    sim_start(&sim, 3, SPACE);
    sim_load(&sim, "tiny", 3, 64);
    uint64_t session = sim_session(&sim, "tiny"), other = sim_session(&sim, "tiny");
    const struct core_step *step = &core_session_find(sim.core, session)->steps[0];
    /* Nothing goes wrong: nobody is told anything. */
    one_good_step(&sim, session);
    assert_int_equal(cancels(&sim), 0);
    /* By the client, before any duck has answered. What ducks say of it afterwards is nothing to the next step. */
    submit(&sim, session, 1, true, 0);
    submit(&sim, other, 1, true, 0);
    sim_run(&sim, 0);
    core_step_cancel(sim.core, session, 0, "cancelled by its client");
    core_step_cancel(sim.core, session, 0, "twice");
    sim_run(&sim, 0);
    assert_int_equal(cancels(&sim), 3);
    assert_int_equal(sim.steps_failed, 1);
    assert_int_equal(sim.last_step_err.name, ERR_CANCELLED);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 2); /* the other's */
    one_good_step(&sim, session);
    core_step_cancel(sim.core, session, 0, "there is none");
    core_step_cancel(sim.core, 4711, 0, "nor such a session");
    sim_run(&sim, SIM_LATENCY);
    assert_int_equal(cancels(&sim), 3);
    /* Who has answered is not told: not the duck that refused it, which is why it ends. */
    submit(&sim, session, 1, false, 0);
    sim_run(&sim, 0);
    core_step_failed(sim.core, sim.now, 1, session, step->id, &refused);
    sim_run(&sim, 0);
    assert_int_equal(sim.ducks[1].cancels, 1);
    assert_int_equal(cancels(&sim), 5);
    sim_run(&sim, 5 * SIM_LATENCY);
    /* By its deadline. A version without STEP_CANCEL is not told. */
    sim.core->ducks[2].hello.features = 0;
    submit(&sim, session, 1, false, 1);
    sim_run(&sim, 0);
    const struct msg_step_done done = {.duck_time_ns = 1000};
    core_step_result(sim.core, sim.now, 0, session, step->id, &done);
    sim.now += CLOCK_NS_PER_MS;
    core_deadlines(sim.core, sim.now);
    sim_run(&sim, 0);
    assert_int_equal(sim.last_step_err.name, ERR_DEADLINE);
    assert_int_equal(cancels(&sim), 6);
    assert_int_equal(sim.ducks[1].cancels, 2);
    sim.core->ducks[2].hello.features = WIRE_FEATURE_CANCEL;
    sim_run(&sim, 5 * SIM_LATENCY);
    /* By the loss of a duck: the others. */
    submit(&sim, session, 1, false, 0);
    sim_run(&sim, 0);
    sim_kill(&sim, 0, "gone");
    assert_int_equal(cancels(&sim), 8);
    assert_int_equal(sim.ducks[0].cancels, 2);
    sim_stop(&sim);
}

static void test_none_and_in_time(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 2, SPACE);
    sim_load(&sim, "tiny", 2, 64);
    uint64_t session = sim_session(&sim, "tiny");
    one_good_step(&sim, session);
    assert_int_not_equal(sim.core->deadline_ns, 0); /* the alarm of a step that is over may still ring, for nothing */
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_int_equal(sim.core->deadline_ns, 0);
    assert_int_equal(sim.steps_failed, 0);
    sim.ducks[1].idle = true;
    submit(&sim, session, 2, false, 0);
    sim_run(&sim, 3600 * CLOCK_NS_PER_S);
    assert_int_equal(sim.steps_failed, 0);
    assert_true(core_session_find(sim.core, session)->steps[0].running);
    sim_stop(&sim);
}

static void test_each_its_own(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 2, SPACE);
    sim_load(&sim, "tiny", 2, 64);
    uint64_t sessions[3];
    static const uint32_t deadlines[] = {300, 100, 200};
    for (size_t i = 0; i < 3; i++)
        sessions[i] = sim_session(&sim, "tiny");
    sim.ducks[0].idle = true;
    uint64_t begun = sim.now;
    for (size_t i = 0; i < 3; i++)
        submit(&sim, sessions[i], 1, false, deadlines[i]);
    for (unsigned failed = 1; failed <= 3; failed++) {
        sim_run(&sim, begun + failed * 100 * CLOCK_NS_PER_MS - sim.now);
        assert_int_equal(sim.steps_failed, failed);
    }
    sim_stop(&sim);
}

/* The loss of a duck ends a step before its deadline, and by its own name. */
static void test_loss_comes_first(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 2, SPACE);
    sim_load(&sim, "tiny", 2, 64);
    uint64_t session = sim_session(&sim, "tiny");
    sim.ducks[0].idle = true;
    submit(&sim, session, 1, false, 500);
    sim_run(&sim, 100 * CLOCK_NS_PER_MS);
    sim_kill(&sim, 0, "gone");
    assert_int_equal(sim.steps_failed, 1);
    assert_int_equal(sim.last_step_err.name, ERR_DUCK_LOST);
    sim.ducks[0].idle = false;
    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    assert_int_equal(sim.steps_failed, 1);
    one_good_step(&sim, session);
    sim_stop(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passed),
        cmocka_unit_test(test_late_answers_are_dropped),
        cmocka_unit_test(test_only_its_own_answers_count),
        cmocka_unit_test(test_ducks_are_told),
        cmocka_unit_test(test_none_and_in_time),
        cmocka_unit_test(test_each_its_own),
        cmocka_unit_test(test_loss_comes_first),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
#ifdef EXPECT_FAILURE /* the mutated build: had nothing failed, the tests would prove nothing */
    fflush(NULL);
    _exit(failed == 0); /* a test that failed left its simulation behind: no leak of ours, and not to be looked for */
#else
    return failed;
#endif
}

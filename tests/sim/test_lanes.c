/* Several steps of one session in flight: in any order, each on its own, and what ends one, some or all of them. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim.h"

#define CAPACITY (64u << 20)

static uint64_t open_session(struct sim *sim, uint32_t lanes, uint32_t max_tokens)
{
    struct core_session_request request = {.client = 1, .model = "tiny", .max_tokens = max_tokens, .lanes = lanes};
    uint64_t session = 0;
    assert_int_equal(core_session_open(sim->core, sim->now, &request, &session, NULL), 0);
    sim_run(sim, 5 * SIM_LATENCY);
    return session;
}

static uint64_t begin(struct sim *sim, uint32_t lanes)
{
    sim_start(sim, 3, CAPACITY);
    sim_load(sim, "tiny", 3, 64);
    return open_session(sim, lanes, 4);
}

static const struct core_session *find(struct sim *sim, uint64_t session)
{
    const struct core_session *found = core_session_find(sim->core, session);
    assert_non_null(found);
    return found;
}

static int submit(struct sim *sim, uint64_t session, uint32_t layer, struct err *err)
{
    int r = core_step_submit(sim->core, sim->now, session, layer, 1, 2, false, err);
    sim_run(sim, 0);
    return r;
}

static void test_one_more_than_lanes_is_busy(void **state)
{
    (void)state;
    struct sim sim;
    struct err err = {0};
    begin(&sim, 1);
    for (uint32_t lanes = 1; lanes <= CORE_LANES_MAX; lanes++) {
        uint64_t session = open_session(&sim, lanes, 4);
        unsigned done = sim.steps_done;
        for (uint32_t i = 0; i < lanes; i++)
            assert_int_equal(submit(&sim, session, 1 + i % 3, NULL), 0);
        assert_int_equal(core_session_in_flight(find(&sim, session)), lanes);
        assert_int_equal(submit(&sim, session, 1, &err), -EBUSY);
        assert_string_equal(err_name_text(err.name), "BUSY");
        char words[64];
        snprintf(words, sizeof words, ": %u of its steps %s in flight", lanes, lanes == 1 ? "is" : "are");
        assert_non_null(strstr(err.message, words));
        snprintf(words, sizeof words, "\"lanes\":%u", lanes);
        assert_non_null(strstr(err.values, words));
        sim_run(&sim, 5 * SIM_LATENCY);
        assert_int_equal(sim.steps_done, done + lanes);
        assert_int_equal(submit(&sim, session, 1, NULL), 0);
        core_session_close(sim.core, session);
        sim_run(&sim, 5 * SIM_LATENCY);
    }
    sim_stop(&sim);
}

static void test_lanes_asked_for(void **state)
{
    (void)state;
    struct sim sim;
    struct err err = {0};
    sim_start(&sim, 3, CAPACITY);
    sim_load(&sim, "tiny", 3, 64);
    assert_int_equal(find(&sim, open_session(&sim, 0, 4))->lanes, CORE_LANES_DEFAULT);
    struct core_session_request request = {.client = 1, .model = "tiny", .max_tokens = 4, .lanes = CORE_LANES_MAX + 1};
    uint64_t session;
    assert_int_equal(core_session_open(sim.core, sim.now, &request, &session, &err), -EINVAL);
    assert_string_equal(err.message, "lanes 9: must be 1 to 8");
    sim_stop(&sim);
}

/* A decode overtakes a prefill of several chunks that was sent before it. */
static void test_any_order(void **state)
{
    (void)state;
    struct sim sim;
    begin(&sim, 1);
    uint64_t session = open_session(&sim, 2, 4096);
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 1, 2048, 2, true, NULL), 0);
    assert_int_equal(submit(&sim, session, 2, NULL), 0);
    sim_run(&sim, SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    assert_int_equal(sim.last_done_lane, 1);
    assert_int_equal(submit(&sim, session, 3, NULL), 0); /* into the lane that is free again */
    sim_run(&sim, SIM_LATENCY);
    assert_int_equal(sim.steps_done, 2);
    assert_int_equal(sim.last_done_lane, 1);
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 3);
    assert_int_equal(sim.last_done_lane, 0);
    const struct core_session *found = find(&sim, session);
    assert_int_equal(found->steps[0].layer, 1);
    assert_int_equal(found->steps[0].chunks, 4);
    assert_int_equal(found->steps[0].params, 4 * 3 * 10);
    assert_int_equal(found->steps[1].params, 3 * 10);
    assert_int_equal(found->steps_done, 3);
    sim_stop(&sim);
}

static void test_duck_lost_with_two_in_flight(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = begin(&sim, 3);
    assert_int_equal(submit(&sim, session, 1, NULL), 0);
    assert_int_equal(submit(&sim, session, 2, NULL), 0);
    uint64_t old[] = {find(&sim, session)->steps[0].id, find(&sim, session)->steps[1].id};
    sim_kill(&sim, 1, "gone");
    assert_int_equal(sim.steps_failed, 2); /* the lane without a step has nothing to tell */
    assert_string_equal(find(&sim, session)->steps[0].err.message, "duck local1 was lost during decode of layer 1: gone");
    assert_string_equal(find(&sim, session)->steps[1].err.message, "duck local1 was lost during decode of layer 2: gone");
    assert_int_equal(core_session_in_flight(find(&sim, session)), 0);
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_int_equal(sim.steps_done, 0);

    for (int i = 0; i < 3; i++)
        assert_int_equal(submit(&sim, session, 3, NULL), 0);
    struct msg_step_done stale = {.duck_time_ns = 1};
    for (int i = 0; i < 2; i++)
        core_step_result(sim.core, sim.now, 1, session, old[i], &stale);
    for (int i = 0; i < 3; i++)
        assert_int_equal(find(&sim, session)->steps[i].waiting, 3);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 3);
    assert_int_equal(sim.steps_failed, 2);
    sim_stop(&sim);
}

/* What one duck refuses of one step is the end of that step only. */
static void test_one_fails(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = begin(&sim, 2);
    assert_int_equal(submit(&sim, session, 1, NULL), 0);
    assert_int_equal(submit(&sim, session, 2, NULL), 0);
    struct err refused = {0};
    err_set(&refused, -EINVAL, ERR_BAD_SHAPE, "no");
    core_step_failed(sim.core, sim.now, 2, session, find(&sim, session)->steps[0].id, &refused);
    sim_run(&sim, 0);
    assert_int_equal(sim.steps_failed, 1);
    assert_string_equal(sim.last_step_err.message, "duck local2: no");
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    assert_int_equal(sim.last_done_lane, 1);
    sim_stop(&sim);
}

static void test_cancel_of_one(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = begin(&sim, 2);
    assert_int_equal(submit(&sim, session, 1, NULL), 0);
    assert_int_equal(submit(&sim, session, 2, NULL), 0);
    core_step_cancel(sim.core, session, 0, "the step was cancelled");
    core_step_cancel(sim.core, session, 7, "there is no such lane"); /* nothing happens */
    sim_run(&sim, 0);
    assert_int_equal(sim.steps_failed, 1);
    assert_string_equal(err_name_text(sim.last_step_err.name), "CANCELLED");
    assert_non_null(strstr(sim.last_step_err.message, "the step was cancelled"));
    assert_int_equal(submit(&sim, session, 3, NULL), 0); /* before the ducks have answered the cancelled one */
    sim_run(&sim, SIM_LATENCY);
    assert_int_equal(sim.steps_done, 2);
    assert_int_equal(find(&sim, session)->steps[0].params, 30); /* nothing of the cancelled step's was added */
    core_step_cancel(sim.core, session, 0, "too late");
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_failed, 1);
    sim_stop(&sim);
}

static void test_deadline_of_one(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = begin(&sim, 3);
    sim.ducks[1].idle = true;
    for (uint32_t lane = 0; lane < 3; lane++) {
        assert_int_equal(submit(&sim, session, 1 + lane, NULL), 0);
        core_step_deadline(sim.core, sim.now, session, lane, lane == 1 ? 20 : lane == 2 ? 40 : 0);
    }
    sim_run(&sim, 20 * CLOCK_NS_PER_MS);
    assert_int_equal(sim.steps_failed, 1);
    assert_string_equal(sim.last_step_err.message, "duck local1 had not answered decode of layer 2 when its deadline of 20 ms passed");
    sim_run(&sim, 20 * CLOCK_NS_PER_MS);
    assert_int_equal(sim.steps_failed, 2);
    assert_string_equal(sim.last_step_err.message, "duck local1 had not answered decode of layer 3 when its deadline of 40 ms passed");
    sim_run(&sim, CLOCK_NS_PER_S);
    assert_true(find(&sim, session)->steps[0].running);
    assert_int_equal(sim.steps_failed, 2);
    sim_stop(&sim);
}

static void test_client_gone(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session = begin(&sim, 2);
    assert_int_equal(submit(&sim, session, 1, NULL), 0);
    assert_int_equal(submit(&sim, session, 2, NULL), 0);
    uint64_t old = find(&sim, session)->steps[0].id;
    core_session_close(sim.core, session);
    uint64_t next = open_session(&sim, 2, 4); /* takes the same place */
    assert_null(core_session_find(sim.core, session));
    assert_int_equal(sim.steps_done, 0);
    struct msg_step_done stale = {.duck_time_ns = 1};
    core_step_result(sim.core, sim.now, 0, session, old, &stale);
    assert_int_equal(submit(&sim, next, 1, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    sim_stop(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_more_than_lanes_is_busy),
        cmocka_unit_test(test_lanes_asked_for),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_duck_lost_with_two_in_flight),
        cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_cancel_of_one),
        cmocka_unit_test(test_deadline_of_one),
        cmocka_unit_test(test_client_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

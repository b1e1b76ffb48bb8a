/* Jobs that are no loads, limits, and jobs of earlier lives, in virtual time. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/wire/wire.h"
#include "tests/sim/sim.h"

#define SPACE (64u << 20)

static uint64_t batch(struct sim *sim, uint64_t session, uint64_t tokens)
{
    uint64_t job = 0;
    struct err err = {0};
    if (core_batch_begin(sim->core, sim->now, session, true, 2, tokens, &job, &err) < 0)
        fail_msg("%s", err.message);
    return job;
}

static void step(struct sim *sim, uint64_t session, uint32_t tokens)
{
    struct err err = {0};
    if (core_step_submit(sim->core, sim->now, session, 2, tokens, 2, true, &err) < 0)
        fail_msg("%s", err.message);
}

static void begin(struct sim *sim, uint64_t *ret_session)
{
    sim_start(sim, 2, SPACE);
    sim_load(sim, "tiny", 2, 64);
    *ret_session = sim_session(sim, "tiny");
}

static void test_batch_is_done_with_its_tokens(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session;
    begin(&sim, &session);
    const struct core_job *job = core_job_find(sim.core, batch(&sim, session, 20));
    assert_int_equal(job->state, CORE_JOB_RUNNING);
    assert_string_equal(job->kind, "prefill");
    assert_string_equal(job->model_name, "tiny");
    for (unsigned done = 8; done <= 16; done += 8) {
        step(&sim, session, 8);
        sim_run(&sim, 5 * SIM_LATENCY);
        assert_int_equal(job->done_tokens, done);
        assert_int_equal(job->state, CORE_JOB_RUNNING);
        assert_true(core_job_progress(job) > done / 20.0 - 1e-9 && core_job_progress(job) < done / 20.0 + 1e-9);
    }
    step(&sim, session, 4);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(job->state, CORE_JOB_DONE);
    core_session_close(sim.core, session);
    assert_int_equal(job->state, CORE_JOB_DONE);
    sim_stop(&sim);
}

static void test_batch_cancelled(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session;
    begin(&sim, &session);
    uint64_t other = sim_session(&sim, "tiny"), id = batch(&sim, session, 20);
    step(&sim, session, 8);
    sim_run(&sim, 0);
    assert_int_equal(core_job_cancel(sim.core, sim.now, id, NULL, NULL), 0);
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_int_equal(sim.steps_failed, 1);
    assert_int_equal(sim.last_step_err.name, ERR_CANCELLED);
    assert_int_equal(core_job_find(sim.core, id)->state, CORE_JOB_CANCELLED);
    struct err err = {0};
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 2, 8, 2, true, &err), -ECANCELED);
    assert_int_equal(err.name, ERR_CANCELLED);
    assert_int_equal(core_job_cancel(sim.core, sim.now, id, NULL, &err), -EALREADY);
    /* Others feel nothing of it. */
    step(&sim, other, 8);
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, 1);
    sim_stop(&sim);
}

static void test_batch_ends_with_its_session(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session;
    begin(&sim, &session);
    const struct core_job *job = core_job_find(sim.core, batch(&sim, session, 20));
    step(&sim, session, 8);
    sim_run(&sim, 5 * SIM_LATENCY);
    core_session_close(sim.core, session);
    assert_int_equal(job->state, CORE_JOB_CANCELLED);
    assert_non_null(strstr(job->err.message, "its client left after 8 of 20 tokens"));

    session = sim_session(&sim, "tiny");
    job = core_job_find(sim.core, batch(&sim, session, 20));
    step(&sim, session, 8);
    sim_run(&sim, 0);
    sim_kill(&sim, 1, "gone");
    core_session_close(sim.core, session);
    assert_int_equal(job->state, CORE_JOB_FAILED);
    assert_int_equal(job->err.name, ERR_DUCK_LOST);

    /* Between two steps: the next one is refused, and that is why. */
    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    session = sim_session(&sim, "tiny");
    job = core_job_find(sim.core, batch(&sim, session, 20));
    step(&sim, session, 8);
    sim_run(&sim, 5 * SIM_LATENCY);
    sim_kill(&sim, 1, "gone");
    struct err err = {0};
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 2, 8, 2, true, &err), -EHOSTDOWN);
    core_session_close(sim.core, session);
    assert_int_equal(job->state, CORE_JOB_FAILED);
    assert_int_equal(job->err.name, ERR_DUCK_LOST);

    sim_run(&sim, 5 * CLOCK_NS_PER_S);
    session = sim_session(&sim, "tiny");
    job = core_job_find(sim.core, batch(&sim, session, 20));
    uint64_t drop;
    assert_int_equal(core_unload(sim.core, sim.now, "uid 0", "tiny", false, &drop, NULL), 0);
    sim_run(&sim, 5 * SIM_LATENCY);
    assert_int_equal(job->state, CORE_JOB_FAILED);
    sim_stop(&sim);
}

static void test_errand(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session, id;
    begin(&sim, &session);
    assert_int_equal(core_errand_begin(sim.core, sim.now, "verify", "*", CORE_NONE, &id, NULL), 0);
    core_errand_progress(sim.core, id, 25, 100);
    assert_true(core_job_progress(core_job_find(sim.core, id)) == 0.25);
    core_errand_end(sim.core, sim.now, id, NULL);
    assert_int_equal(core_job_find(sim.core, id)->state, CORE_JOB_DONE);
    assert_int_equal(core_errand_begin(sim.core, sim.now, "verify", "*", CORE_NONE, &id, NULL), 0);
    assert_int_equal(core_job_cancel(sim.core, sim.now, id, NULL, NULL), 0);
    sim_run(&sim, 0);
    assert_int_equal(sim.errands_stopped, 1);
    core_errand_end(sim.core, sim.now, id, NULL); /* too late to be done */
    assert_int_equal(core_job_find(sim.core, id)->state, CORE_JOB_CANCELLED);
    sim_stop(&sim);
}

static void test_session_limits(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t id, first = 0;
    begin(&sim, &id);
    core_session_close(sim.core, id);
    struct err err = {0};
    for (uint64_t client = 1; client <= 2; client++) {
        struct core_session_request request = {.client = client, .model = "tiny", .max_tokens = 1};
        for (unsigned i = 0; i < CORE_SESSIONS_CLIENT_MAX; i++) {
            assert_int_equal(core_session_open(sim.core, sim.now, &request, &id, NULL), 0);
            first = first ? first : id;
        }
        assert_int_equal(core_session_open(sim.core, sim.now, &request, &id, &err), -EBUSY);
        assert_int_equal(err.name, ERR_BUSY);
        assert_non_null(strstr(err.values, "\"what\":\"sessions of a connection\",\"limit\":32,\"in_use\":32"));
    }
    /* The two have all that there is of each duck: the third is told which and how many. */
    struct core_session_request request = {.client = 3, .model = "tiny", .max_tokens = 1};
    assert_int_equal(core_session_open(sim.core, sim.now, &request, &id, &err), -EBUSY);
    assert_string_equal(err.message, "duck local0 has 64 sessions open, the limit is 64 for each");
    assert_non_null(strstr(err.values, "\"what\":\"sessions of a duck\",\"limit\":64,\"in_use\":64"));
    core_session_close(sim.core, first);
    assert_int_equal(core_session_open(sim.core, sim.now, &request, &id, &err), 0);
    sim_stop(&sim);
}

static void test_job_limit(void **state)
{
    (void)state;
    struct sim sim;
    uint64_t session, id;
    begin(&sim, &session);
    struct err err = {0};
    for (unsigned i = 0; i < CORE_JOBS_LIVE_MAX; i++)
        assert_int_equal(core_errand_begin(sim.core, sim.now, "verify", "*", CORE_NONE, &id, NULL), 0);
    assert_int_equal(core_errand_begin(sim.core, sim.now, "verify", "*", CORE_NONE, &id, &err), -EBUSY);
    assert_string_equal(err.message, "128 jobs are queued or running, the limit is 128");
    core_job_cancel(sim.core, sim.now, id, NULL, NULL);
    assert_int_equal(core_errand_begin(sim.core, sim.now, "verify", "*", CORE_NONE, &id, NULL), 0);
    sim_stop(&sim);
}

static void test_earlier_lives(void **state)
{
    (void)state;
    struct sim sim = {.duck_count = 0};
    struct core_conf conf = {.heartbeat_ns = CLOCK_NS_PER_S, .start_timeout_ns = CLOCK_NS_PER_S};
    sim.core = core_new(&conf);
    sim.now = 50;
    struct core_job was = {.id = 41, .state = CORE_JOB_DONE, .layer = CORE_NONE, .result = strdup("{}")};
    assert_false(core_job_was(sim.core, sim.now, &was, "load"));
    was = (struct core_job){.id = 43, .state = CORE_JOB_RUNNING, .layer = 3};
    snprintf(was.model_name, sizeof was.model_name, "tiny");
    assert_true(core_job_was(sim.core, sim.now, &was, "decode"));
    const struct core_job *cut = core_job_find(sim.core, 43);
    assert_int_equal(cut->state, CORE_JOB_FAILED);
    assert_string_equal(cut->err.message, "job 43 (decode of tiny): fp9d ended while it ran");
    assert_int_equal(cut->ended_ns, 50);
    assert_string_equal(core_job_find(sim.core, 41)->result, "{}");
    assert_int_equal(core_job_cancel(sim.core, sim.now, 41, NULL, NULL), -EALREADY);
    core_start(sim.core, sim.now);
    uint64_t id;
    assert_int_equal(core_errand_begin(sim.core, sim.now, "verify", "*", CORE_NONE, &id, NULL), 0);
    assert_int_equal(id, 44); /* no number is given again */
    /* The oldest make way. */
    for (unsigned i = 0; i < 3 * CORE_JOBS_MAX; i++) {
        core_errand_end(sim.core, sim.now, id, NULL);
        assert_int_equal(core_errand_begin(sim.core, sim.now, "verify", "*", CORE_NONE, &id, NULL), 0);
    }
    assert_null(core_job_find(sim.core, 41));
    assert_null(core_job_find(sim.core, id - CORE_JOBS_MAX));
    assert_non_null(core_job_find(sim.core, id - CORE_JOBS_MAX + 1));
    sim_stop(&sim);
}

/* A load has started when its checkpoint is being opened, whatever comes of that. */
static void test_started_when_it_opens(void **state)
{
    (void)state;
    struct sim sim;
    sim_start(&sim, 2, SPACE);
    struct core_load_request request = {.path = "/bad", .tp = 2, .multiple_of = 64};
    struct err err = {0};
    uint64_t id;
    assert_int_equal(core_load(sim.core, sim.now, &request, &id, &err), 0);
    const struct core_job *job = core_job_find(sim.core, id);
    assert_int_equal(job->state, CORE_JOB_RUNNING);
    assert_true(job->started_ns == sim.now && job->started_ns >= job->queued_ns && !job->opened_ns);
    err_set(&err, -EINVAL, ERR_BAD_CHECKPOINT, "/bad: nothing there");
    core_load_open_failed(sim.core, sim.now + 5, id, &err);
    assert_int_equal(job->state, CORE_JOB_FAILED);
    assert_true(job->started_ns == sim.now && job->ended_ns == sim.now + 5 && !job->opened_ns);
    /* Bytes are counted from when they can come. */
    id = sim_load_begin(&sim, "tiny", 2, 64);
    job = core_job_find(sim.core, id);
    assert_true(job->opened_ns >= job->started_ns && job->started_ns == sim.now);
    sim_stop(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_is_done_with_its_tokens),
        cmocka_unit_test(test_batch_cancelled),
        cmocka_unit_test(test_batch_ends_with_its_session),
        cmocka_unit_test(test_errand),
        cmocka_unit_test(test_session_limits),
        cmocka_unit_test(test_job_limit),
        cmocka_unit_test(test_earlier_lives),
        cmocka_unit_test(test_started_when_it_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

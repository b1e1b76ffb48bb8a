/* Random life of a fleet in virtual time: loads, unloads, sessions, steps, deaths, silences. Whatever happens, once the ducks are left in
 * peace every step and job has ended and a fresh load works. Prints its seed; give it as the argument to run the same again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/sim/sim.h"

#define SOAK_ROUNDS 300
#define SOAK_EVENTS 60

static uint64_t random_state;

static uint32_t pick(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % below;
}

static void random_event(struct sim *sim, uint64_t *session)
{
    static const uint32_t tps[][2] = {{3, 64}, {2, 64}, {1, 128}, {4, 32}};
    struct core_load_request request = {.path = FP9_TEST_DATA "/shakespeare-moe-fp8", .name = "tiny", .force = pick(8) == 0};
    uint32_t plan = pick(4), duck = pick(sim->duck_count);
    uint64_t id;
    switch (pick(9)) {
    case 0:
        request.tp = tps[plan][0];
        request.multiple_of = tps[plan][1];
        core_load(sim->core, sim->now, &request, &id, NULL);
        break;
    case 1:
        if (pick(4) == 0)
            core_unload(sim->core, sim->now, "uid 0", "tiny", pick(2), &id, NULL);
        break;
    case 2: core_invalidate(sim->core, sim->now, "uid 0", pick(2) ? "tiny" : NULL, pick(2) ? "local1" : NULL, &id, NULL); break;
    case 3: sim_kill(sim, duck, "random death"); break;
    case 4: sim->ducks[duck].mute = !sim->ducks[duck].mute; break;
    case 5:
        if (core_session_find(sim->core, *session))
            core_session_close(sim->core, *session);
        struct core_session_request open = {.client = 1, .model = "tiny", .max_tokens = 4, .lanes = pick(CORE_LANES_MAX + 1)};
        core_session_open(sim->core, sim->now, &open, session, NULL);
        break;
    case 6:
    case 7: core_step_submit(sim->core, sim->now, *session, 1 + pick(3), pick(4), 2, pick(2), NULL); break;
    case 8: sim->ducks[duck].slot_count = pick(3) ? sim->ducks[duck].slot_count : 0; break;
    }
    sim_run(sim, pick(2) ? pick(3) * SIM_LATENCY : pick(4000) * CLOCK_NS_PER_MS);
}

static void round_of(unsigned number)
{
    struct sim sim;
    uint64_t session = 0;
    sim_start(&sim, 4, 64u << 20);
    for (unsigned i = 0; i < SOAK_EVENTS; i++)
        random_event(&sim, &session);
    for (uint32_t i = 0; i < sim.duck_count; i++)
        sim.ducks[i].mute = false;
    /* A duck whose buffer was emptied under it is told apart by its next start only. */
    for (uint32_t i = 0; i < sim.duck_count; i++)
        sim_kill(&sim, i, "last restart");
    sim_run(&sim, 60 * CLOCK_NS_PER_S);
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++)
        if (sim.core->sessions[i].used && core_session_in_flight(&sim.core->sessions[i]))
            fail_msg("round %u: a step of session %llu never ended", number, (unsigned long long)sim.core->sessions[i].id);
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++)
        if (sim.core->jobs[i].used && !core_job_over(&sim.core->jobs[i]))
            fail_msg("round %u: job %llu never ended", number, (unsigned long long)sim.core->jobs[i].id);
    for (uint32_t i = 0; i < sim.duck_count; i++) {
        uint64_t bytes = 0;
        for (size_t s = 0; s < sim.ducks[i].slot_count; s++)
            bytes += sim.ducks[i].slots[s].bytes;
        assert_int_equal(sim.core->ducks[i].used_bytes, bytes);
    }
    const struct core_job *job = sim_load(&sim, "tiny", 3, 64);
    if (job->state != CORE_JOB_DONE)
        fail_msg("round %u: %s", number, job->err.message);
    session = sim_session(&sim, "tiny");
    unsigned done = sim.steps_done;
    assert_int_equal(core_step_submit(sim.core, sim.now, session, 1, 1, 2, false, NULL), 0);
    sim_run(&sim, 10 * SIM_LATENCY);
    assert_int_equal(sim.steps_done, done + 1);
    sim_stop(&sim);
}

static uint64_t seed;

static void test_soak(void **state)
{
    (void)state;
    print_message("seed %llu (soak_fleet %llu runs it again)\n", (unsigned long long)seed, (unsigned long long)seed);
    random_state = seed;
    for (unsigned i = 0; i < SOAK_ROUNDS; i++)
        round_of(i);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

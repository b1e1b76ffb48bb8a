#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/head/timing.h"

#define S UINT64_C(1000000000)
#define LAYERS 6

static struct arch arch = {.layers = LAYERS};

/* Three ducks, one model, a session at place 5. */
struct world {
    struct core *core;
    struct timing *timing;
    uint64_t now;
};

static int begin(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    world->core = calloc(1, sizeof *world->core);
    world->timing = timing_new();
    world->now = 1000 * S;
    world->core->models[2] = (struct core_model){.used = true, .arch = &arch, .key = {1}};
    world->core->sessions[5] = (struct core_session){.used = true, .id = 77, .model = 2, .tp = 3};
    for (uint32_t duck = 0; duck < 3; duck++)
        timing_duck_up(world->timing, duck);
    assert_true(timing_session_open(world->timing, world->core, 5));
    *state = world;
    return 0;
}

static int end(void **state)
{
    struct world *world = *state;
    timing_free(world->timing);
    free(world->core);
    free(world);
    return 0;
}

static uint32_t step(struct world *world, enum timing_kind kind, uint32_t layer, uint64_t wait, uint64_t duck, uint32_t late,
                     struct timing_forward forwards[2])
{
    struct timing_step step = {
        .kind = kind,
        .layer = layer,
        .tokens = kind == TIMING_PREFILL ? 100 : 1,
        .judge_wait_ns = wait,
        .duck_max_ns = duck,
        .params = 10,
        .weight_bytes = 20,
        .straggler = late,
        .straggler_ns = 5000,
    };
    return timing_step(world->timing, world->now, 5, LAYERS - 1, &step, forwards);
}

static uint64_t recent(const struct world *world, const struct timing_set *set, enum timing_word word)
{
    struct histogram_summary summary;
    histogram_read(&set->words[word], world->now, &summary);
    return summary.recent;
}

static void words_are_kept_apart(void **state)
{
    struct world *world = *state;
    struct timing_forward forwards[2];
    struct timing_session *session = world->timing->sessions[5];
    assert_int_equal(session->id, 77);
    for (int i = 0; i < 10; i++)
        step(world, TIMING_DECODE, 3, 60000, 40000, 1, forwards);
    step(world, TIMING_PREFILL, 4, 9000000, 6000000, 1, forwards);
    step(world, TIMING_DECODE, 4, 60000, 0, CORE_NONE, forwards); /* no kernel ran: no ratio */
    struct timing_layers *layers = &world->timing->models[2];
    assert_int_equal(layers->count, LAYERS);
    assert_int_equal(recent(world, &layers->layers[3][TIMING_DECODE], TIMING_JUDGE_WAIT), 10);
    assert_int_equal(recent(world, &layers->layers[4][TIMING_DECODE], TIMING_JUDGE_WAIT), 1);
    assert_int_equal(recent(world, &layers->layers[4][TIMING_DECODE], TIMING_JUDGE_RATIO), 0);
    assert_int_equal(recent(world, &layers->layers[4][TIMING_PREFILL], TIMING_JUDGE_GAP), 1);
    assert_int_equal(recent(world, &layers->layers[3][TIMING_PREFILL], TIMING_JUDGE_GAP), 0);
    assert_int_equal(recent(world, &session->kinds[TIMING_DECODE], TIMING_DUCK_MAX), 11);
    assert_int_equal(recent(world, &world->timing->kinds[TIMING_DECODE], TIMING_DUCK_MAX), 11);
    struct histogram_summary summary;
    histogram_read(&session->kinds[TIMING_DECODE].words[TIMING_JUDGE_RATIO], world->now, &summary);
    assert_true(summary.p50 > 1476 && summary.p50 < 1524); /* thousandths of 60 / 40 */
    histogram_read(&session->kinds[TIMING_PREFILL].words[TIMING_JUDGE_GAP], world->now, &summary);
    assert_true(summary.sum == 3000000);
    struct timing_sums sums = timing_recent(&session->kinds[TIMING_PREFILL].sums, world->now);
    assert_int_equal(sums.steps, 1);
    assert_int_equal(sums.tokens, 100);
    assert_true(sums.duck_max_ns == 6000000);
    /* A judge_wait below duck_max (clocks of two machines) is no gap of centuries. */
    step(world, TIMING_PREFILL, 5, 100, 120, CORE_NONE, forwards);
    histogram_read(&session->kinds[TIMING_PREFILL].words[TIMING_JUDGE_GAP], world->now, &summary);
    assert_true(summary.sum == 3000000);
}

static void straggler_is_who_was_last_most_often(void **state)
{
    struct world *world = *state;
    struct timing_forward forwards[2];
    const struct timing_session *session = world->timing->sessions[5];
    assert_true(timing_straggler(world->timing, session, world->now).duck == CORE_NONE);
    for (int i = 0; i < 30; i++)
        step(world, TIMING_DECODE, 1, 60000, 40000, i % 3 ? 2 : 0, forwards);
    struct timing_straggler worst = timing_straggler(world->timing, session, world->now);
    assert_int_equal(worst.duck, 2);
    assert_true(worst.share > 0.66 && worst.share < 0.67);
    assert_true(worst.late_us == 5.0);
    assert_int_equal(timing_straggler(world->timing, NULL, world->now).duck, 2);
    /* It speaks of lately: a minute on, another one. */
    world->now += 61 * S;
    assert_true(timing_straggler(world->timing, NULL, world->now).duck == CORE_NONE);
    step(world, TIMING_DECODE, 1, 60000, 40000, 0, forwards);
    worst = timing_straggler(world->timing, session, world->now);
    assert_int_equal(worst.duck, 0);
    assert_true(worst.share == 1.0);
    assert_int_equal(world->timing->ducks[2]->late.steps, 20);
}

static void sums_roll(void **state)
{
    struct world *world = *state;
    struct timing_forward forwards[2];
    const struct timing_rolling *sums = &world->timing->kinds[TIMING_DECODE].sums;
    step(world, TIMING_DECODE, 1, 60000, 40000, 0, forwards);
    world->now += 30 * S;
    step(world, TIMING_DECODE, 1, 60000, 40000, 0, forwards);
    assert_int_equal(timing_recent(sums, world->now).steps, 2);
    assert_int_equal(timing_recent(sums, world->now + 30 * S).steps, 1);
    assert_int_equal(timing_recent(sums, world->now + 60 * S).steps, 0);
    world->now += 500 * S;
    step(world, TIMING_DECODE, 1, 60000, 40000, 0, forwards);
    assert_int_equal(timing_recent(sums, world->now).steps, 1);
    assert_int_equal(sums->total.steps, 3);
}

static void forwards_end(void **state)
{
    struct world *world = *state;
    struct timing_forward forwards[2];
    /* One token through all layers: over with the last one. */
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(step(world, TIMING_DECODE, layer, 1000, 600, layer == 4 ? 2 : CORE_NONE, forwards), layer == LAYERS - 1);
    assert_int_equal(forwards[0].steps, LAYERS);
    assert_int_equal(forwards[0].first_layer, 0);
    assert_int_equal(forwards[0].last_layer, LAYERS - 1);
    assert_true(forwards[0].sums.judge_wait_ns == LAYERS * 1000);
    assert_int_equal(forwards[0].straggler, 2);
    /* A client that leaves layers out: over when a layer comes that is not above. */
    assert_int_equal(step(world, TIMING_DECODE, 1, 1000, 600, CORE_NONE, forwards), 0);
    assert_int_equal(step(world, TIMING_DECODE, 3, 1000, 600, CORE_NONE, forwards), 0);
    assert_int_equal(step(world, TIMING_DECODE, 1, 1000, 600, CORE_NONE, forwards), 1);
    assert_int_equal(forwards[0].steps, 2);
    assert_int_equal(forwards[0].first_layer, 1);
    assert_int_equal(forwards[0].last_layer, 3);
    /* A prefill ends it, too, and the model's last layer at once. */
    assert_int_equal(step(world, TIMING_PREFILL, LAYERS - 1, 1000, 600, CORE_NONE, forwards), 2);
    assert_int_equal(forwards[0].kind, TIMING_DECODE);
    assert_int_equal(forwards[0].steps, 1);
    assert_int_equal(forwards[1].kind, TIMING_PREFILL);
    assert_int_equal(forwards[1].tokens, 100);
    assert_int_equal(world->timing->sessions[5]->forwards[0].steps, 0);
}

static void room_is_bounded(void **state)
{
    struct world *world = *state;
    struct arch big = {.layers = 1000};
    assert_int_equal(world->timing->layers, LAYERS);
    for (uint32_t model = 10; model < 13; model++) {
        world->core->models[model] = (struct core_model){.used = true, .arch = &big, .key = {(uint8_t)model}};
        world->core->sessions[model] = (struct core_session){.used = true, .id = model, .model = model, .tp = 1};
        assert_int_equal(timing_session_open(world->timing, world->core, model), model < 12);
        assert_non_null(timing_session_find(world->timing, model));
    }
    assert_int_equal(world->timing->layers, 2000 + LAYERS);
    assert_null(world->timing->models[12].layers);
    /* A second session of a model takes no more, other weights under its name begin anew. */
    world->core->sessions[20] = (struct core_session){.used = true, .id = 20, .model = 2, .tp = 1};
    struct timing_forward forwards[2];
    step(world, TIMING_DECODE, 1, 60000, 40000, 0, forwards);
    assert_true(timing_session_open(world->timing, world->core, 20));
    assert_int_equal(world->timing->models[2].layers[1][TIMING_DECODE].sums.total.steps, 1);
    world->core->models[2].key[0] = 9;
    assert_true(timing_session_open(world->timing, world->core, 20));
    assert_int_equal(world->timing->models[2].layers[1][TIMING_DECODE].sums.total.steps, 0);
    assert_int_equal(world->timing->layers, 2000 + LAYERS);
    timing_model_gone(world->timing, 10);
    assert_int_equal(world->timing->layers, 1000 + LAYERS);
    /* Steps of a session, a model and a duck that are gone are of no harm. */
    timing_session_gone(world->timing, 77);
    assert_null(world->timing->sessions[5]);
    timing_model_gone(world->timing, 2);
    assert_int_equal(step(world, TIMING_DECODE, 1, 60000, 40000, 200, forwards), 0);
    timing_answer(world->timing, world->now, 200, TIMING_DECODE, 10);
    timing_answer(world->timing, world->now, 0, TIMING_DECODE, 10);
    assert_int_equal(world->timing->ducks[0]->time[TIMING_DECODE].count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(words_are_kept_apart, begin, end),
        cmocka_unit_test_setup_teardown(straggler_is_who_was_last_most_often, begin, end),
        cmocka_unit_test_setup_teardown(sums_roll, begin, end),
        cmocka_unit_test_setup_teardown(forwards_end, begin, end),
        cmocka_unit_test_setup_teardown(room_is_bounded, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

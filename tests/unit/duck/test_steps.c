/* Steps that wait: turns by session, in order within each, memory that is used again. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/duck/steps.h"

#define HIDDEN 8

static const uint8_t x[64 * HIDDEN * 2], ids[64 * 4], weights[64 * 4];

static int push(struct steps *steps, uint64_t session, uint64_t request, uint32_t tokens, bool batch, struct err *err)
{
    struct msg_step words = {.session = session, .tokens = tokens, .top_k = 1, .hidden = HIDDEN, .batch = batch};
    words.x = x;
    words.ids = ids;
    words.weights = weights;
    return steps_push(steps, request, &words, err);
}

static void expect(struct steps *steps, bool batch, uint64_t request)
{
    struct step *step = steps_pop(steps, batch);
    assert_non_null(step);
    assert_int_equal(step->request, request);
    steps_done(steps, step);
}

static void takes_turns(void **state)
{
    (void)state;
    struct steps steps = {0};
    for (uint64_t request = 10; request < 14; request++)
        assert_int_equal(push(&steps, 1, request, 1, false, NULL), 0);
    assert_int_equal(push(&steps, 2, 20, 1, false, NULL), 0);
    assert_int_equal(push(&steps, 3, 30, 1, false, NULL), 0);
    assert_int_equal(push(&steps, 3, 31, 1, false, NULL), 0);
    static const uint64_t order[] = {10, 20, 30, 11, 31};
    for (size_t i = 0; i < 5; i++)
        expect(&steps, false, order[i]);
    /* One that comes late has its turn in this round, not after all that the first had queued before it. */
    assert_int_equal(push(&steps, 4, 40, 1, false, NULL), 0);
    expect(&steps, false, 40);
    expect(&steps, false, 12);
    expect(&steps, false, 13);
    assert_null(steps_pop(&steps, false));
    steps_release(&steps);
}

static void kinds_are_apart(void **state)
{
    (void)state;
    struct steps steps = {0};
    assert_int_equal(push(&steps, 1, 1, STEPS_INTERACTIVE_TOKENS + 1, false, NULL), 0); /* of many tokens is batch work */
    assert_int_equal(push(&steps, 2, 2, 1, true, NULL), 0);
    assert_int_equal(push(&steps, 3, 3, STEPS_INTERACTIVE_TOKENS, false, NULL), 0);
    expect(&steps, false, 3);
    assert_null(steps_pop(&steps, false));
    expect(&steps, true, 1);
    expect(&steps, true, 2);
    steps_release(&steps);
}

/* What is taken out of the middle is gone; the others keep their turns. */
static void withdrawn(void **state)
{
    (void)state;
    struct steps steps = {0};
    for (uint64_t request = 10; request < 13; request++)
        assert_int_equal(push(&steps, 1, request, 1, false, NULL), 0);
    assert_int_equal(push(&steps, 2, 20, 1, false, NULL), 0);
    assert_int_equal(push(&steps, 2, 21, 1, true, NULL), 0);
    assert_null(steps_withdraw(&steps, 99, 1));
    struct step *step = steps_withdraw(&steps, 11, 0);
    assert_int_equal(step->request, 11);
    steps_done(&steps, step);
    assert_null(steps_withdraw(&steps, 11, 0));
    expect(&steps, false, 10);
    for (uint64_t request = 20; request < 22; request++) {
        step = steps_withdraw(&steps, 0, 2);
        assert_int_equal(step->request, request);
        steps_done(&steps, step);
    }
    assert_null(steps_withdraw(&steps, 0, 2));
    assert_int_equal(steps.count, 1);
    expect(&steps, false, 12);
    assert_null(steps_pop(&steps, false));
    steps_release(&steps);
}

static void full(void **state)
{
    (void)state;
    struct steps steps = {0};
    struct err err;
    for (uint64_t i = 0; i < STEPS_MAX; i++)
        assert_int_equal(push(&steps, i % 5, i, 1, false, NULL), 0);
    assert_int_equal(push(&steps, 1, 1, 1, true, &err), -EBUSY);
    assert_int_equal(err.name, ERR_BUSY);
    struct step *step = steps_pop(&steps, false);
    assert_int_equal(push(&steps, 1, 1, 1, true, NULL), -EBUSY); /* given out is not done */
    steps_done(&steps, step);
    assert_int_equal(push(&steps, 1, 1, 1, true, NULL), 0);
    steps_release(&steps);
}

/* Whoever always has something waiting gets as many turns as everybody else who has, however much each pushes ahead. */
static void fair(void **state)
{
    (void)state;
    enum { SESSIONS = 6, TURNS = 6000 };
    struct steps steps = {0};
    uint64_t pushed[SESSIONS] = {0}, served[SESSIONS] = {0};
    unsigned waiting[SESSIONS] = {0};
    for (unsigned turn = 0; turn < TURNS; turn++) {
        for (unsigned s = 0; s < SESSIONS; s++) /* session s keeps up to 1 + 6 s steps waiting, never none */
            while (waiting[s] == 0 || (waiting[s] < 1 + 6 * s && rand() % 2)) {
                assert_int_equal(push(&steps, s, pushed[s]++, 1, false, NULL), 0);
                waiting[s]++;
            }
        struct step *step = steps_pop(&steps, false);
        uint64_t s = step->words.session;
        assert_int_equal(step->request, served[s]); /* in the order in which they came */
        served[s]++;
        waiting[s]--;
        steps_done(&steps, step);
        for (unsigned other = 0; other < SESSIONS; other++)
            if (served[other] + 2 < served[s])
                fail_msg("turn %u: session %u was served %llu times, session %u %llu times", turn, (unsigned)s,
                         (unsigned long long)served[s], other, (unsigned long long)served[other]);
    }
    steps_release(&steps);
}

int main(int argc, char **argv)
{
    unsigned seed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    srand(seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_turns),
        cmocka_unit_test(kinds_are_apart),
        cmocka_unit_test(withdrawn), cmocka_unit_test(full),
        cmocka_unit_test(fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

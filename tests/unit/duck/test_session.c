/* Sessions, waiting steps, and the lists of CPUs. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/duck/cores.h"
#include "daemon/duck/session.h"
#include "daemon/duck/steps.h"
#include "tests/unit/duck/model.h"

struct fixture {
    struct wbuf *wbuf;
    struct sessions sessions;
    struct msg_session_open open;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char note[WBUF_NOTE_MAX];
    assert_int_equal(wbuf_open(-1, 8 << 20, WBUF_HUGE_AUTO, &f->wbuf, note, NULL), 0);
    uint32_t slot;
    for (uint32_t kind = 0; kind < 2; kind++) {
        struct msg_prepare_begin words = model_words((enum msg_slot_kind)kind, kind);
        assert_int_equal(wbuf_alloc(f->wbuf, &words, &slot, NULL), 0);
        wbuf_finish(f->wbuf, slot);
    }
    f->open = (struct msg_session_open){.session = 1, .model_key = {0xab, 0xcd}, .max_tokens = 4, .top_k_max = 3, .partials = MSG_F32};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    wbuf_free(f->wbuf);
    free(f);
    return 0;
}

static void test_open(void **state)
{
    struct fixture *f = *state;
    struct session_needs needs;
    struct err err;
    assert_int_equal(session_open(&f->sessions, f->wbuf, &f->open, 1, &needs, &err), 0);
    assert_true(needs.scratch_bytes >= 80 * 4);
    assert_int_equal(session_find(&f->sessions, 1)->hidden, 80);
    assert_int_equal(session_open(&f->sessions, f->wbuf, &f->open, 1, &needs, &err), -EEXIST);
    f->open.session = 2;
    f->open.model_key[0] = 9;
    assert_int_equal(session_open(&f->sessions, f->wbuf, &f->open, 1, &needs, &err), -ESTALE);
    assert_int_equal(err.name, ERR_CACHE_STALE);
    f->open.model_key[0] = 0xab;
    for (uint64_t i = 2; i <= SESSIONS_MAX; i++) {
        f->open.session = i;
        assert_int_equal(session_open(&f->sessions, f->wbuf, &f->open, 1, &needs, &err), 0);
    }
    f->open.session = 1000;
    assert_int_equal(session_open(&f->sessions, f->wbuf, &f->open, 1, &needs, &err), -EBUSY);
    session_close(session_find(&f->sessions, 7));
    assert_null(session_find(&f->sessions, 7));
    assert_int_equal(session_open(&f->sessions, f->wbuf, &f->open, 1, &needs, &err), 0);
}

static void check(struct fixture *f, uint32_t layer, const struct msg_step *step, enum err_name name, const char *sentence)
{
    struct err err = {0};
    const struct geometry *g = wbuf_geometry(f->wbuf, wbuf_find(f->wbuf, f->open.model_key, layer));
    int r = session_check_step(session_find(&f->sessions, 1), g, step, &err);
    if (!sentence) {
        assert_int_equal(r, 0);
        return;
    }
    assert_int_equal(r, -EINVAL);
    assert_int_equal(err.name, name);
    if (!strstr(err.message, sentence))
        fail_msg("\"%s\" does not hold \"%s\"", err.message, sentence);
}

static void test_check_step(void **state)
{
    struct fixture *f = *state;
    struct session_needs needs;
    assert_int_equal(session_open(&f->sessions, f->wbuf, &f->open, 1, &needs, NULL), 0);
    int32_t ids[] = {0, 4, -1, 1, 2, 3};
    struct msg_step step = {.session = 1, .tokens = 2, .top_k = 3, .hidden = 80, .ids = (const uint8_t *)ids};
    check(f, 1, &step, 0, NULL);
    ids[4] = 5;
    check(f, 1, &step, ERR_BAD_EXPERT, "token 1, slot 1: expert 5, allowed are -1 to 4");
    ids[4] = INT32_MIN;
    check(f, 1, &step, ERR_BAD_EXPERT, "token 1, slot 1: expert -2147483648");
    ids[4] = 2;
    step.top_k = 4;
    check(f, 1, &step, ERR_BAD_SHAPE, "top_k is 4");
    step.top_k = 0;
    check(f, 1, &step, ERR_BAD_SHAPE, "top_k is 0");
    check(f, 0, &step, 0, NULL);
    step.hidden = 64;
    check(f, 0, &step, ERR_BAD_SHAPE, "hidden size 64, the layer has 80");
    step.hidden = 80;
    step.top_k = 1;
    check(f, 0, &step, ERR_BAD_SHAPE, "dense layer");
    step.top_k = 0;
    step.tokens = 5;
    check(f, 0, &step, ERR_BAD_SHAPE, "5 tokens, the session was opened for 4");
}

static void test_steps(void **state)
{
    (void)state;
    struct steps steps = {0};
    struct err err;
    uint8_t x[2 * 5 * 3], ids[4 * 3], weights[4 * 3];
    struct msg_step words = {.tokens = 3, .top_k = 1, .hidden = 5, .x = x, .ids = ids, .weights = weights};
    assert_int_equal(steps_reserve(&steps, 3, 5, 1, &err), 0);
    uint64_t bytes = steps.bytes;
    /* One in flight at a time uses the same memory for ever. */
    for (uint64_t i = 0; i < 100; i++) {
        memset(x, (int)i, sizeof x);
        assert_int_equal(steps_push(&steps, i, &words, &err), 0);
        memset(x, 0xee, sizeof x);
        struct step *step = steps_pop(&steps, false);
        assert_int_equal(step->request, i);
        assert_int_equal(step->words.x[29], (uint8_t)i);
        assert_int_equal((uintptr_t)step->words.ids % 64, 0);
        assert_null(steps_pop(&steps, false));
        steps_done(&steps, step);
        assert_int_equal(steps.bytes, bytes);
    }
    for (uint64_t i = 0; i < STEPS_MAX; i++)
        assert_int_equal(steps_push(&steps, i, &words, &err), 0);
    assert_int_equal(steps_push(&steps, 0, &words, &err), -EBUSY);
    for (uint64_t i = 0; i < STEPS_MAX / 2; i++) {
        struct step *step = steps_pop(&steps, false);
        assert_int_equal(step->request, i);
        steps_done(&steps, step);
    }
    steps_release(&steps);
    assert_int_equal(steps.bytes, 0);
    /* Bytes have a limit of their own. */
    assert_int_equal(steps_reserve(&steps, WIRE_STEP_TOKENS_MAX, WIRE_HIDDEN_MAX, 64, &err), -EBUSY);
    steps_release(&steps);
}

static void test_cores(void **state)
{
    (void)state;
    cpu_set_t set;
    struct err err;
    assert_int_equal(cores_parse("0-3,5", &set, &err), 0);
    assert_int_equal(CPU_COUNT(&set), 5);
    assert_true(CPU_ISSET(5, &set) && !CPU_ISSET(4, &set));
    assert_int_equal(cores_parse("1023", &set, &err), 0);
    static const char *const bad[] = {"", ",", "1,", "3-1", "1-", "-1", "a", "0 1", "1024", "99999999999999999999", "1,,2", "0x1"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        assert_int_equal(cores_parse(bad[i], &set, &err), -EINVAL);
    struct cores cores;
    assert_int_equal(cores_apply("", 0, &cores, &err), 0);
    assert_true(cores.members >= 1);
    assert_int_equal(cores_apply("1023", 0, &cores, &err), -EINVAL);
    assert_non_null(strstr(err.message, "CPU 1023 is not among"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_open, setup, teardown),
        cmocka_unit_test_setup_teardown(test_check_step, setup, teardown),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

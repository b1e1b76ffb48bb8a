/* Slots of some of a layer's experts: what is one, ids that are the duck's own, a buffer that is opened again. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/duck/session.h"
#include "daemon/duck/verify.h"
#include "tests/unit/duck/model.h"

/* Experts 10 to 14 of 23. */
static struct msg_prepare_begin divided(void)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    words.expert_first = 10;
    words.experts_total = 23;
    return words;
}

static void refused(struct msg_prepare_begin words, const char *sentence)
{
    struct geometry g;
    struct err err = {0};
    assert_true(geometry_init(&words, &g, &err) < 0);
    if (!strstr(err.message, sentence))
        fail_msg("\"%s\" does not say \"%s\"", err.message, sentence);
}

static void test_words(void **state)
{
    (void)state;
    struct msg_prepare_begin words = divided();
    struct geometry g, whole;
    assert_int_equal(geometry_init(&words, &g, NULL), 0);
    assert_int_equal(g.experts, 5);
    assert_int_equal(g.expert_first, 10);
    assert_int_equal(g.experts_total, 23);
    words.experts_total = words.expert_first = 0;
    assert_int_equal(geometry_init(&words, &whole, NULL), 0);
    assert_int_equal(whole.experts_total, 5);
    assert_int_equal(whole.bytes, g.bytes);
    words = divided();
    words.expert_first = 19;
    refused(words, "experts 19 to 23 of 23");
    words.expert_first = UINT32_MAX;
    refused(words, "of 23");
    words = divided();
    words.experts_total = WIRE_EXPERTS_MAX + 1;
    refused(words, "of 4097");
    words = model_words(MSG_SLOT_DENSE, 0);
    words.experts_total = 2;
    refused(words, "of 2");
}

static void test_ids(void **state)
{
    (void)state;
    const struct msg_prepare_begin words = divided(), all = model_words(MSG_SLOT_MOE, 1);
    struct geometry g;
    int32_t ids[] = {-1, 0, 9, 10, 14, 15, 22, 12};
    static const int32_t own[] = {-1, -1, -1, 0, 4, -1, -1, 2};
    assert_int_equal(geometry_init(&words, &g, NULL), 0);
    geometry_own_ids(&g, ids, 8);
    assert_memory_equal(ids, own, sizeof own);
    assert_int_equal(geometry_init(&all, &g, NULL), 0);
    int32_t same[] = {-1, 0, 4};
    geometry_own_ids(&g, same, 3);
    assert_true(same[0] == -1 && same[1] == 0 && same[2] == 4);
}

/* The layer's ids are right, whoever holds them; others are not. */
static void test_session(void **state)
{
    (void)state;
    const struct msg_prepare_begin words = divided();
    const struct session session = {.open = {.max_tokens = 2, .top_k_max = 3}, .hidden = 80};
    struct geometry g;
    struct err err = {0};
    int32_t ids[] = {0, 22, -1};
    const struct msg_step step = {.tokens = 1, .top_k = 3, .hidden = 80, .ids = (const uint8_t *)ids};
    assert_int_equal(geometry_init(&words, &g, NULL), 0);
    assert_int_equal(session_check_step(&session, &g, &step, &err), 0);
    ids[1] = 23;
    assert_int_equal(session_check_step(&session, &g, &step, &err), -EINVAL);
    assert_non_null(strstr(err.message, "token 0, slot 1: expert 23, allowed are -1 to 22"));
}

static void test_buffer_opened_again(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX];
    const struct msg_prepare_begin words = divided(), all = model_words(MSG_SLOT_MOE, 2);
    struct wbuf *wbuf;
    uint32_t slot;
    assert_int_equal(wbuf_open(-1, 8 << 20, WBUF_HUGE_AUTO, &wbuf, note, NULL), 0);
    assert_int_equal(wbuf_alloc(wbuf, &words, &slot, NULL), 0);
    memset(wbuf_data(wbuf, slot), 0, wbuf_geometry(wbuf, slot)->bytes);
    wbuf_finish(wbuf, slot);
    assert_int_equal(wbuf_alloc(wbuf, &all, &slot, NULL), 0);
    wbuf_finish(wbuf, slot);
    int fd = dup(wbuf_fd(wbuf));
    wbuf_free(wbuf);
    assert_int_equal(wbuf_open(fd, 8 << 20, WBUF_HUGE_AUTO, &wbuf, note, NULL), 0);
    assert_string_equal(note, "attached: 2 finished slots, 0 unfinished ones dropped");
    slot = wbuf_find(wbuf, words.model_key, 1);
    assert_int_not_equal(slot, WBUF_NONE);
    const struct msg_prepare_begin again = wbuf_words(wbuf, slot);
    assert_int_equal(again.experts, 5);
    assert_int_equal(again.expert_first, 10);
    assert_int_equal(again.experts_total, 23);
    assert_int_equal(wbuf_geometry(wbuf, slot)->experts_total, 23);
    const struct msg_prepare_begin whole = wbuf_words(wbuf, wbuf_find(wbuf, all.model_key, 2));
    assert_int_equal(whole.expert_first, 0);
    assert_int_equal(whole.experts_total, 5);
    /* A wrong bit is named by the layer's id. */
    const struct geometry *g = wbuf_geometry(wbuf, slot);
    wbuf_data(wbuf, slot)[3 * g->layout.expert_bytes] ^= 4;
    const struct wbuf_sums sums = wbuf_sums(wbuf, slot);
    const struct msg_verify ask = {.layer = 1};
    const _Atomic bool stop = false;
    struct msg_verified found;
    struct checksum *sum = checksum_new();
    verify_sums(sum, &sums, &ask, &stop, &found);
    assert_int_equal(found.verdict, MSG_VERDICT_BAD);
    assert_int_equal(found.expert, 13);
    checksum_free(sum);
    wbuf_free(wbuf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_session),
        cmocka_unit_test(test_buffer_opened_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

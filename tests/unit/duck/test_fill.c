/* Prepare: every row exactly once, bad weights by name, several at once, what is dropped when. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/duck/fill.h"
#include "proto/base/checksum.h"
#include "tests/unit/duck/model.h"

#define SIZE (UINT64_C(8) << 20)
#define SEED 4711

struct fixture {
    struct wbuf *wbuf;
    struct fills *fills;
    uint64_t request;
    uint64_t skip; /* piece to leave out */
    uint64_t seen;
    struct msg_prepare_data last;
    uint8_t last_codes[1 << 14];
    float last_scales[64];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char note[WBUF_NOTE_MAX];
    assert_int_equal(wbuf_open(-1, SIZE, WBUF_HUGE_AUTO, &f->wbuf, note, NULL), 0);
    assert_int_equal(fills_new(f->wbuf, &f->fills, NULL), 0);
    f->skip = UINT64_MAX;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    fills_free(f->fills);
    wbuf_free(f->wbuf);
    free(f);
    return 0;
}

/* Work is run and taken back at once: what the packing thread and the link do in between is theirs. */
static int through(struct fixture *f, struct fill_work *work, struct msg_slot *ret_slot, struct err *err)
{
    if (!work)
        return 0;
    fill_work_run(work);
    return fill_done(f->fills, work, ret_slot, err);
}

static int begin_now(struct fixture *f, uint64_t request, const struct msg_prepare_begin *words, struct err *err)
{
    return fill_begin(f->fills, request, words, err);
}

static int data_now(struct fixture *f, uint64_t request, const struct msg_prepare_data *data, struct err *err)
{
    struct fill_work *work;
    int r = fill_data(f->fills, request, data, &work, err);
    return r < 0 ? r : through(f, work, NULL, err);
}

static int end_now(struct fixture *f, uint64_t request, struct msg_slot *ret_slot, struct err *err)
{
    struct fill_work *work;
    int r = fill_end(f->fills, request, &work, err);
    return r < 0 ? r : through(f, work, ret_slot, err);
}

static void take(void *user, const struct msg_prepare_data *data, const float *scales, const uint8_t *codes)
{
    struct fixture *f = user;
    struct err err;
    f->last = *data;
    memcpy(f->last_codes, codes, (size_t)data->rows * data->columns);
    memcpy(f->last_scales, scales, data->scale_count * sizeof *scales);
    f->last.codes = f->last_codes;
    f->last.scales = (const uint8_t *)f->last_scales;
    if (f->seen++ == f->skip)
        return;
    if (data_now(f, f->request, &f->last, &err) < 0)
        fail_msg("%s", err.message);
}

static void begin(struct fixture *f, uint64_t request, const struct msg_prepare_begin *words)
{
    struct err err;
    if (begin_now(f, request, words, &err) < 0)
        fail_msg("%s", err.message);
    f->request = request;
    f->seen = 0;
}

static void test_same_as_kernels(void **state)
{
    struct fixture *f = *state;
    for (int kind = MSG_SLOT_DENSE; kind <= MSG_SLOT_MOE; kind++) {
        struct msg_prepare_begin words = model_words((enum msg_slot_kind)kind, (uint32_t)kind);
        begin(f, 5 + (uint64_t)kind, &words);
        model_pieces(&words, SEED, take, f);
        struct msg_slot slot;
        assert_int_equal(end_now(f, f->request, &slot, NULL), 1);
        uint8_t *want = model_pack(&words, SEED);
        uint32_t at = wbuf_find(f->wbuf, words.model_key, words.layer);
        assert_int_not_equal(at, WBUF_NONE);
        assert_memory_equal(wbuf_data(f->wbuf, at), want, slot.bytes);
        assert_int_equal(slot.checksum, checksum_of(want, slot.bytes));
        assert_int_equal(slot.kind, kind);
        free(want);
    }
    assert_false(fills_active(f->fills));
}

#define PIECES_MAX 256
struct pieces {
    struct msg_prepare_data list[PIECES_MAX];
    size_t count;
};

static void keep_piece(void *user, const struct msg_prepare_data *data, const float *scales, const uint8_t *codes)
{
    struct pieces *pieces = user;
    size_t code_bytes = (size_t)data->rows * data->columns, scale_bytes = data->scale_count * sizeof *scales;
    uint8_t *copy = malloc(code_bytes + scale_bytes);
    assert_non_null(copy);
    assert_true(pieces->count < PIECES_MAX);
    memcpy(copy, scales, scale_bytes);
    memcpy(copy + scale_bytes, codes, code_bytes);
    pieces->list[pieces->count] = *data;
    pieces->list[pieces->count].scales = copy;
    pieces->list[pieces->count++].codes = copy + scale_bytes;
}

static int by_expert(const void *a, const void *b)
{
    const struct msg_prepare_data *x = a, *y = b;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

static int against_expert(const void *a, const void *b)
{
    return by_expert(b, a);
}

/* Expert by expert, as a load sends them, each goes through the draft and is summed as it is whole; backwards the sums come at the end.
 * Pages, checksums of parts and of the whole are those of packing in place. */
static void test_expert_by_expert(void **state)
{
    struct fixture *f = *state;
    int (*const orders[])(const void *, const void *) = {by_expert, against_expert, by_expert};
    for (uint32_t i = 0; i < 3; i++) {
        const struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, i);
        struct pieces pieces = {0};
        struct msg_slot slot;
        if (i == 2)
            wbuf_keep_pages(f->wbuf); /* from here on in place */
        model_pieces(&words, SEED, keep_piece, &pieces);
        qsort(pieces.list, pieces.count, sizeof *pieces.list, orders[i]);
        begin(f, i, &words);
        for (size_t p = 0; p < pieces.count; p++)
            assert_int_equal(data_now(f, i, &pieces.list[p], NULL), 0);
        assert_int_equal(end_now(f, i, &slot, NULL), 1);
        uint32_t at = wbuf_find(f->wbuf, words.model_key, i);
        struct wbuf_sums sums = wbuf_sums(f->wbuf, at);
        uint8_t *want = model_pack(&words, SEED);
        assert_memory_equal(wbuf_data(f->wbuf, at), want, slot.bytes);
        assert_int_equal(slot.checksum, checksum_of(want, slot.bytes));
        assert_int_equal(sums.parts, 6);
        for (uint32_t part = 0; part < 5; part++)
            assert_int_equal(sums.part_sums[part], checksum_of(want + part * sums.part_bytes, sums.part_bytes));
        assert_int_equal(sums.part_sums[5], checksum_of(want + sums.shared_offset, sums.shared_bytes));
        for (size_t p = 0; p < pieces.count; p++)
            free((void *)pieces.list[p].scales);
        free(want);
    }
}

/* Slices that begin and end at 8 mod 16, and a single unit of 8. */
static void test_units_of_eight(void **state)
{
    static const struct msg_slice slices[] = {{80, 104, 48, 48}, {80, 8, 8, 8}, {80, 120, 64, 8}, {80, 96, 40, 40}};
    struct fixture *f = *state;
    for (uint32_t i = 0; i < 4; i++) {
        struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, i);
        words.multiple_of = 8;
        words.slice = slices[i];
        words.shared = slices[3 - i];
        begin(f, 5 + i, &words);
        model_pieces(&words, SEED, take, f);
        struct msg_slot slot;
        struct err err = {0};
        if (end_now(f, f->request, &slot, &err) != 1)
            fail_msg("%s", err.message);
        uint8_t *want = model_pack(&words, SEED);
        assert_memory_equal(wbuf_data(f->wbuf, wbuf_find(f->wbuf, words.model_key, i)), want, slot.bytes);
        free(want);
        begin(f, 100 + i, &words);
        f->skip = 1; /* the first piece that is not there is named by a row that a tile begins with */
        model_pieces(&words, SEED, take, f);
        f->skip = UINT64_MAX;
        assert_int_equal(end_now(f, f->request, &slot, &err), -EINVAL);
        assert_non_null(strstr(err.message, "are missing"));
    }
}

static void test_missing(void **state)
{
    struct fixture *f = *state;
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 4);
    for (uint64_t skip = 0;; skip++) {
        f->skip = skip;
        begin(f, 9, &words);
        model_pieces(&words, SEED, take, f);
        struct msg_slot slot;
        struct err err = {0};
        int r = end_now(f, 9, &slot, &err);
        if (skip >= f->seen) {
            assert_int_equal(r, 1);
            break;
        }
        assert_int_equal(r, -EINVAL);
        assert_non_null(strstr(err.message, "are missing"));
        assert_non_null(strstr(err.message, "prepare of layer 4"));
        assert_int_equal(wbuf_used(f->wbuf), 0);
        /* It names the place: sending just that again would have been right. */
        assert_true(end_now(f, 9, &slot, &err) < 0);
    }
}

static void test_double(void **state)
{
    struct fixture *f = *state;
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 4);
    begin(f, 9, &words);
    model_pieces(&words, SEED, take, f);
    struct err err;
    assert_int_equal(data_now(f, 9, &f->last, &err), -EINVAL);
    assert_non_null(strstr(err.message, "arrived twice"));
    assert_int_equal(wbuf_used(f->wbuf), 0);
    /* FAIL was said once; the rest of the request passes unheard. */
    struct msg_slot slot;
    assert_int_equal(data_now(f, 9, &f->last, &err), 0);
    assert_int_equal(end_now(f, 9, &slot, &err), 0);
    assert_int_equal(end_now(f, 9, &slot, &err), -EPROTO);
}

static void refused(struct fixture *f, const struct msg_prepare_data *data, enum err_name name, const char *sentence)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 4);
    begin(f, f->request + 1, &words);
    struct err err = {0};
    assert_true(data_now(f, f->request, data, &err) < 0);
    assert_int_equal(err.name, name);
    if (!strstr(err.message, sentence))
        fail_msg("\"%s\" does not hold \"%s\"", err.message, sentence);
    assert_int_equal(wbuf_used(f->wbuf), 0);
}

static void test_bad_data(void **state)
{
    struct fixture *f = *state;
    uint8_t codes[32 * 80] = {0};
    float scales[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct msg_prepare_data good = {.expert = 3,
                                    .matrix = KERNELS_GATE,
                                    .rows = 32,
                                    .columns = 80,
                                    .scale_count = 2,
                                    .scales = (const uint8_t *)scales,
                                    .codes = codes};
    struct msg_prepare_data data = good;
    codes[17 * 80 + 5] = 0x7f;
    refused(f, &data, ERR_BAD_CHECKPOINT, "expert 3: gate_proj[17, 5]");
    codes[17 * 80 + 5] = 0;
    scales[1] = 1.0f / 0.0f;
    refused(f, &data, ERR_BAD_CHECKPOINT, "expert 3");
    scales[1] = 0x1p81f;
    refused(f, &data, ERR_BAD_CHECKPOINT, "2^80");
    scales[1] = 1;
    data.expert = 5;
    refused(f, &data, ERR_BAD_EXPERT, "expert 5, the slot has 5");
    data = good;
    data.columns = 79;
    refused(f, &data, ERR_BAD_SHAPE, "rows of 79 columns, the slice has 80");
    data = good;
    data.first_row = 32;
    refused(f, &data, ERR_BAD_SHAPE, "32 rows from row 32 on, the slice has 48");
    data.first_row = UINT32_MAX - 15;
    refused(f, &data, ERR_BAD_SHAPE, "the slice has 48");
    data = good;
    data.first_row = 8;
    refused(f, &data, ERR_BAD_SHAPE, "multiples of 16");
    data = good;
    data.rows = 24;
    refused(f, &data, ERR_BAD_SHAPE, "24 rows");
    data = good;
    data.scale_count = 3;
    refused(f, &data, ERR_BAD_SHAPE, "3 scales");
    data = good;
    data.expert = MSG_EXPERT_SHARED;
    data.matrix = KERNELS_DOWN;
    refused(f, &data, ERR_BAD_SHAPE, "shared expert");
}

static void test_order_of_things(void **state)
{
    struct fixture *f = *state;
    struct msg_prepare_begin words = model_words(MSG_SLOT_DENSE, 1), other = words;
    struct err err;
    struct msg_slot slot;
    assert_int_equal(data_now(f, 77, &f->last, &err), -EPROTO);
    assert_non_null(strstr(err.message, "no PREPARE_BEGIN"));
    assert_int_equal(data_now(f, 77, &f->last, &err), 0);
    begin(f, 1, &words);
    assert_int_equal(begin_now(f, 2, &words, &err), -EBUSY);
    model_pieces(&words, SEED, take, f);
    assert_int_equal(end_now(f, 1, &slot, &err), 1);
    /* Another rank of the same model takes the place of all of it. */
    other.layer = 2;
    begin(f, 3, &other);
    model_pieces(&other, SEED, take, f);
    assert_int_equal(end_now(f, 3, &slot, &err), 1);
    assert_int_not_equal(wbuf_find(f->wbuf, words.model_key, 1), WBUF_NONE);
    other.rank = 2;
    begin(f, 4, &other);
    assert_int_equal(wbuf_find(f->wbuf, words.model_key, 1), WBUF_NONE);
    assert_int_equal(wbuf_find(f->wbuf, words.model_key, 2), WBUF_NONE);
    fill_abort(f->fills, 4);
    assert_int_equal(wbuf_used(f->wbuf), 0);
    /* Bounded. */
    for (uint64_t i = 0; i < FILLS_MAX; i++) {
        other.layer = (uint32_t)i;
        begin(f, 100 + i, &other);
    }
    other.layer = 99;
    assert_int_equal(begin_now(f, 200, &other, &err), -EBUSY);
    uint64_t requests[FILLS_MAX];
    size_t count;
    fills_drop(f->fills, NULL, requests, &count);
    assert_int_equal(count, FILLS_MAX);
    assert_int_equal(wbuf_used(f->wbuf), 0);
}

/* Pages that stay with the buffer hold what was there: padding is zero all the same. */
static void test_kept_pages(void **state)
{
    struct fixture *f = *state;
    const struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 4);
    struct err err = {0};
    struct msg_slot slot;
    uint64_t sums[3];
    for (int round = 0; round < 3; round++) {
        if (round == 1)
            wbuf_keep_pages(f->wbuf);
        begin(f, (uint64_t)round, &words);
        uint32_t at = wbuf_find_any(f->wbuf, words.model_key, 4);
        const struct wbuf_pages pages = wbuf_pages(f->wbuf, at);
        assert_int_equal(pages.zero, round == 0);
        model_pieces(&words, SEED, take, f);
        assert_int_equal(end_now(f, (uint64_t)round, &slot, &err), 1);
        sums[round] = slot.checksum;
        memset(wbuf_data(f->wbuf, at), 0xff, pages.bytes);
        wbuf_drop(f->wbuf, at);
    }
    assert_true(sums[0] == sums[1] && sums[0] == sums[2]);
}

/* Slots go while work on them is out: their memory is free when the work is back, and what came of it touches nobody else. */
static void test_dropped_at_work(void **state)
{
    struct fixture *f = *state;
    struct msg_prepare_begin words = model_words(MSG_SLOT_DENSE, 1);
    struct err err = {0};
    struct msg_slot slot;
    struct fill_work *rows = NULL, *sums = NULL;
    begin(f, 1, &words); /* fills f->last */
    model_pieces(&words, SEED, take, f);
    fill_abort(f->fills, 1);
    assert_int_equal(fill_begin(f->fills, 2, &words, &err), 0);
    assert_int_equal(fill_data(f->fills, 2, &f->last, &rows, &err), 0);
    assert_int_equal(fills_out(f->fills), 1);
    fill_abort(f->fills, 2);
    assert_false(fills_active(f->fills));
    assert_int_equal(wbuf_doomed(f->wbuf), 1);
    assert_int_not_equal(wbuf_used(f->wbuf), 0);
    /* The same request again: the old rows are not the new fill's. */
    begin(f, 2, &words);
    uint8_t *codes = (uint8_t *)rows->rows.codes;
    codes[0] = 0x7f;
    fill_work_run(rows);
    assert_int_equal(rows->code, -EINVAL);
    assert_int_equal(fill_done(f->fills, rows, &slot, &err), 0);
    assert_true(fills_active(f->fills));
    assert_int_equal(wbuf_doomed(f->wbuf), 0);
    model_pieces(&words, SEED, take, f);
    /* Nothing more is taken once END has come, and a drop before the checksums are there leaves no finished slot. */
    assert_int_equal(fill_end(f->fills, 2, &sums, &err), 0);
    assert_non_null(sums);
    uint64_t requests[FILLS_MAX];
    size_t count;
    fills_drop(f->fills, NULL, requests, &count);
    assert_int_equal(count, 1);
    fill_work_run(sums);
    assert_int_equal(fill_done(f->fills, sums, &slot, &err), 0);
    assert_int_equal(wbuf_find_any(f->wbuf, words.model_key, 1), WBUF_NONE);
    assert_int_equal(wbuf_used(f->wbuf), 0);
    assert_int_equal(fills_out(f->fills), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_as_kernels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_expert_by_expert, setup, teardown),
        cmocka_unit_test_setup_teardown(test_units_of_eight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_double, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_data, setup, teardown),
        cmocka_unit_test_setup_teardown(test_order_of_things, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kept_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dropped_at_work, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

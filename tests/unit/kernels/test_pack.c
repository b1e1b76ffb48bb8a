/* What packing refuses, and that it leaves nothing behind then. The packed bytes themselves: test_golden.c and checkkern. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "proto/base/cleanup.h"

#define HIDDEN 100
#define BEGIN 96
#define NEURONS 72
#define TILES 7
#define SEGMENTS 2 /* of down: 32 columns and 40 */

struct fixture {
    struct layout_mlp layout;
    uint8_t *expert;
    uint8_t codes[HIDDEN * HIDDEN];
    float scales[TILES * SEGMENTS];
    struct kernels_rows rows;
    struct err err;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_int_equal(layout_mlp_init(&f->layout, HIDDEN, BEGIN, NEURONS, 16, NULL), 0);
    f->expert = aligned_alloc(64, (size_t)f->layout.expert_bytes);
    memset(f->codes, 0x38, sizeof(f->codes));
    for (size_t i = 0; i < TILES * SEGMENTS; i++)
        f->scales[i] = (float)(i + 1);
    kernels_pack_begin(&f->layout, f->expert);
    f->rows = (struct kernels_rows){.matrix = KERNELS_DOWN, .rows = HIDDEN, .codes = f->codes, .scales = f->scales};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    free(f->expert);
    free(f);
    return 0;
}

static void refused(struct fixture *f, enum err_name name, const char *sentence)
{
    assert_int_equal(kernels_pack(&f->layout, f->expert, &f->rows, &f->err), -EINVAL);
    assert_int_equal(f->err.name, name);
    if (!strstr(f->err.message, sentence))
        fail_msg("\"%s\" does not say \"%s\"", f->err.message, sentence);
    for (uint64_t i = 0; i < f->layout.expert_bytes; i++)
        assert_int_equal(f->expert[i], 0);
}

static void test_nan_code(void **state)
{
    struct fixture *f = *state;

    f->codes[5 * NEURONS + 7] = 0x7f;
    refused(f, ERR_BAD_CHECKPOINT, "down_proj[5, 7]: code 0x7f is NaN");
    assert_non_null(strstr(f->err.values, "\"row\":5"));
    assert_non_null(strstr(f->err.values, "\"column\":7"));
    f->codes[5 * NEURONS + 7] = 0x38;
    f->codes[NEURONS * HIDDEN - 1] = 0xff; /* the last one */
    refused(f, ERR_BAD_CHECKPOINT, "down_proj[99, 71]: code 0xff is NaN");
}

/* Rows in the middle are named in the matrix's numbering. */
static void test_nan_in_part(void **state)
{
    struct fixture *f = *state;

    f->rows.matrix = KERNELS_UP;
    f->rows.first_row = 32;
    f->rows.rows = 16;
    f->codes[3 * HIDDEN + 99] = 0xff;
    refused(f, ERR_BAD_CHECKPOINT, "up_proj[35, 99]: code 0xff");
}

static void test_scales(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -3.4e38f, 0x1.000002p80f};
    struct fixture *f = *state;

    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        f->scales[3] = bad[i]; /* tile 1, segment 1 */
        refused(f, ERR_BAD_CHECKPOINT, "down_proj[16, 32]: its block's scale is");
    }
    assert_true(kernels_scale_ok(0.0f));
    assert_true(kernels_scale_ok(-1.0f));
    assert_true(kernels_scale_ok(1e-38f));
    assert_true(kernels_scale_ok(0x1p80f));
    assert_true(kernels_scale_ok(-0x1p80f));
}

static void test_shapes(void **state)
{
    struct fixture *f = *state;

    f->rows.rows = 0;
    refused(f, ERR_BAD_SHAPE, "down_proj: 0 rows");
    f->rows.rows = HIDDEN + 1;
    refused(f, ERR_BAD_SHAPE, "101 rows from row 0 on do not lie within its 100 rows");
    f->rows.first_row = 112;
    f->rows.rows = 16;
    refused(f, ERR_BAD_SHAPE, "from row 112");
    f->rows.first_row = 16;
    f->rows.rows = UINT32_MAX - 15;
    refused(f, ERR_BAD_SHAPE, "4294967280 rows");
    f->rows.first_row = 8;
    f->rows.rows = 16;
    refused(f, ERR_BAD_SHAPE, "first row 8 is no multiple of 16");
    f->rows.first_row = 0;
    f->rows.rows = 24;
    refused(f, ERR_BAD_SHAPE, "24 rows from row 0 on are no whole tiles");
}

/* Parts in any order give what the whole gives; rows not given stay zero. */
static void test_parts(void **state)
{
    static const uint32_t firsts[] = {80, 0, 48}, counts[] = {20, 48, 32};
    struct fixture *f = *state;
    _cleanup_(freep) uint8_t *whole = aligned_alloc(64, (size_t)f->layout.expert_bytes);
    uint8_t *parts = f->expert;
    float scale;

    for (size_t i = 0; i < NEURONS * HIDDEN; i++)
        f->codes[i] = (uint8_t)(i * 31 % 127 | (i & 1) << 7);
    kernels_pack_begin(&f->layout, whole);
    assert_int_equal(kernels_pack(&f->layout, whole, &f->rows, &f->err), 0);
    for (size_t i = 0; i < ARRAY_LENGTH(firsts); i++) {
        struct kernels_rows part = f->rows;

        part.first_row = firsts[i];
        part.rows = counts[i];
        part.codes += firsts[i] * NEURONS;
        part.scales += firsts[i] / 16 * SEGMENTS;
        assert_int_equal(kernels_unpack(&f->layout, parts, KERNELS_DOWN, firsts[i], 0, &scale), 0);
        assert_int_equal(kernels_pack(&f->layout, parts, &part, &f->err), 0);
    }
    assert_memory_equal(parts, whole, (size_t)f->layout.expert_bytes);
    assert_int_equal(kernels_unpack(&f->layout, parts, KERNELS_DOWN, 99, 71, &scale), kernels_fp9_of_e4m3(f->codes[99 * NEURONS + 71]));
    assert_true(scale == f->scales[6 * SEGMENTS + 1]);
}

/* Rows cut out of wider ones; what stands beside them, NaN codes too, is not looked at. */
static void test_stride(void **state)
{
    struct fixture *f = *state;
    const size_t stride = NEURONS + 24;
    _cleanup_(freep) uint8_t *whole = aligned_alloc(64, (size_t)f->layout.expert_bytes);
    _cleanup_(freep) uint8_t *wide = malloc(HIDDEN * stride);

    memset(wide, 0x7f, HIDDEN * stride);
    for (size_t row = 0; row < HIDDEN; row++)
        for (size_t column = 0; column < NEURONS; column++)
            wide[row * stride + 8 + column] = f->codes[row * NEURONS + column] = (uint8_t)((row * 7 + column * 31) % 127 | (row & 1) << 7);
    kernels_pack_begin(&f->layout, whole);
    assert_int_equal(kernels_pack(&f->layout, whole, &f->rows, &f->err), 0);
    f->rows.codes = wide + 8;
    f->rows.stride = stride;
    wide[8 + 3 * stride + 5] ^= 0x7f ^ f->codes[3 * NEURONS + 5];
    refused(f, ERR_BAD_CHECKPOINT, "down_proj[3, 5]: code 0x7f");
    wide[8 + 3 * stride + 5] = f->codes[3 * NEURONS + 5];
    assert_int_equal(kernels_pack(&f->layout, f->expert, &f->rows, &f->err), 0);
    assert_memory_equal(f->expert, whole, (size_t)f->layout.expert_bytes);
}

/* A slice that begins at 8 mod 16: a first tile of 8 rows, and what is refused because of it. */
static void test_half_panel(void **state)
{
    static const uint32_t firsts[] = {24, 0, 8}, counts[] = {16, 8, 16};
    struct fixture *f = *state;
    _cleanup_(freep) uint8_t *whole = NULL, *parts = NULL;
    float scale;

    assert_int_equal(layout_mlp_init(&f->layout, 64, 120, 40, 8, NULL), 0);
    whole = aligned_alloc(64, (size_t)f->layout.expert_bytes);
    parts = aligned_alloc(64, (size_t)f->layout.expert_bytes);
    for (size_t i = 0; i < 40 * 64; i++)
        f->codes[i] = (uint8_t)(i * 29 % 127 | (i & 2) << 6);
    kernels_pack_begin(&f->layout, whole);
    kernels_pack_begin(&f->layout, parts);
    f->rows = (struct kernels_rows){.matrix = KERNELS_UP, .rows = 40, .codes = f->codes, .scales = f->scales};
    assert_int_equal(kernels_pack(&f->layout, whole, &f->rows, &f->err), 0);
    for (size_t i = 0; i < ARRAY_LENGTH(firsts); i++) {
        struct kernels_rows part = {.matrix = KERNELS_UP, .first_row = firsts[i], .rows = counts[i]};

        part.codes = f->codes + firsts[i] * 64;
        part.scales = f->scales + (firsts[i] + 8) / 16;
        assert_int_equal(kernels_pack(&f->layout, parts, &part, &f->err), 0);
    }
    assert_memory_equal(parts, whole, (size_t)f->layout.expert_bytes);
    for (uint32_t row = 0; row < 40; row++)
        for (uint32_t column = 0; column < 64; column++) {
            assert_int_equal(kernels_unpack(&f->layout, whole, KERNELS_UP, row, column, &scale),
                             kernels_fp9_of_e4m3(f->codes[row * 64 + column]));
            assert_true(scale == f->scales[(8 + row) / 16]);
            assert_int_equal(kernels_unpack(&f->layout, whole, KERNELS_GATE, row, column, &scale), 0); /* beside it, untouched */
        }

    memset(f->expert, 0, (size_t)f->layout.expert_bytes);
    f->rows.first_row = 16;
    f->rows.rows = 16;
    refused(f, ERR_BAD_SHAPE, "up_proj: first row 16 is neither 0 nor 8 more than a multiple of 16");
    f->rows.first_row = 0;
    refused(f, ERR_BAD_SHAPE, "16 rows from row 0 on are no whole tiles");
    f->rows.rows = 40;
    f->scales[2] = NAN;
    refused(f, ERR_BAD_CHECKPOINT, "up_proj[24, 0]: its block's scale is");
    f->rows.matrix = KERNELS_DOWN; /* segments of 8 columns and 32 */
    f->rows.rows = 64;
    refused(f, ERR_BAD_CHECKPOINT, "down_proj[16, 0]: its block's scale is");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nan_code, setup, teardown), cmocka_unit_test_setup_teardown(test_nan_in_part, setup, teardown),
        cmocka_unit_test_setup_teardown(test_scales, setup, teardown),   cmocka_unit_test_setup_teardown(test_shapes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stride, setup, teardown),   cmocka_unit_test_setup_teardown(test_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stride, setup, teardown),   cmocka_unit_test_setup_teardown(test_half_panel, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

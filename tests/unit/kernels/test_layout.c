#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "kernels/layout.h"

static struct layout_mlp layout_of(uint32_t hidden, uint32_t begin, uint32_t neurons, uint32_t pad_to)
{
    struct layout_mlp layout;

    assert_int_equal(layout_mlp_init(&layout, hidden, begin, neurons, pad_to, NULL), 0);
    return layout;
}

/* A rank of V3.2 at tp 32, multiple_of 64: the sizes of the seed, 9/8 byte a weight and a little for the scales. */
static void test_sizes(void **state)
{
    struct layout_mlp layout = layout_of(7168, 64, 64, 64);

    (void)state;
    assert_int_equal(layout.gate_up.segments, 56);
    assert_int_equal(layout.gate_up.groups, 448);
    assert_int_equal(layout.gate_up.panels, 4);
    assert_int_equal(layout.gate_up.scales_offset, 0);
    assert_int_equal(layout.gate_up.panels_offset, 4 * 56 * 2 * 4);
    assert_int_equal(layout.down.segments, 1);
    assert_int_equal(layout.down.groups, 4);
    assert_int_equal(layout.down.panels, 224);
    assert_int_equal(layout.down.scales_offset, 1792 + 4 * 448 * 576);
    assert_int_equal(layout.down.panels_offset, layout.down.scales_offset + 1792);
    assert_int_equal(layout.expert_bytes, layout.down.panels_offset + 224 * 4 * 576);
    assert_int_equal(layout.expert_bytes, 3 * 64 * 7168 * 9 / 8 + 2 * 1792);
}

/* Every slice of a dimension: its segments cover its columns once, and each lies within one 128-block. */
static void test_segments(void **state)
{
    (void)state;
    for (uint32_t begin = 0; begin < 384; begin += 16)
        for (uint32_t neurons = 1; neurons <= 400; neurons += 7) {
            struct layout_mlp layout = layout_of(100, begin, neurons, 16);
            uint32_t next = 0, groups = 0;

            for (uint32_t i = 0; i < layout.down.segments; i++) {
                struct layout_segment segment = layout_segment(&layout.down, i);

                assert_int_equal(segment.first, next);
                assert_int_not_equal(segment.length, 0);
                assert_int_equal(segment.first_group, groups);
                assert_int_equal((begin + segment.first) / 128, (begin + segment.first + segment.length - 1) / 128);
                if (i > 0)
                    assert_int_equal((begin + segment.first) % 128, 0);
                next += segment.length;
                groups += (segment.length + 15) / 16;
            }
            assert_int_equal(next, neurons);
            assert_int_equal(groups, layout.down.groups);
        }
}

static void test_padding(void **state)
{
    struct layout_mlp smallest = layout_of(100, 0, 1, 16);

    (void)state;
    assert_int_equal(layout_of(100, 0, 160, 128).neurons_padded, 256);
    assert_int_equal(smallest.neurons_padded, 16);
    assert_int_equal(layout_of(100, 0, 160, 128).gate_up.panels, 16);
    assert_int_equal(layout_of(100, 0, 160, 128).down.panels, 4);
    assert_int_equal(smallest.expert_bytes % LAYOUT_ALIGN, 0);
    assert_int_equal(layout_vector_floats(&smallest.gate_up), 112);
}

static void test_largest(void **state)
{
    struct layout_mlp layout = layout_of(LAYOUT_HIDDEN_MAX, 0, LAYOUT_NEURONS_MAX, 128);

    (void)state;
    assert_true(layout.expert_bytes > UINT64_C(3) * LAYOUT_HIDDEN_MAX * LAYOUT_NEURONS_MAX);
}

static void refused(uint32_t hidden, uint32_t begin, uint32_t neurons, uint32_t pad_to, const char *number)
{
    struct layout_mlp layout;
    struct err err;

    memset(&layout, 0xa5, sizeof(layout));
    assert_int_equal(layout_mlp_init(&layout, hidden, begin, neurons, pad_to, &err), -EINVAL);
    assert_int_equal(err.name, ERR_BAD_SHAPE);
    assert_non_null(strstr(err.message, number));
    assert_int_equal(layout.hidden, 0xa5a5a5a5);
}

static void test_refusals(void **state)
{
    (void)state;
    refused(0, 0, 16, 16, "hidden size 0");
    refused(65537, 0, 16, 16, "65537");
    refused(64, 0, 0, 16, "0 neurons");
    refused(64, 0, 262145, 16, "262145");
    refused(64, 262128, 32, 16, "262128");
    refused(64, UINT32_MAX - 15, 32, 16, "4294967280");
    refused(64, 24, 16, 16, "neuron 24");
    refused(64, 0, 16, 0, "padded to 0");
    refused(64, 0, 16, 24, "padded to 24");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_segments), cmocka_unit_test(test_padding),
        cmocka_unit_test(test_largest), cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
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

/* Every slice of a dimension: its segments cover its columns once, each within one 128-block, and their groups lie one after another. */
static void test_segments(void **state)
{
    (void)state;
    for (uint32_t begin = 0; begin < 384; begin += 8)
        for (uint32_t neurons = 1; neurons <= 400; neurons += begin % 3 ? 7 : 8)
            for (uint32_t pad_to = 8; pad_to <= 16; pad_to += 8) {
                struct layout_mlp layout = layout_of(100, begin, neurons, pad_to);
                const struct layout_matrix *down = &layout.down;
                uint32_t next = 0, groups = 0, halves = 0, real_end = begin + neurons;

                for (uint32_t i = 0; i < down->segments; i++) {
                    struct layout_segment segment = layout_segment(down, i);

                    assert_int_equal(segment.first, next);
                    assert_int_not_equal(segment.length, 0);
                    assert_int_equal(segment.first_group, groups);
                    assert_int_equal(segment.offset, groups * 576 + halves * 288);
                    assert_int_equal((begin + segment.first) / 128, (begin + segment.first + segment.length - 1) / 128);
                    assert_in_range(segment.length, 1, 16 * segment.groups + 8 * segment.half);
                    if (i > 0)
                        assert_int_equal((begin + segment.first) % 128, 0);
                    if (i + 1 < down->segments)
                        assert_int_equal(segment.length, 16 * segment.groups + 8 * segment.half);
                    else
                        assert_int_equal(segment.half, down->last_half);
                    next += segment.length;
                    groups += segment.groups;
                    halves += segment.half;
                }
                assert_int_equal(next, neurons);
                assert_int_equal(groups, down->groups);
                assert_int_equal(halves, down->first_half + down->last_half);
                assert_int_equal(down->panel_bytes, groups * 576 + halves * 288);
                assert_int_equal(down->columns_padded, 16 * groups + 8 * halves);
                /* K ends where the last panel with a real neuron ends: the next multiple of 16, of 8 where nothing is padded further. */
                assert_true(begin + down->columns_padded == (real_end + 15) / 16 * 16 ||
                            (begin + down->columns_padded == (real_end + 7) / 8 * 8 && (begin + layout.neurons_padded) % 16 == 8));
                if (begin % 16 == 0 && pad_to == 16)
                    assert_true(halves == 0 && !layout.gate_up.head_half && !layout.gate_up.tail_half);
            }
}

/* Gate and up: every tile within one of the checkpoint's 16-row tiles, no neuron lost; a panel's place is the sum of those before. */
static void test_tiles(void **state)
{
    (void)state;
    for (uint32_t begin = 0; begin < 144; begin += 8)
        for (uint32_t neurons = 1; neurons <= 144; neurons++) {
            struct layout_mlp layout = layout_of(40, begin, neurons, 8);
            const struct layout_matrix *gate_up = &layout.gate_up;
            uint64_t offset = 0;
            uint32_t row = 0;

            for (uint32_t panel = 0; panel < gate_up->panels; panel++) {
                bool half = layout_panel_is_half(gate_up, panel);

                assert_int_equal(layout_panel_offset(gate_up, panel), offset);
                assert_int_equal(layout_tile_row(gate_up, panel), row);
                assert_int_equal(layout_tile(gate_up, row), panel);
                assert_true(layout_tile_begins(gate_up, row));
                assert_false(layout_tile_begins(gate_up, row + 1));
                assert_int_equal((begin + row) / 16, (begin + row + (half ? 8 : 16) - 1) / 16);
                offset += gate_up->panel_bytes / (half ? 2 : 1);
                row += half ? 8 : 16;
            }
            assert_int_equal(row, layout.neurons_padded);
            assert_int_equal(layout_panel_offset(gate_up, gate_up->panels), offset);
            assert_int_equal(layout.neuron_panels, layout_tiles(gate_up, 0, neurons));
            assert_int_equal(layout.neuron_panels, gate_up->panels); /* units of 8 leave no panel of padding only */
        }
    assert_int_equal(layout_of(40, 8, 8, 8).gate_up.panels, 1);
    assert_int_equal(layout_of(40, 8, 16, 8).gate_up.panels, 2);
    assert_int_equal(layout_of(40, 8, 16, 64).neuron_panels, 2);
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

/* A duck's slice of an expert of Qwen3-30B and of Qwen3-235B, of all 32: nothing is padded. */
static void test_bytes_per_param(void **state)
{
    struct layout_mlp layout = layout_of(2048, 24, 24, 8);

    (void)state;
    assert_int_equal(layout.gate_up.panels, 2);
    assert_true(layout.gate_up.head_half && !layout.gate_up.tail_half);
    assert_int_equal(layout_panel_offset(&layout.gate_up, 2), 2 * 24 * 2048 * 9 / 8);
    assert_int_equal(layout.down.panel_bytes, 576 + 288);
    assert_int_equal(layout_scale_bytes(&layout), (2 * 2 * 16 + 2 * 64) * 4);
    assert_int_equal(layout_real_bytes(&layout), 3 * 24 * 2048 * 9 / 8 + layout_scale_bytes(&layout));
    assert_int_equal(layout.expert_bytes, layout_real_bytes(&layout)); /* every part a multiple of 64 by itself */
    assert_true(fabs(layout_bytes_per_param(&layout) - (1.125 + 768.0 / (3 * 24 * 2048))) < 1e-12);

    layout = layout_of(4096, 48 * 5, 48, 16);
    assert_int_equal(layout.expert_bytes, layout_real_bytes(&layout));
    layout = layout_of(100, 0, 8, 16); /* padded: 16 neurons laid out for 8, 112 columns and 128 rows for 100 */
    assert_int_equal(layout_real_bytes(&layout), 3 * 100 * 8 * 9 / 8 + (2 + 7) * 4);
    assert_int_equal(layout.expert_bytes, 64 + 7 * 576 + 64 + 4 * 576);
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
    refused(64, 20, 16, 16, "neuron 20");
    refused(64, 0, 16, 0, "padded to 0");
    refused(64, 0, 16, 20, "padded to 20");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),    cmocka_unit_test(test_segments),        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_padding),  cmocka_unit_test(test_bytes_per_param), cmocka_unit_test(test_largest),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every tier gives the golden vectors, which an independent program wrote (tests/data/golden/README.md). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/tiers.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"

#define FILE_MAX_BYTES (1u << 20)

struct golden {
    uint8_t *bytes;
    size_t length;
    struct bytes_reader reader;
    uint32_t hidden, begin, neurons, pad_to, experts, shared_neurons, tokens, top_k;
    struct layout_mlp layout, shared_layout;
    uint8_t *packed, *shared_packed;
};

static void golden_open(struct golden *golden, const char *name)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s.bin", getenv("FP9_GOLDEN"), name);
    file = fopen(path, "rb");
    assert_non_null(file);
    golden->bytes = malloc(FILE_MAX_BYTES);
    golden->length = fread(golden->bytes, 1, FILE_MAX_BYTES, file);
    fclose(file);
    golden->reader = bytes_reader_init(golden->bytes, golden->length);
}

/* A copy that is aligned for its elements; the caller frees it. */
static void *take(struct golden *golden, size_t bytes)
{
    void *copy = malloc(bytes ? bytes : 1);

    bytes_read_copy(&golden->reader, copy, bytes);
    return copy;
}

static void golden_expert(struct golden *golden, const struct layout_mlp *layout, uint8_t *to)
{
    kernels_pack_begin(layout, to);
    for (int m = KERNELS_GATE; m <= KERNELS_DOWN; m++) {
        const struct layout_matrix *matrix = m == KERNELS_DOWN ? &layout->down : &layout->gate_up;
        uint32_t rows = m == KERNELS_DOWN ? layout->hidden : layout->neurons;
        _cleanup_(freep) uint8_t *codes = take(golden, (size_t)rows * matrix->columns);
        _cleanup_(freep) float *scales = take(golden, layout_tiles(matrix, 0, rows) * (size_t)matrix->segments * sizeof(float));
        struct kernels_rows all = {.matrix = (enum kernels_matrix)m, .rows = rows, .codes = codes, .scales = scales};
        struct err err = {0};

        if (kernels_pack(layout, to, &all, &err) < 0)
            fail_msg("%s", err.message);
    }
}

static void golden_weights(struct golden *golden)
{
    uint8_t magic[8];

    bytes_read_copy(&golden->reader, magic, sizeof(magic));
    assert_memory_equal(magic, "FP9GOLD1", 8);
    golden->hidden = bytes_read_u32(&golden->reader);
    golden->begin = bytes_read_u32(&golden->reader);
    golden->neurons = bytes_read_u32(&golden->reader);
    golden->pad_to = bytes_read_u32(&golden->reader);
    golden->experts = bytes_read_u32(&golden->reader);
    golden->shared_neurons = bytes_read_u32(&golden->reader);
    golden->tokens = bytes_read_u32(&golden->reader);
    golden->top_k = bytes_read_u32(&golden->reader);
    assert_int_equal(layout_mlp_init(&golden->layout, golden->hidden, golden->begin, golden->neurons, golden->pad_to, NULL), 0);
    golden->packed = aligned_alloc(64, golden->experts * (size_t)golden->layout.expert_bytes);
    for (uint32_t i = 0; i < golden->experts; i++)
        golden_expert(golden, &golden->layout, golden->packed + i * golden->layout.expert_bytes);
    if (golden->shared_neurons) {
        assert_int_equal(layout_mlp_init(&golden->shared_layout, golden->hidden, golden->begin, golden->shared_neurons, golden->pad_to,
                                         NULL),
                         0);
        golden->shared_packed = aligned_alloc(64, (size_t)golden->shared_layout.expert_bytes);
        golden_expert(golden, &golden->shared_layout, golden->shared_packed);
    }
}

static void expect(struct golden *golden, const void *have, size_t bytes)
{
    const uint8_t *want = bytes_read_view(&golden->reader, bytes);

    assert_non_null(want);
    assert_memory_equal(have, want, bytes);
}

static void golden_results(struct golden *golden)
{
    size_t hidden = golden->hidden, count = golden->tokens * hidden, slots = (size_t)golden->tokens * golden->top_k;
    _cleanup_(freep) uint16_t *x = take(golden, count * sizeof(uint16_t));
    _cleanup_(freep) int32_t *ids = take(golden, slots * sizeof(int32_t));
    _cleanup_(freep) float *weights = take(golden, slots * sizeof(float));
    struct kernels_layer layer = {
        .layout = &golden->layout,
        .experts = golden->packed,
        .expert_count = golden->experts,
        .shared_layout = golden->shared_packed ? &golden->shared_layout : NULL,
        .shared = golden->shared_packed,
    };
    _cleanup_(freep) void *scratch = aligned_alloc(64, kernels_scratch_bytes(&layer));
    _cleanup_(freep) float *y = calloc(count, sizeof(float)), *sum = calloc(hidden, sizeof(float)), *sum16 = calloc(hidden, sizeof(float));
    _cleanup_(freep) uint16_t *bf16 = calloc(count, sizeof(uint16_t));

    assert_int_equal(bytes_read_u64(&golden->reader), golden->layout.expert_bytes);
    expect(golden, golden->packed, (size_t)golden->layout.expert_bytes);

    if (golden->top_k)
        kernels_moe(&layer, x, ids, weights, golden->tokens, golden->top_k, y, scratch);
    else
        kernels_dense(&layer, x, golden->tokens, y, scratch);
    kernels_to_bf16(bf16, y, count); /* before canonical: it does that itself */
    kernels_canonical(y, count);
    expect(golden, y, count * sizeof(float));
    expect(golden, bf16, count * sizeof(uint16_t));

    for (uint32_t t = 0; t < golden->tokens; t++) {
        kernels_add_f32(sum, y + t * hidden, hidden);
        kernels_add_bf16(sum16, bf16 + t * hidden, hidden);
    }
    kernels_canonical(sum, hidden);
    kernels_to_bf16(bf16, sum16, hidden);
    expect(golden, sum, hidden * sizeof(float));
    expect(golden, bf16, hidden * sizeof(uint16_t));
    assert_true(bytes_reader_done(&golden->reader));
}

static void agree(const char *name)
{
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);

    for (size_t i = 0; i < count; i++) {
        struct golden golden = {0};

        if (!kernels_tier_available(variants[i].tier))
            continue;
        assert_int_equal(kernels_select(variants[i].name, NULL), 0);
        golden_open(&golden, name);
        golden_weights(&golden);
        golden_results(&golden);
        free(golden.bytes);
        free(golden.packed);
        free(golden.shared_packed);
    }
}

static void test_dense(void **state)
{
    (void)state;
    agree("dense");
}

static void test_moe(void **state)
{
    (void)state;
    agree("moe");
}

static void test_hostile(void **state)
{
    (void)state;
    agree("hostile");
}

/* Half panels and half groups. */
static void test_halves(void **state)
{
    (void)state;
    agree("head");
    agree("tail");
    agree("both");
    agree("unit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_moe),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_halves),
    };

    if (!getenv("FP9_GOLDEN")) {
        fputs("FP9_GOLDEN names the directory of the golden vectors\n", stderr);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

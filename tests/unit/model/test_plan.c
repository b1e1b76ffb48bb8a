#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/unit/model/planned.h"

static struct arch *dense_arch(uint32_t hidden, uint32_t intermediate, uint32_t layers)
{
    char text[300];
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"qwen3\",\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":%u," PLANNED_QUANT "}",
                     hidden, intermediate, layers);
    return planned_arch(text, n);
}

/* Layer 0 dense unless dense is 0. */
static struct arch *moe_arch(uint32_t hidden, uint32_t dense, uint32_t moe, uint32_t layers, uint32_t experts, uint32_t top_k)
{
    char text[400];
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"qwen3_moe\",\"hidden_size\":%u,\"intermediate_size\":%u,\"moe_intermediate_size\":%u,"
                     "\"num_hidden_layers\":%u,\"num_experts\":%u,\"num_experts_per_tok\":%u,\"mlp_only_layers\":[%s]," PLANNED_QUANT "}",
                     hidden, dense, moe, layers, experts, top_k, dense ? "0" : "");
    return planned_arch(text, n);
}

static void refused(const struct arch *arch, struct plan_request request, enum err_name name, const char *words)
{
    struct plan *plan = NULL;
    struct err err = {0};
    int r = plan_make(arch, &request, &plan, &err);
    assert_true(r < 0);
    assert_null(plan);
    assert_int_equal(err.name, name);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

/* The first word of a refusal is the field of config.json that stands in the way. */
static void refused_by_field(const struct arch *arch, uint32_t tp, uint32_t multiple_of, const char *begin)
{
    struct plan_request request = {.tp = tp, .multiple_of = multiple_of};
    struct plan *plan = NULL;
    struct err err = {0};
    assert_int_equal(plan_make(arch, &request, &plan, &err), -EINVAL);
    if (strncmp(err.message, begin, strlen(begin)) != 0)
        fail_msg("\"%s\" does not begin with \"%s\"", err.message, begin);
}

static void legal_is(const struct arch *arch, const uint32_t want[PLAN_MULTIPLES])
{
    struct plan *plan = planned(arch, (struct plan_request){.tp = 1});
    for (size_t i = 0; i < PLAN_MULTIPLES; i++) {
        assert_int_equal(plan->legal[i].multiple_of, plan_multiples[i]);
        assert_int_equal(plan->legal[i].tp_max, want[i]);
    }
    plan_free(plan);
}

static void limits_of_public_models(void **state)
{
    (void)state;
    struct arch *arch = moe_arch(2048, 0, 768, 48, 128, 8);
    legal_is(arch, (uint32_t[]){6, 12, 24, 48, 96});
    arch_free(arch);
    arch = moe_arch(4096, 0, 1536, 94, 128, 8);
    legal_is(arch, (uint32_t[]){12, 24, 48, 96, 192});
    arch_free(arch);
    arch = moe_arch(256, 768, 192, 4, 8, 2); /* the experts are the narrower kind, and 192 is a unit and a half of 128 */
    legal_is(arch, (uint32_t[]){2, 3, 6, 12, 24});
    struct plan *plan = planned(arch, (struct plan_request){.tp = 2, .ducks = 2});
    assert_int_equal(plan->legal[2].tp_max_fleet, 2);
    plan_free(plan);
    arch_free(arch);
}

static void b01_refused_with_numbers(void **state)
{
    (void)state;
    struct arch *arch = moe_arch(2048, 0, 768, 48, 128, 8);
    refused(arch, (struct plan_request){.tp = 8, .multiple_of = 128}, ERR_BAD_SHAPE,
            "moe_intermediate_size 768 = 6 units of 128: tp is at most 6; 64 allows 12, 32 allows 24, 16 allows 48, 8 allows 96");
    struct plan *plan = planned(arch, (struct plan_request){.tp = 8, .multiple_of = 64});
    plan_free(plan);
    plan = planned(arch, (struct plan_request){.tp = 8}); /* the planner finds a multiple_of that allows it */
    assert_true(plan->multiple_of < 128);
    plan_free(plan);
    arch_free(arch);
    arch = moe_arch(256, 768, 192, 4, 8, 2);
    refused(arch, (struct plan_request){.tp = 4, .multiple_of = 64}, ERR_BAD_SHAPE,
            "moe_intermediate_size 192 = 3 units of 64: tp is at most 3; 128 allows 2, 32 allows 6, 16 allows 12, 8 allows 24");
    arch_free(arch);
    arch = moe_arch(256, 128, 192, 4, 8, 2); /* here the dense layers are the narrower kind */
    refused_by_field(arch, 3, 64, "intermediate_size 128 = 2 units of 64: tp is at most 2;");
    arch_free(arch);
    arch = dense_arch(256, 1152, 1);
    refused_by_field(arch, 10, 128, "intermediate_size 1152 = 9 units of 128: tp is at most 9;");
    arch_free(arch);
    static const char minimax[] = "{\"model_type\":\"minimax_m2\",\"hidden_size\":256,\"num_hidden_layers\":1,\"intermediate_size\":192,"
                                  "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"hidden_act\":\"silu\"," PLANNED_QUANT "}";
    arch = planned_arch(minimax, sizeof minimax - 1); /* its experts' width goes by either name */
    refused_by_field(arch, 4, 64, "intermediate_size 192 = 3 units of 64: tp is at most 3;");
    arch_free(arch);
}

/* 18432 over 32: 576 = 4.5 blocks each, so odd ranks begin in the middle of one. */
static void b03_mid_block(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 32; rank++) {
        struct plan_slice slice = plan_slice_of(18432, 64, 32, rank);
        assert_int_equal(slice.begin, 576 * rank);
        assert_int_equal(slice.neurons, 576);
    }
    struct arch *arch = dense_arch(256, 1152, 1);
    struct plan *plan = planned(arch, (struct plan_request){.tp = 2, .multiple_of = 64});
    struct layout_mlp layout, shared;
    bool has_shared;
    assert_int_equal(plan_layouts(arch, plan, 0, 1, &layout, &has_shared, &shared, NULL), 0);
    assert_false(has_shared);
    assert_int_equal(layout.begin, 576);
    assert_int_equal(layout.down.column_origin, 64);
    assert_int_equal(layout.down.segments, 5); /* half a block, then four whole ones */
    plan_free(plan);
    arch_free(arch);
}

static void b04_quarter_blocks(void **state)
{
    (void)state;
    static const uint32_t scale_rows[4] = {0, 0, 1, 1};
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct plan_slice slice = plan_slice_of(256, 64, 4, rank);
        assert_int_equal(slice.begin / LAYOUT_BLOCK, scale_rows[rank]);
        assert_int_equal((slice.begin + slice.neurons - 1) / LAYOUT_BLOCK, scale_rows[rank]);
    }
}

static void b07_uneven(void **state)
{
    (void)state;
    struct arch *arch = dense_arch(2048, 6144, 28);
    static const uint32_t tps[] = {11, 7, 3};
    for (size_t i = 0; i < 3; i++) {
        struct plan *plan = planned(arch, (struct plan_request){.tp = tps[i], .multiple_of = 128});
        uint32_t total = 0;
        for (uint32_t rank = 0; rank < tps[i]; rank++) {
            uint32_t neurons = plan->ranks[rank].dense.neurons;
            assert_int_equal(neurons % 128, 0);
            if (tps[i] == 11)
                assert_int_equal(neurons / 128, rank < 4 ? 5 : 4); /* 48 = 4x5 + 7x4 */
            total += neurons;
        }
        assert_int_equal(total, 6144);
        plan_free(plan);
    }
    arch_free(arch);
}

static void b08_tp_out_of_range(void **state)
{
    (void)state;
    struct arch *arch = moe_arch(2048, 0, 768, 2, 8, 2);
    refused(arch, (struct plan_request){.tp = 7, .multiple_of = 128}, ERR_BAD_SHAPE, "768 = 6 units of 128");
    refused(arch, (struct plan_request){.tp = 97}, ERR_BAD_SHAPE,
            "moe_intermediate_size 768 = 96 units of 8: tp is at most 96; 128 allows 6, 64 allows 12");
    refused(arch, (struct plan_request){.tp = 2147483648u}, ERR_BAD_SHAPE, "tp is at most 96");
    refused(arch, (struct plan_request){.tp = UINT32_MAX, .multiple_of = 32}, ERR_BAD_SHAPE, "tp is at most 24");
    refused(arch, (struct plan_request){.tp = 5, .ducks = 4}, ERR_BAD_SHAPE, "tp 5 needs 5 ducks, only 4");
    static const uint32_t multiples[] = {1, 4, 12, 24, 48, 96, 256, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LENGTH(multiples); i++)
        refused(arch, (struct plan_request){.multiple_of = multiples[i]}, ERR_BAD_SHAPE, "128, 64, 32, 16 and 8");
    arch_free(arch);
    arch = dense_arch(64, LAYOUT_NEURONS_MAX, 1);
    refused(arch, (struct plan_request){.tp = 1025, .multiple_of = 32}, ERR_BAD_SHAPE, "tp is at most 1024");
    arch_free(arch);
    struct plan_strategy strategy;
    struct err err = {0};
    assert_int_equal(plan_strategy_parse("tp", &strategy, &err), 0);
    assert_int_equal(plan_strategy_parse("pp4", &strategy, &err), -EINVAL);
    assert_non_null(strstr(err.message, "pp4"));
}

static void bytes_are_the_layouts(void **state)
{
    (void)state;
    struct arch *arch = moe_arch(256, 768, 192, 4, 8, 2);
    for (uint32_t tp = 1; tp <= 6; tp++) {
        struct plan *plan = planned(arch, (struct plan_request){.tp = tp, .multiple_of = 32});
        uint64_t total = 0, neurons = 0;
        for (uint32_t rank = 0; rank < tp; rank++) {
            struct layout_mlp dense, routed, shared;
            bool has_shared;
            assert_int_equal(plan_layouts(arch, plan, 0, rank, &dense, &has_shared, &shared, NULL), 0);
            assert_int_equal(plan_layouts(arch, plan, 3, rank, &routed, &has_shared, &shared, NULL), 0);
            assert_int_equal(plan->ranks[rank].dense_slot_bytes, dense.expert_bytes);
            assert_int_equal(plan->ranks[rank].moe_slot_bytes, 8 * routed.expert_bytes);
            assert_int_equal(plan->ranks[rank].bytes, dense.expert_bytes + 3 * 8 * routed.expert_bytes);
            total += plan->ranks[rank].bytes;
            neurons += routed.neurons;
        }
        assert_int_equal(neurons, 192);
        assert_int_equal(plan->bytes_total, total);
        assert_int_equal(plan->params, 3ull * 256 * (768 + 3 * 8 * 192));
        assert_true(plan->bytes_per_param >= 1.125 && plan->bytes_per_param < 1.2);
        assert_true(plan->padding_bytes < total / 20);
        assert_true(plan->send_bytes > plan->params && plan->send_bytes < plan->params + plan->params / 20);
        assert_true(plan->rebuild_send_bytes <= plan->send_bytes);
        if (tp == 1) {
            assert_int_equal(plan->rebuild_send_bytes, plan->send_bytes);
            assert_int_equal(plan->rebuild_read_bytes, plan->params);
        }
        assert_true(plan->predicted.tokens_per_second > 0);
        struct layout_mlp layout;
        bool has_shared;
        assert_true(plan_layouts(arch, plan, 4, 0, &layout, &has_shared, &layout, NULL) < 0);
        assert_true(plan_layouts(arch, plan, 0, tp, &layout, &has_shared, &layout, NULL) < 0);
        plan_free(plan);
    }
    arch_free(arch);
}

/* 192 = 1.5 units of 128: the second rank holds 64 neurons in a unit of 128, and the plan says what that costs. */
static void padding_is_counted(void **state)
{
    (void)state;
    struct arch *arch = moe_arch(256, 0, 192, 1, 8, 2);
    struct plan *even = planned(arch, (struct plan_request){.tp = 2, .multiple_of = 32});
    struct plan *padded = planned(arch, (struct plan_request){.tp = 2, .multiple_of = 128});
    assert_int_equal(padded->ranks[1].routed.neurons, 64);
    assert_int_equal(padded->ranks[1].routed.padded, 128);
    /* gate and up of 64 neurons more for each of 8 experts: 2 * 64 * 256 weights of 9/8 bytes */
    assert_true(padded->padding_bytes >= even->padding_bytes + 8ull * 2 * 64 * 256 * 9 / 8);
    plan_free(even);
    plan_free(padded);
    arch_free(arch);
}

/* 32 ducks for the experts of public models: 24 neurons, and 48, at no more than rounding each expert's parts to 64 bytes. */
static void units_of_eight(void **state)
{
    (void)state;
    static const uint32_t hidden[] = {2048, 4096}, neurons[] = {768, 1536};
    for (size_t i = 0; i < 2; i++) {
        struct arch *arch = moe_arch(hidden[i], 0, neurons[i], 2, 128, 8);
        struct plan *plan = planned(arch, (struct plan_request){.tp = 32, .ducks = 32, .multiple_of = i ? 16 : 8});
        uint64_t next = 0;
        for (uint32_t rank = 0; rank < 32; rank++) {
            assert_int_equal(plan->ranks[rank].routed.begin, next);
            assert_int_equal(plan->ranks[rank].routed.neurons, neurons[i] / 32);
            assert_int_equal(plan->ranks[rank].routed.padded, neurons[i] / 32);
            assert_int_equal(plan->ranks[rank].bytes, plan->ranks[rank].moe_slot_bytes * 2);
            next += neurons[i] / 32;
        }
        assert_true(plan->padding_bytes < 32ull * 2 * 128 * 4 * 64);
        assert_true(plan->bytes_per_param < 1.135);
        assert_int_equal(plan->params, 3ull * hidden[i] * neurons[i] * 128 * 2);
        plan_free(plan);
        arch_free(arch);
    }
}

static void memory(void **state)
{
    (void)state;
    struct arch *arch = dense_arch(1024, 3072, 28);
    struct plan *plan = planned(arch, (struct plan_request){.tp = 3, .multiple_of = 128});
    uint64_t largest = plan->ranks[0].bytes;
    char words[100];
    plan_free(plan);
    plan = planned(arch, (struct plan_request){.tp = 3, .multiple_of = 128, .memory_bytes = largest});
    plan_free(plan);
    snprintf(words, sizeof words, "(%llu bytes)", (unsigned long long)largest);
    refused(arch, (struct plan_request){.tp = 3, .multiple_of = 128, .memory_bytes = largest - 1}, ERR_NO_MEMORY, words);
    refused(arch, (struct plan_request){.ducks = 2, .memory_bytes = largest - 1}, ERR_NO_MEMORY, "nothing fits; the closest is tp 2");
    /* 1024 of 3072 neurons do not fit, so three ducks are too few, and what is said to do does. */
    refused(arch, (struct plan_request){.ducks = 3, .memory_bytes = largest - 1}, ERR_NO_MEMORY, "; what would do: 4 such ducks, or ");
    plan = planned(arch, (struct plan_request){.ducks = 4, .memory_bytes = largest - 1});
    assert_int_equal(plan->tp, 4);
    plan_free(plan);
    snprintf(words, sizeof words, "; what would do: %llu bytes on each of 3", (unsigned long long)largest);
    refused(arch, (struct plan_request){.tp = 3, .multiple_of = 128, .memory_bytes = largest - 1}, ERR_NO_MEMORY, words);
    refused(arch, (struct plan_request){.tp = 3, .memory_bytes = largest - 1}, ERR_NO_MEMORY, words);
    refused(arch, (struct plan_request){.ducks = 2, .memory_bytes = 4096}, ERR_NO_MEMORY, "need"); /* no number of ducks would do */
    plan = planned(arch, (struct plan_request){.ducks = 8, .memory_bytes = largest - 1});          /* chooses what fits */
    assert_true(plan->tp > 3);
    plan_free(plan);
    arch_free(arch);
}

static void chooses_the_fastest(void **state)
{
    (void)state;
    struct arch *arch = moe_arch(2048, 0, 768, 48, 128, 8);
    struct plan *best = planned(arch, (struct plan_request){.ducks = 12});
    assert_non_null(strstr(best->explanation, "chosen"));
    for (size_t i = 0; i < PLAN_MULTIPLES; i++) {
        for (uint32_t tp = 1; tp <= 12 && tp <= best->legal[i].tp_max; tp++) {
            struct plan *plan = planned(arch, (struct plan_request){.tp = tp, .multiple_of = plan_multiples[i], .ducks = 12});
            assert_true(plan->predicted.tokens_per_second <= best->predicted.tokens_per_second * 1.0011);
            assert_non_null(strstr(plan->explanation, "as asked for"));
            plan_free(plan);
        }
    }
    plan_free(best);
    best = planned(arch, (struct plan_request){0});
    assert_true(best->tp <= PLAN_TP_AUTO_MAX);
    plan_free(best);
    arch_free(arch);
}

static void property_runs_cover_exactly(void **state)
{
    (void)state;
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        uint32_t multiple_of = plan_multiples[(unsigned)rand_r(&seed) % PLAN_MULTIPLES];
        uint32_t intermediate = 1 + (unsigned)rand_r(&seed) % (round % 2 ? 300 : LAYOUT_NEURONS_MAX);
        uint32_t units = (intermediate + multiple_of - 1) / multiple_of;
        uint32_t tp = 1 + (unsigned)rand_r(&seed) % (units < 64 ? units : 64);
        uint32_t next = 0, most = 0, least = UINT32_MAX;
        for (uint32_t rank = 0; rank < tp; rank++) {
            struct plan_slice slice = plan_slice_of(intermediate, multiple_of, tp, rank);
            assert_int_equal(slice.begin, next);
            assert_true(slice.neurons > 0);
            assert_int_equal(slice.padded % multiple_of, 0);
            assert_true(slice.neurons <= slice.padded && slice.padded - slice.neurons < multiple_of);
            if (rank + 1 < tp)
                assert_int_equal(slice.neurons, slice.padded);
            uint32_t run = slice.padded / multiple_of;
            assert_true(rank == 0 || run <= least); /* longer runs first */
            most = run > most ? run : most;
            least = run < least ? run : least;
            next = slice.begin + slice.neurons;
        }
        assert_int_equal(next, intermediate);
        assert_true(most - least <= 1);
    }
}

/* Tokens/s that the published runs on ducks of one core gave, by the rate of their kernels and the host's own time for a token. */
static void as_measured_elsewhere(void **state)
{
    (void)state;
    static const struct {
        uint32_t hidden, moe, layers, tp, multiple_of;
        double gparam, host_ms, measured;
    } runs[] = {
        {4096, 1536, 94, 12, 128, 3.86, 75, 2.577}, {4096, 1536, 94, 24, 64, 3.56, 75, 4.253}, {2048, 768, 48, 6, 128, 3.86, 36, 8.736},
        {2048, 768, 48, 12, 64, 3.56, 36, 12.994},  {2048, 768, 48, 24, 32, 3.27, 36, 17.397},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(runs); i++) {
        struct arch *arch = moe_arch(runs[i].hidden, 0, runs[i].moe, runs[i].layers, 128, 8);
        struct plan *plan = planned(arch, (struct plan_request){.tp = runs[i].tp,
                                                                .multiple_of = runs[i].multiple_of,
                                                                .rates = {.params_per_s = runs[i].gparam * 1e9,
                                                                          .link_bytes_per_s = 1e15,
                                                                          .step_s = 1e-9,
                                                                          .host_s = runs[i].host_ms * 1e-3}});
        double predicted = plan->predicted.tokens_per_second;
        if (predicted < runs[i].measured * 0.85 || predicted > runs[i].measured * 1.15)
            fail_msg("run %zu: %.3f tokens/s predicted, %.3f measured", i, predicted, runs[i].measured);
        /* Of a 30B over 24 ducks the host is the larger part, of all others the kernels. */
        assert_int_equal(plan->predicted.bottleneck, runs[i].multiple_of == 32 ? PLAN_TERM_HOST : PLAN_TERM_COMPUTE);
        plan_free(plan);
        arch_free(arch);
    }
}

static void bottleneck_is(const struct arch *arch, struct plan_rates rates, enum plan_term term)
{
    struct plan *plan = planned(arch, (struct plan_request){.tp = 6, .multiple_of = 128, .rates = rates});
    const struct plan_prediction *p = &plan->predicted;
    if (p->bottleneck != term)
        fail_msg("%s is the bottleneck, expected %s", plan_term_name(p->bottleneck), plan_term_name(term));
    double sum = p->duck_s + p->link_s + p->step_s + p->host_s;
    assert_true(p->tokens_per_second * sum > 0.999999 && p->tokens_per_second * sum < 1.000001);
    assert_true(p->duck_s >= p->read_s && p->duck_s >= p->compute_s && p->duck_s <= p->read_s + p->compute_s);
    plan_free(plan);
}

static void the_slowest_term_is_named(void **state)
{
    (void)state;
    struct arch *arch = moe_arch(2048, 0, 768, 48, 128, 8);
    bottleneck_is(arch, (struct plan_rates){0}, PLAN_TERM_MEMORY);
    bottleneck_is(arch, (struct plan_rates){.params_per_s = 3.86e9}, PLAN_TERM_COMPUTE);
    bottleneck_is(arch, (struct plan_rates){.params_per_s = 1e15}, PLAN_TERM_MEMORY);
    bottleneck_is(arch, (struct plan_rates){.link_bytes_per_s = 125e6}, PLAN_TERM_LINK);
    bottleneck_is(arch, (struct plan_rates){.step_s = 1e-3}, PLAN_TERM_STEP);
    bottleneck_is(arch, (struct plan_rates){.host_s = 0.1}, PLAN_TERM_HOST);
    arch_free(arch);
}

static void links_and_rebuilding(void **state)
{
    (void)state;
    struct arch *arch = moe_arch(2048, 6144, 768, 3, 128, 8); /* layer 0 dense */
    struct plan *plan = planned(arch, (struct plan_request){.tp = 5, .multiple_of = 128, .rates = {.link_bytes_per_s = 1e8}});
    /* x and a BF16 partial, and 8 ids and weights in two layers. */
    assert_int_equal(plan->link_bytes, 3 * (2 * 2 * 2048) + 2 * 8 * 8);
    uint64_t sent = 0, most = 0;
    for (uint32_t rank = 0; rank < 5; rank++) {
        sent += plan->ranks[rank].send_bytes;
        most = plan->ranks[rank].send_bytes > most ? plan->ranks[rank].send_bytes : most;
        /* Its rows of gate and up, and all of down. */
        uint64_t own = 2 * ((uint64_t)plan->ranks[rank].dense.neurons + 2 * 128 * (uint64_t)plan->ranks[rank].routed.neurons);
        assert_int_equal(plan->ranks[rank].read_bytes, 2048 * (own + 6144 + 2 * 128 * 768));
    }
    assert_int_equal(plan->send_bytes, sent);
    assert_int_equal(plan->rebuild_send_bytes, most);
    assert_true(plan->rebuild_seconds == (double)most / 1e8);
    plan_free(plan);
    arch_free(arch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_of_public_models),
        cmocka_unit_test(b01_refused_with_numbers),
        cmocka_unit_test(b03_mid_block),
        cmocka_unit_test(b04_quarter_blocks),
        cmocka_unit_test(b07_uneven),
        cmocka_unit_test(b08_tp_out_of_range),
        cmocka_unit_test(bytes_are_the_layouts),
        cmocka_unit_test(padding_is_counted),
        cmocka_unit_test(units_of_eight),
        cmocka_unit_test(memory),
        cmocka_unit_test(chooses_the_fastest),
        cmocka_unit_test(property_runs_cover_exactly),
        cmocka_unit_test(as_measured_elsewhere),
        cmocka_unit_test(the_slowest_term_is_named),
        cmocka_unit_test(links_and_rebuilding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

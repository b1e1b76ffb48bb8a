/* Experts divided over groups: every one has one owner, bytes are the layouts', numbers of the prediction are those of counting. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/model/plan_experts.h"
#include "tests/unit/model/planned.h"

/* deepseek_v3: layer 0 dense; shared experts of `moe` neurons each. */
static struct arch *arch_of(uint32_t hidden, uint32_t dense, uint32_t moe, uint32_t layers, uint32_t experts, uint32_t top_k,
                            uint32_t shared)
{
    char text[600];
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"deepseek_v3\",\"hidden_size\":%u,\"intermediate_size\":%u,\"moe_intermediate_size\":%u,"
                     "\"num_hidden_layers\":%u,\"n_routed_experts\":%u,\"num_experts_per_tok\":%u,\"n_shared_experts\":%u,"
                     "\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"num_nextn_predict_layers\":0," PLANNED_QUANT "}",
                     hidden, dense, moe, layers, experts, top_k, shared);
    return planned_arch(text, n);
}

static struct err refused(const struct arch *arch, struct plan_request request, const char *words)
{
    struct plan *plan = NULL;
    struct err err = {0};
    assert_true(plan_make(arch, &request, &plan, &err) < 0);
    assert_null(plan);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
    return err;
}

static struct plan_strategy named(const char *name)
{
    struct plan_strategy strategy;
    struct err err = {0};
    if (plan_strategy_parse(name, &strategy, &err) < 0)
        fail_msg("%s", err.message);
    return strategy;
}

/* One owner each, in runs that differ by one at most, and a step that asks for it goes to its owners alone. */
static void check_owners(const struct arch *arch, const struct plan *plan)
{
    const struct plan_owners owners = plan_owners_of(arch, plan);
    bool *asked = calloc(plan->tp, sizeof *asked);
    uint32_t least = UINT32_MAX, most = 0;
    assert_non_null(asked);
    assert_int_equal(plan->tp, plan->groups * plan->width);
    for (uint32_t rank = 0; rank < plan->tp; rank++) {
        uint32_t count = plan->ranks[rank].expert_count;
        assert_int_equal(plan->ranks[rank].group, rank / plan->width);
        least = count < least ? count : least;
        most = count > most ? count : most;
    }
    assert_true(least >= 1 && most - least <= 1);
    for (uint32_t expert = 0; expert < arch->experts; expert++) {
        const int32_t ids[] = {-1, (int32_t)expert};
        uint32_t neurons = 0, holders = 0, group = UINT32_MAX;
        assert_int_equal(plan_owners_asked(&owners, true, ids, 2, asked), arch->shared_intermediate ? plan->tp : plan->width);
        for (uint32_t rank = 0; rank < plan->tp; rank++) {
            const struct plan_rank *share = &plan->ranks[rank];
            bool holds = expert >= share->expert_first && expert < share->expert_first + share->expert_count;
            assert_int_equal(asked[rank], holds || arch->shared_intermediate);
            if (!holds)
                continue;
            assert_true(group == UINT32_MAX || group == share->group);
            group = share->group;
            assert_int_equal(share->routed.begin, neurons);
            neurons += share->routed.neurons;
            holders++;
        }
        assert_int_equal(holders, plan->width);
        assert_int_equal(neurons, arch->moe_intermediate);
    }
    free(asked);
}

static void every_expert_has_one_owner(void **state)
{
    static const uint32_t experts[] = {128, 160, 256, 288, 384, 512, 896};
    static const uint32_t groups[] = {1, 2, 3, 5, 7, 8, 11, 13, 16, 23, 24, 31, 32, 48, 64, 96, 127, 128, 160, 255, 256};
    (void)state;
    for (size_t e = 0; e < ARRAY_LENGTH(experts); e++) {
        struct arch *arch = arch_of(128, 1024 * 8, 32, 2, experts[e], 8, 0);
        for (size_t g = 0; g < ARRAY_LENGTH(groups) && groups[g] <= experts[e]; g++) {
            for (uint32_t width = 1; width <= 4; width++) {
                struct plan_request request = {.multiple_of = 8, .strategy = {width, groups[g]}};
                struct plan *plan = planned(arch, request);
                assert_int_equal(plan->groups, groups[g]);
                assert_int_equal(plan->width, width);
                check_owners(arch, plan);
                plan_free(plan);
            }
        }
        arch_free(arch);
    }
    /* CASES B09 by the numbers. */
    static const struct {
        uint32_t experts, groups, most, least, longer;
    } named_cases[] = {{128, 24, 6, 5, 8}, {160, 32, 5, 5, 0}, {384, 32, 12, 12, 0}};
    for (size_t i = 0; i < ARRAY_LENGTH(named_cases); i++) {
        struct arch *arch = arch_of(128, 256, 32, 2, named_cases[i].experts, 8, 0);
        struct plan *plan = planned(arch, (struct plan_request){.tp = named_cases[i].groups, .multiple_of = 8, .strategy = PLAN_EP});
        uint32_t longer = 0;
        for (uint32_t rank = 0; rank < plan->tp; rank++)
            longer += plan->ranks[rank].expert_count > named_cases[i].least;
        assert_int_equal(plan->ranks[0].expert_count, named_cases[i].most);
        assert_int_equal(plan->ranks[plan->tp - 1].expert_count, named_cases[i].least);
        assert_int_equal(longer, named_cases[i].longer);
        plan_free(plan);
        arch_free(arch);
    }
}

static void asked_are_the_owners_of_all_ids(void **state)
{
    (void)state;
    struct arch *arch = arch_of(128, 256, 64, 2, 12, 4, 0);
    struct plan *plan = planned(arch, (struct plan_request){.multiple_of = 8, .strategy = named("tp2xep4")}); /* 3 experts each */
    assert_non_null(strstr(plan->explanation, "tp 8 by the strategy and multiple_of 8 as asked for"));
    struct plan_owners owners = plan_owners_of(arch, plan);
    const int32_t ids[] = {11, -1, 0, 9, 1}, nobody[] = {-1, -1};
    static const bool want[] = {true, true, false, false, false, false, true, true};
    bool asked[8];
    assert_int_equal(plan_owners_asked(&owners, true, ids, 5, asked), 4);
    assert_memory_equal(asked, want, sizeof want);
    assert_int_equal(plan_owners_asked(&owners, true, nobody, 2, asked), 0);
    for (size_t i = 0; i < 8; i++)
        assert_false(asked[i]);
    assert_int_equal(plan_owners_asked(&owners, false, NULL, 0, asked), 8); /* a dense layer */
    assert_int_equal(plan_owners_asked(&owners, true, NULL, 0, asked), 8);
    owners.shared = true;
    assert_int_equal(plan_owners_asked(&owners, true, nobody, 2, asked), 8);
    plan_free(plan);
    arch_free(arch);
}

/* Slots are the layouts of what a rank holds, to the byte, and all ranks hold every weight once. */
static void bytes_are_the_layouts(void **state)
{
    (void)state;
    for (uint32_t shared = 0; shared <= 1; shared++) {
        struct arch *arch = arch_of(256, 1408, 192, 4, 10, 4, shared);
        static const char *const names[] = {"ep", "tp1xep3", "tp2xep3", "tp3xep2", "tp2xep4", "tp8xep1", "tp"};
        for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
            struct plan_strategy strategy = named(names[i]);
            struct plan *plan =
                planned(arch, (struct plan_request){.tp = plan_strategy_ranks(strategy) ? 0 : 5, .multiple_of = 16, .strategy = strategy});
            uint64_t total = 0, experts = 0;
            for (uint32_t rank = 0; rank < plan->tp; rank++) {
                const struct plan_rank *at = &plan->ranks[rank];
                struct layout_mlp dense, routed, other, common = {0};
                bool has_shared;
                assert_int_equal(plan_layouts(arch, plan, 0, rank, &dense, &has_shared, &other, NULL), 0);
                assert_false(has_shared);
                assert_int_equal(plan_layouts(arch, plan, 3, rank, &routed, &has_shared, &common, NULL), 0);
                assert_int_equal(has_shared, shared);
                assert_int_equal(at->dense_slot_bytes, dense.expert_bytes);
                assert_int_equal(at->moe_slot_bytes, at->expert_count * routed.expert_bytes + common.expert_bytes);
                assert_int_equal(at->bytes, at->dense_slot_bytes + 3 * at->moe_slot_bytes);
                assert_int_equal(routed.begin, at->routed.begin);
                total += at->bytes;
                experts += at->expert_count;
            }
            assert_int_equal(plan->bytes_total, total);
            assert_int_equal(experts, (uint64_t)plan->width * 10);
            assert_int_equal(plan->params, UINT64_C(3) * 256 * (1408 + 3 * (10 * 192 + shared * 192)));
            plan_free(plan);
        }
        arch_free(arch);
    }
}

static void names(void **state)
{
    static const char *const wrong[] = {
        "",         "TP",       "tp4",      "ep4", "tp4xep",      "tp4ep8",    "tp0xep4",           "tp4xep0",         "tp04xep2",
        "tp+4xep2", "tp-1xep2", "tp4xep8 ", " ep", "tp2xep4xtp2", "tp33xep32", "tp99999999999xep1", "tp4294967297xep1"};
    char text[PLAN_STRATEGY_TEXT];
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        struct plan_strategy strategy = {77, 78};
        struct err err = {0};
        assert_int_equal(plan_strategy_parse(wrong[i], &strategy, &err), -EINVAL);
        assert_non_null(strstr(err.message, "tpNxepM"));
        assert_int_equal(strategy.width, 77);
    }
    static const char *const right[] = {"tp", "ep", "tp2xep4", "tp32xep32", "tp1xep2", "tp4xep1"};
    for (size_t i = 0; i < ARRAY_LENGTH(right); i++)
        assert_string_equal(plan_strategy_name(named(right[i]), text), right[i]);
    assert_string_equal(plan_strategy_name((struct plan_strategy){0}, text), "tp");
    assert_true(plan_strategy_same((struct plan_strategy){0}, PLAN_TP));
    assert_false(plan_strategy_same(PLAN_EP, PLAN_TP));
    assert_false(plan_strategy_same(named("tp2xep4"), named("tp2xep3")));
    /* A plan says which of the names for the same thing it goes by; it is refused as nothing else. */
    struct arch *arch = arch_of(256, 512, 64, 2, 8, 2, 0);
    static const char *const same[][2] = {{"tp1xep4", "ep"}, {"tp4xep1", "tp"}, {"tp2xep2", "tp2xep2"}};
    for (size_t i = 0; i < ARRAY_LENGTH(same); i++) {
        struct plan *plan = planned(arch, (struct plan_request){.strategy = named(same[i][0])});
        assert_int_equal(plan->tp, 4);
        assert_string_equal(plan_strategy_name(plan->strategy, text), same[i][1]);
        assert_true(plan_strategy_fits(named(same[i][0]), plan));
        assert_true(plan_strategy_fits(named(same[i][1]), plan));
        assert_true(plan_strategy_fits((struct plan_strategy){0}, plan));
        assert_false(plan_strategy_fits(named("tp2xep4"), plan));
        plan_free(plan);
    }
    struct plan *plan = planned(arch, (struct plan_request){.tp = 2, .strategy = named("tp2xep2")}); /* N is as good as N * M */
    assert_int_equal(plan->tp, 4);
    plan_free(plan);
    arch_free(arch);
}

static void refusals(void **state)
{
    (void)state;
    struct arch *arch = arch_of(256, 1024, 192, 3, 8, 2, 0);
    struct err err = refused(arch, (struct plan_request){.tp = 9, .strategy = PLAN_EP}, "8 experts cannot be divided over 9 groups");
    assert_int_equal(err.name, ERR_BAD_SHAPE);
    refused(arch, (struct plan_request){.strategy = named("tp2xep9")}, "8 groups at most");
    refused(arch, (struct plan_request){.multiple_of = 64, .strategy = named("tp4xep2")},
            "splits an expert over 4 ranks: 192 = 3 units of 64, so over 3 at most; 128 allows 2, 32 allows 6");
    refused(arch, (struct plan_request){.multiple_of = 128, .strategy = named("tp2xep5")},
            "splits dense layers over 10 ranks: 1024 = 8 units of 128, so over 8 at most; 64 allows 16");
    refused(arch, (struct plan_request){.tp = 3, .strategy = named("tp2xep4")},
            "strategy tp2xep4 has 8 ranks (2 ranks x 4 groups): tp 3 does not go with it, as tp is the number of all ranks or of one "
            "group's; right would be no tp, tp 8 or tp 2");
    refused(arch, (struct plan_request){.tp = 3, .strategy = named("tp1xep2")}, "has 2 ranks (1 rank x 2 groups): tp 3 does not");
    refused(arch, (struct plan_request){.tp = 3, .strategy = named("tp2xep1")}, "2 ranks x 1 group): tp 3 does not go with it");
    refused(arch, (struct plan_request){.ducks = 7, .strategy = named("tp2xep4")}, "strategy tp2xep4 needs 8 ducks, only 7");
    refused(arch, (struct plan_request){.tp = 5, .ducks = 4, .strategy = PLAN_EP}, "needs 5 ducks, only 4");
    refused(arch, (struct plan_request){.ducks = 2, .memory_bytes = 4096, .strategy = PLAN_EP}, ", strategy ep: rank 0 needs ");
    arch_free(arch);
    arch = arch_of(256, 1024, 192, 3, 1, 1, 0);
    refused(arch, (struct plan_request){.tp = 2, .strategy = PLAN_EP},
            "1 expert cannot be divided over 2 groups, as every group owns at least one: 1 group at most");
    arch_free(arch);
    arch = arch_of(256, 1024, 192, 3, 8, 2, 1);
    refused(arch, (struct plan_request){.tp = 4, .multiple_of = 64, .strategy = PLAN_EP},
            "splits the shared expert over 4 ranks: 192 = 3 units of 64");
    /* Legal points of the strategy: experts, and the units of what is split over all. */
    struct plan *plan = planned(arch, (struct plan_request){.tp = 2, .multiple_of = 64, .strategy = PLAN_EP});
    static const uint32_t most[] = {2, 3, 6, 8, 8};
    for (size_t i = 0; i < PLAN_MULTIPLES; i++)
        assert_int_equal(plan->legal[i].tp_max, most[i]);
    plan_free(plan);
    plan = planned(arch, (struct plan_request){.multiple_of = 8, .strategy = named("tp3xep2")});
    static const uint32_t pairs[] = {0, 3, 6, 12, 24};
    for (size_t i = 0; i < PLAN_MULTIPLES; i++)
        assert_int_equal(plan->legal[i].tp_max, pairs[i]);
    plan_free(plan);
    arch_free(arch);
    char text[300];
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"qwen3\",\"hidden_size\":256,\"intermediate_size\":512,\"num_hidden_layers\":2," PLANNED_QUANT "}");
    assert_int_equal(arch_parse(text, (size_t)n, "config.json", &arch, NULL), 0);
    refused(arch, (struct plan_request){.tp = 2, .strategy = PLAN_EP}, "the model has none: tp would be right");
    refused(arch, (struct plan_request){.strategy = named("tp2xep2")}, "the model has none");
    plan = planned(arch, (struct plan_request){.strategy = named("tp2xep1")});
    assert_int_equal(plan->tp, 2);
    assert_non_null(strstr(plan->explanation, "tp 2 by the strategy and multiple_of "));
    assert_null(strstr(plan->explanation, "experts"));
    plan_free(plan);
    plan = planned(arch, (struct plan_request){.tp = 2, .strategy = named("tp2xep1")});
    assert_non_null(strstr(plan->explanation, "tp 2 as asked for"));
    plan_free(plan);
    arch_free(arch);
}

/* All sets of k of E, counted. */
static struct plan_draw counted(uint32_t experts, uint32_t k, uint32_t groups, bool gated)
{
    double sets = 0, slowest = 0, active = 0;
    for (uint32_t set = 0; set < 1u << experts; set++) {
        uint32_t of[16] = {0}, most = 0;
        if ((uint32_t)__builtin_popcount(set) != k || (gated && !(set >> (experts - 1))))
            continue;
        for (uint32_t e = 0; e < experts; e++)
            of[plan_group_of(experts, groups, e)] += set >> e & 1;
        for (uint32_t g = 0; g < groups; g++) {
            most = of[g] > most ? of[g] : most;
            active += of[g] > 0;
        }
        slowest += most;
        sets++;
    }
    return (struct plan_draw){.slowest = slowest / sets, .groups = active / sets};
}

static void expected_numbers_are_those_of_counting(void **state)
{
    (void)state;
    for (uint32_t experts = 1; experts <= 11; experts++) {
        for (uint32_t k = 1; k <= experts; k++) {
            for (uint32_t groups = 1; groups <= experts; groups++) {
                for (int gated = 0; gated <= 1; gated++) {
                    const struct arch arch = {.experts = experts, .top_k = k, .gated_shared = gated};
                    const struct plan_draw have = plan_draw_of(&arch, groups), want = counted(experts, k, groups, gated);
                    if (fabs(have.slowest - want.slowest) > 1e-9 || fabs(have.groups - want.groups) > 1e-9)
                        fail_msg("%u of %u over %u, gated %d: %.12f %.12f, counted %.12f %.12f", k, experts, groups, gated, have.slowest,
                                 have.groups, want.slowest, want.groups);
                }
            }
        }
    }
    /* The largest there is stays finite and sensible. */
    const struct arch large = {.experts = ARCH_EXPERTS_MAX, .top_k = KERNELS_TOP_K_MAX};
    const struct plan_draw draw = plan_draw_of(&large, PLAN_TP_MAX);
    assert_true(draw.slowest > 1 && draw.slowest < 4 && draw.groups > 60 && draw.groups < 64);
}

/* With one rank a group, as much is waited for as the slowest group has, and only owners cost link. */
static void prediction_counts_the_slowest_group(void **state)
{
    (void)state;
    struct arch *arch = arch_of(1024, 256, 256, 2, 64, 8, 0);
    const struct plan_rates rates = {.read_bytes_per_s = 1e9, .link_bytes_per_s = 1e9, .step_s = 1e-9};
    struct plan *plan = planned(arch, (struct plan_request){.tp = 8, .multiple_of = 8, .strategy = PLAN_EP, .rates = rates});
    double expert = (double)plan->ranks[0].moe_slot_bytes / 8, dense = (double)plan->ranks[0].dense_slot_bytes;
    assert_true(fabs(plan->predicted.read_s * 1e9 - (plan->slowest_experts * expert + dense)) < 1);
    assert_true(plan->slowest_experts > 2 && plan->slowest_experts < 4 && plan->active_groups > 4 && plan->active_groups < 7);
    double link = 8 * 4096.0 + plan->active_groups * (4096.0 + 64);
    assert_true(fabs((double)plan->head_link_bytes - link) <= 1);
    assert_non_null(strstr(plan->explanation, "each of 8 groups of 1 rank owns 8 of 64 experts; of a token's 8 the slowest has"));
    plan_free(plan);
    plan = planned(arch, (struct plan_request){.tp = 8, .multiple_of = 8, .rates = rates});
    assert_true(plan->slowest_experts == 8 && plan->active_groups == 1);
    assert_non_null(strstr(plan->explanation, "; strategy tp, as none was asked for (ep over as many ranks: "));
    assert_int_equal(plan->head_link_bytes, 8 * plan->link_bytes);
    plan_free(plan);
    arch_free(arch);
}

static void slots_know_how_experts_are_divided(void **state)
{
    (void)state;
    struct arch *arch = arch_of(256, 512, 64, 2, 8, 2, 0);
    static const char *const strategies[] = {"tp4xep1", "tp2xep2", "tp1xep4"};
    uint8_t seen[3][DIGEST_SIZE], other[DIGEST_SIZE], plain[DIGEST_SIZE];
    for (size_t i = 0; i < DIGEST_SIZE; i++)
        plain[i] = (uint8_t)(i * 7 + 1);
    for (size_t i = 0; i < 3; i++) {
        struct plan *plan = planned(arch, (struct plan_request){.multiple_of = 16, .strategy = named(strategies[i])});
        memcpy(seen[i], plain, DIGEST_SIZE);
        assert_int_equal(plan_slot_sources(arch, plan, 0, seen[i]), 0); /* a dense layer's is the same in all of them */
        assert_memory_equal(seen[i], plain, DIGEST_SIZE);
        assert_int_equal(plan_slot_sources(arch, plan, 1, seen[i]), 0);
        memcpy(other, plain, DIGEST_SIZE);
        other[DIGEST_SIZE - 1] ^= 1;
        assert_int_equal(plan_slot_sources(arch, plan, 1, other), 0);
        assert_memory_equal(other, seen[i], PLAN_SOURCES_FRONT); /* scales and shapes are told by the front alone */
        assert_memory_not_equal(other + PLAN_SOURCES_FRONT, seen[i] + PLAN_SOURCES_FRONT, DIGEST_SIZE - PLAN_SOURCES_FRONT);
        plan_free(plan);
    }
    assert_memory_equal(seen[0], plain, DIGEST_SIZE);
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(seen[i], seen[j], PLAN_SOURCES_FRONT);
    arch_free(arch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_expert_has_one_owner),
        cmocka_unit_test(asked_are_the_owners_of_all_ids),
        cmocka_unit_test(bytes_are_the_layouts),
        cmocka_unit_test(names),
        cmocka_unit_test(refusals),
        cmocka_unit_test(expected_numbers_are_those_of_counting),
        cmocka_unit_test(prediction_counts_the_slowest_group),
        cmocka_unit_test(slots_know_how_experts_are_divided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

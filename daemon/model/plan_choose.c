#include "daemon/model/plan_choose.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/plan_experts.h"
#include "proto/base/size.h"

/* A plan must be predicted this much faster to be preferred to one with larger units or fewer ducks. */
#define WORTHWHILE 1.001

uint32_t plan_narrowest(const struct arch *arch)
{
    const uint32_t widths[] = {arch->dense_intermediate, arch->moe_intermediate, arch->shared_intermediate};
    uint32_t narrowest = UINT32_MAX;
    for (size_t i = 0; i < ARRAY_LENGTH(widths); i++)
        if (widths[i] && widths[i] < narrowest)
            narrowest = widths[i];
    return narrowest;
}

uint32_t plan_tp_max(const struct arch *arch, uint32_t multiple_of)
{
    uint64_t units = size_ceil_div(plan_narrowest(arch), multiple_of);
    return units < PLAN_TP_MAX ? (uint32_t)units : PLAN_TP_MAX;
}

static bool multiple_known(uint32_t multiple_of)
{
    for (size_t i = 0; i < PLAN_MULTIPLES; i++)
        if (plan_multiples[i] == multiple_of)
            return true;
    return false;
}

static uint32_t units_of(uint32_t intermediate, uint32_t multiple_of)
{
    return intermediate ? (uint32_t)size_ceil_div(intermediate, multiple_of) : UINT32_MAX;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t plan_ranks_max(const struct arch *arch, struct plan_strategy strategy, uint32_t multiple_of)
{
    if (!strategy.width || strategy.groups == 1)
        return plan_tp_max(arch, multiple_of);
    uint32_t all = least(units_of(arch->dense_intermediate, multiple_of), units_of(arch->shared_intermediate, multiple_of));
    uint32_t groups = least(least(all, PLAN_TP_MAX) / strategy.width, arch->experts);
    return units_of(arch->moe_intermediate, multiple_of) < strategy.width ? 0 : groups * strategy.width;
}

struct plan_shape plan_shape_of(struct plan_strategy strategy, uint32_t ranks, uint32_t multiple_of)
{
    uint32_t width = strategy.width ? strategy.width : ranks;
    return (struct plan_shape){.ranks = ranks, .width = width, .groups = ranks / width, .multiple_of = multiple_of};
}

/* Ranks that are asked for in one way or the other; 0: not said. */
static uint32_t ranks_asked(const struct plan_request *request)
{
    uint32_t fixed = plan_strategy_ranks(request->strategy);
    return fixed ? fixed : request->tp;
}

/* A strategy that does not go with the model or with tp. */
static int check_strategy(const struct arch *arch, const struct plan_request *request, struct err *err)
{
    struct plan_strategy strategy = request->strategy;
    uint32_t fixed = plan_strategy_ranks(strategy);
    char name[PLAN_STRATEGY_TEXT];
    plan_strategy_name(strategy, name);
    if (strategy.width && strategy.groups != 1 && !(arch->experts && arch->moe_intermediate)) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "strategy %s divides experts and the model has none: tp would be right", name);
        err_value_str(err, "strategy", name);
        return -EINVAL;
    }
    if (fixed && request->tp && request->tp != fixed && request->tp != strategy.width) {
        char other[32] = "";
        if (strategy.width != fixed)
            snprintf(other, sizeof other, " or tp %u", strategy.width);
        err_set(err, -EINVAL, ERR_BAD_SHAPE,
                "strategy %s has %u ranks (%u rank%s x %u group%s): tp %u does not go with it, as tp is the number of all ranks or of one "
                "group's; right would be no tp, tp %u%s",
                name, fixed, strategy.width, size_plural(strategy.width), strategy.groups, size_plural(strategy.groups), request->tp, fixed,
                other);
        err_value_str(err, "strategy", name);
        err_value_int(err, "tp", request->tp);
        err_value_int(err, "ranks", fixed);
        return -EINVAL;
    }
    return 0;
}

int plan_choose_check(const struct arch *arch, const struct plan_request *request, struct err *err)
{
    if (request->multiple_of && !multiple_known(request->multiple_of)) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "multiple_of %u is not supported; 128, 64, 32, 16 and 8 are", request->multiple_of);
        err_value_int(err, "multiple_of", request->multiple_of);
        return -EINVAL;
    }
    int r = check_strategy(arch, request, err);
    if (r < 0)
        return r;
    uint32_t ranks = ranks_asked(request);
    uint32_t multiple_of = request->multiple_of ? request->multiple_of : plan_multiples[PLAN_MULTIPLES - 1];
    if ((ranks ? ranks : 1) > plan_ranks_max(arch, request->strategy, multiple_of)) {
        const struct plan_shape shape = plan_shape_of(request->strategy, ranks ? ranks : 1, multiple_of);
        return plan_refuse_ranks(arch, &shape, request->strategy, err);
    }
    if (request->ducks && ranks > request->ducks) {
        char name[PLAN_STRATEGY_TEXT];
        if (plan_strategy_ranks(request->strategy))
            err_set(err, -EINVAL, ERR_BAD_SHAPE, "strategy %s needs %u ducks, only %u can take a rank",
                    plan_strategy_name(request->strategy, name), ranks, request->ducks);
        else
            err_set(err, -EINVAL, ERR_BAD_SHAPE, "tp %u needs %u ducks, only %u can take a rank", ranks, ranks, request->ducks);
        err_value_int(err, "tp", ranks);
        err_value_int(err, "ducks", request->ducks);
        return -EINVAL;
    }
    return 0;
}

/* The plan that was closest to fitting, for the refusal. */
struct nearest {
    uint32_t tp, multiple_of;
    uint32_t rank; /* the one that needs most */
    uint64_t needs, least, total;
};

struct search {
    const struct arch *arch;
    const struct plan_request *request;
    struct plan_rank *ranks; /* scratch, [PLAN_TP_MAX] */
    uint32_t tried, fitting;
    uint32_t best_tp, best_multiple;
    double best_rate;
    enum plan_term best_term;
    struct nearest nearest;
};

/* Fills the scratch. */
static int measure(struct search *search, const struct plan_shape *shape, struct nearest *ret_at, struct err *err)
{
    struct nearest at = {.tp = shape->ranks, .multiple_of = shape->multiple_of, .least = UINT64_MAX};
    for (uint32_t rank = 0; rank < shape->ranks; rank++) {
        int r = plan_rank_fill(search->arch, shape, rank, &search->ranks[rank], err);
        if (r < 0)
            return r;
        uint64_t bytes = search->ranks[rank].bytes;
        if (bytes > at.needs) {
            at.needs = bytes;
            at.rank = rank;
        }
        if (bytes < at.least)
            at.least = bytes;
        at.total += bytes;
    }
    *ret_at = at;
    return 0;
}

static int try_one(struct search *search, uint32_t tp, uint32_t multiple_of, struct err *err)
{
    const struct plan_shape shape = plan_shape_of(search->request->strategy, tp, multiple_of);
    struct nearest at;
    int r = measure(search, &shape, &at, err);
    if (r < 0)
        return r;
    search->tried++;
    if (search->nearest.tp == 0 || at.needs < search->nearest.needs)
        search->nearest = at;
    if (search->request->memory_bytes && at.needs > search->request->memory_bytes)
        return 0;
    search->fitting++;
    struct plan_prediction predicted;
    r = plan_predict(search->arch, &shape, search->ranks, &search->request->rates, &predicted, err);
    if (r < 0)
        return r;
    double rate = predicted.tokens_per_second;
    if (search->best_tp == 0 || rate > search->best_rate * WORTHWHILE) {
        search->best_tp = tp;
        search->best_multiple = multiple_of;
        search->best_rate = rate;
        search->best_term = predicted.bottleneck;
    }
    return 0;
}

static int try_multiple(struct search *search, uint32_t multiple_of, struct err *err)
{
    const struct plan_request *request = search->request;
    uint32_t most = plan_ranks_max(search->arch, request->strategy, multiple_of), asked = ranks_asked(request);
    if (asked)
        return asked <= most ? try_one(search, asked, multiple_of, err) : 0;
    uint32_t fleet = request->ducks ? request->ducks : PLAN_TP_AUTO_MAX;
    for (uint32_t tp = 1; tp <= most && tp <= fleet; tp++) {
        int r = try_one(search, tp, multiple_of, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The fewest ranks that fit the memory, whatever ducks there are, with the finest units, whose largest rank is the smallest; it shrinks
 * as ranks are added. *ret_ranks is 0 when none fit. */
static int ranks_enough(struct search *search, uint32_t *ret_ranks, struct err *err)
{
    const struct plan_request *request = search->request;
    uint32_t multiple_of = request->multiple_of ? request->multiple_of : plan_multiples[PLAN_MULTIPLES - 1];
    uint32_t low = 1, most = plan_ranks_max(search->arch, request->strategy, multiple_of), high = most + 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct plan_shape shape = plan_shape_of(request->strategy, middle, multiple_of);
        struct nearest at;
        int r = measure(search, &shape, &at, err);
        if (r < 0)
            return r;
        if (at.needs <= request->memory_bytes)
            high = middle;
        else
            low = middle + 1;
    }
    *ret_ranks = low <= most ? low : 0;
    return 0;
}

static int refuse_memory(struct search *search, struct err *err)
{
    const struct nearest *nearest = &search->nearest;
    const struct plan_request *request = search->request;
    uint64_t has = request->memory_bytes;
    char needs[32], least[32], have[32], total[32], strategy[PLAN_STRATEGY_TEXT], named[PLAN_STRATEGY_TEXT + 16] = "", ducks[64] = "";
    uint32_t enough = 0;
    int r = ranks_asked(request) ? 0 : ranks_enough(search, &enough, err);
    if (r < 0)
        return r;
    if (plan_strategy_given(request->strategy))
        snprintf(named, sizeof named, ", strategy %s", plan_strategy_name(request->strategy, strategy));
    if (enough)
        snprintf(ducks, sizeof ducks, "%u such duck%s, or ", enough, size_plural(enough));
    size_format(nearest->needs, needs, sizeof needs);
    size_format(nearest->least, least, sizeof least);
    size_format(has, have, sizeof have);
    size_format(nearest->total, total, sizeof total);
    char exact[40] = "";
    if (has >= 1024)
        snprintf(exact, sizeof exact, " (%llu bytes)", (unsigned long long)has);
    err_set(err, -ENOMEM, ERR_NO_MEMORY,
            "%stp %u, multiple_of %u%s: rank %u needs %s (%llu bytes), the smallest rank %s, but the smallest duck has %s%s; "
            "all ranks together need %s; what would do: %s%llu bytes on each of %u duck%s",
            ranks_asked(request) && request->multiple_of ? "" : "nothing fits; the closest is ", nearest->tp, nearest->multiple_of, named,
            nearest->rank, needs, (unsigned long long)nearest->needs, least, have, exact, total, ducks, (unsigned long long)nearest->needs,
            nearest->tp, size_plural(nearest->tp));
    err_value_int(err, "tp", nearest->tp);
    err_value_int(err, "multiple_of", nearest->multiple_of);
    err_value_int(err, "rank", nearest->rank);
    err_value_int(err, "needs", (long long)nearest->needs);
    err_value_int(err, "has", (long long)has);
    err_value_int(err, "total", (long long)nearest->total);
    return -ENOMEM;
}

/* "; ep: each of 24 groups owns 5 or 6 of 128 experts, of a token's 8 the slowest has 1.86 in the mean" */
static void explain_groups(const struct search *search, struct plan *plan)
{
    const struct arch *arch = search->arch;
    if (!search->request->strategy.width || !arch->experts)
        return;
    char name[PLAN_STRATEGY_TEXT], more[32] = "";
    uint32_t least_owned = arch->experts / plan->groups;
    size_t at = strlen(plan->explanation);
    if (arch->experts % plan->groups)
        snprintf(more, sizeof more, " or %u", least_owned + 1);
    const struct plan_draw draw = plan_draw_of(arch, plan->groups);
    snprintf(
        plan->explanation + at, sizeof plan->explanation - at,
        "; %s: each of %u group%s of %u rank%s owns %u%s of %u expert%s; of a token's %u the slowest has %.2f in the mean, if all are as "
        "likely",
        plan_strategy_name(plan->strategy, name), plan->groups, plan->groups == 1 ? "" : "s", plan->width, plan->width == 1 ? "" : "s",
        least_owned, more, arch->experts, size_plural(arch->experts), arch->top_k, draw.slowest);
}

/* "; strategy tp, as none was asked for (ep over as many ranks: 5.3 tokens/s)" */
static int explain_left_out(const struct search *search, struct plan *plan, struct err *err)
{
    const struct arch *arch = search->arch;
    if (plan_strategy_given(search->request->strategy) || !arch->experts || plan->tp == 1)
        return 0;
    char ep[80] = "";
    const struct plan_shape shape = plan_shape_of(PLAN_EP, plan->tp, plan->multiple_of);
    if (plan->tp <= plan_ranks_max(arch, PLAN_EP, plan->multiple_of)) {
        struct plan_prediction predicted;
        int r = 0;
        for (uint32_t rank = 0; r == 0 && rank < plan->tp; rank++)
            r = plan_rank_fill(arch, &shape, rank, &search->ranks[rank], err);
        if (r == 0)
            r = plan_predict(arch, &shape, search->ranks, &search->request->rates, &predicted, err);
        if (r < 0)
            return r;
        snprintf(ep, sizeof ep, " (ep over as many ranks: %.1f tokens/s)", predicted.tokens_per_second);
    }
    size_t at = strlen(plan->explanation);
    snprintf(plan->explanation + at, sizeof plan->explanation - at, "; strategy tp, as none was asked for%s", ep);
    return 0;
}

static void explain(const struct search *search, struct plan *plan)
{
    const struct plan_request *request = search->request;
    uint32_t asked = ranks_asked(request);
    char fits[80] = "", memory[32];
    if (request->memory_bytes)
        snprintf(fits, sizeof fits, ", %u of them fit %s a duck", search->fitting,
                 size_format(request->memory_bytes, memory, sizeof memory));
    const char *how = !asked ? " chosen" : request->tp == asked ? " as asked for" : " by the strategy";
    if (asked && request->multiple_of) {
        snprintf(plan->explanation, sizeof plan->explanation, "tp %u%s and multiple_of %u as asked for", plan->tp,
                 request->tp == asked ? "" : how, plan->multiple_of);
        return;
    }
    char ducks[48];
    if (request->ducks)
        snprintf(ducks, sizeof ducks, "%u duck%s", request->ducks, request->ducks == 1 ? "" : "s");
    else if (asked)
        snprintf(ducks, sizeof ducks, "a duck for each rank");
    else
        snprintf(ducks, sizeof ducks, "an unknown number of ducks (up to %d)", PLAN_TP_AUTO_MAX);
    snprintf(
        plan->explanation, sizeof plan->explanation,
        "tp %u%s and multiple_of %u%s: best predicted decode rate, %.1f tokens/s (most of it waits for %s), of %u legal plan%s for %s%s",
        plan->tp, how, plan->multiple_of, request->multiple_of ? " as asked for" : " chosen", search->best_rate,
        plan_term_name(search->best_term), search->tried, search->tried == 1 ? "" : "s", ducks, fits);
}

int plan_choose(const struct arch *arch, const struct plan_request *request, struct plan *plan, struct err *err)
{
    _cleanup_(freep) struct plan_rank *ranks = calloc(PLAN_TP_MAX, sizeof *ranks);
    if (!ranks)
        return err_no_memory(err, "plan", PLAN_TP_MAX * sizeof *ranks);
    struct search search = {.arch = arch, .request = request, .ranks = ranks};
    for (size_t i = 0; i < PLAN_MULTIPLES; i++) {
        if (request->multiple_of && request->multiple_of != plan_multiples[i])
            continue;
        int r = try_multiple(&search, plan_multiples[i], err);
        if (r < 0)
            return r;
    }
    if (search.best_tp == 0)
        return refuse_memory(&search, err);
    const struct plan_shape shape = plan_shape_of(request->strategy, search.best_tp, search.best_multiple);
    plan->tp = shape.ranks;
    plan->groups = shape.groups;
    plan->width = shape.width;
    plan->multiple_of = shape.multiple_of;
    plan->strategy = !request->strategy.width || request->strategy.groups == 1 ? PLAN_TP
                     : request->strategy.width == 1                            ? PLAN_EP
                                                                               : request->strategy;
    explain(&search, plan);
    explain_groups(&search, plan);
    return explain_left_out(&search, plan, err);
}

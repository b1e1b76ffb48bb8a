#include "daemon/model/plan_choose.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/model/plan_bytes.h"
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

/* "192 = 3 units of 64: tp is at most 3; 128 allows 2, 32 allows 6, 16 allows 12, 8 allows 24" */
static int refuse_tp(const struct arch *arch, uint32_t tp, uint32_t multiple_of, struct err *err)
{
    uint32_t narrowest = plan_narrowest(arch);
    uint32_t units = (uint32_t)size_ceil_div(narrowest, multiple_of);
    char others[128];
    size_t at = 0;
    others[0] = '\0';
    for (size_t i = 0; i < PLAN_MULTIPLES; i++)
        if (plan_multiples[i] != multiple_of)
            at += (size_t)snprintf(others + at, sizeof others - at, "%s%u allows %u", at ? ", " : "", plan_multiples[i],
                                   plan_tp_max(arch, plan_multiples[i]));
    err_set(err, -EINVAL, ERR_BAD_SHAPE, "%u = %u unit%s of %u: tp is at most %u; %s", narrowest, units, units == 1 ? "" : "s", multiple_of,
            plan_tp_max(arch, multiple_of), others);
    err_value_int(err, "tp", tp);
    err_value_int(err, "multiple_of", multiple_of);
    err_value_int(err, "intermediate", narrowest);
    err_value_int(err, "units", units);
    err_value_int(err, "tp_max", plan_tp_max(arch, multiple_of));
    return -EINVAL;
}

int plan_choose_check(const struct arch *arch, const struct plan_request *request, struct err *err)
{
    if (request->strategy != PLAN_TP)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "strategy %d is not known", (int)request->strategy);
    if (request->multiple_of && !multiple_known(request->multiple_of)) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "multiple_of %u is not supported; 128, 64, 32, 16 and 8 are", request->multiple_of);
        err_value_int(err, "multiple_of", request->multiple_of);
        return -EINVAL;
    }
    if (request->tp == 0)
        return 0;
    uint32_t multiple_of = request->multiple_of ? request->multiple_of : plan_multiples[PLAN_MULTIPLES - 1];
    if (request->tp > plan_tp_max(arch, multiple_of))
        return refuse_tp(arch, request->tp, multiple_of, err);
    if (request->ducks && request->tp > request->ducks) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "tp %u needs %u ducks, only %u can take a rank", request->tp, request->tp, request->ducks);
        err_value_int(err, "tp", request->tp);
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

static int refuse_memory(const struct nearest *nearest, bool chosen, uint64_t has, struct err *err)
{
    char needs[32], least[32], have[32], total[32];
    size_format(nearest->needs, needs, sizeof needs);
    size_format(nearest->least, least, sizeof least);
    size_format(has, have, sizeof have);
    size_format(nearest->total, total, sizeof total);
    err_set(err, -ENOMEM, ERR_NO_MEMORY,
            "%stp %u, multiple_of %u: rank %u needs %s (%llu bytes), the smallest rank %s, but the smallest duck has %s (%llu bytes); "
            "all ranks together need %s",
            chosen ? "nothing fits; the closest is " : "", nearest->tp, nearest->multiple_of, nearest->rank, needs,
            (unsigned long long)nearest->needs, least, have, (unsigned long long)has, total);
    err_value_int(err, "tp", nearest->tp);
    err_value_int(err, "multiple_of", nearest->multiple_of);
    err_value_int(err, "rank", nearest->rank);
    err_value_int(err, "needs", (long long)nearest->needs);
    err_value_int(err, "has", (long long)has);
    err_value_int(err, "total", (long long)nearest->total);
    return -ENOMEM;
}

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

static int try_one(struct search *search, uint32_t tp, uint32_t multiple_of, struct err *err)
{
    struct nearest at = {.tp = tp, .multiple_of = multiple_of, .least = UINT64_MAX};
    for (uint32_t rank = 0; rank < tp; rank++) {
        int r = plan_rank_fill(search->arch, tp, multiple_of, rank, &search->ranks[rank], err);
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
    search->tried++;
    if (search->nearest.tp == 0 || at.needs < search->nearest.needs)
        search->nearest = at;
    if (search->request->memory_bytes && at.needs > search->request->memory_bytes)
        return 0;
    search->fitting++;
    struct plan_prediction predicted;
    int r = plan_predict(search->arch, tp, multiple_of, search->ranks, &search->request->rates, &predicted, err);
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
    uint32_t most = plan_tp_max(search->arch, multiple_of);
    if (request->tp)
        return request->tp <= most ? try_one(search, request->tp, multiple_of, err) : 0;
    uint32_t fleet = request->ducks ? request->ducks : PLAN_TP_AUTO_MAX;
    for (uint32_t tp = 1; tp <= most && tp <= fleet; tp++) {
        int r = try_one(search, tp, multiple_of, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static void explain(const struct search *search, struct plan *plan)
{
    const struct plan_request *request = search->request;
    char fits[80] = "", memory[32];
    if (request->memory_bytes)
        snprintf(fits, sizeof fits, ", %u of them fit %s a duck", search->fitting,
                 size_format(request->memory_bytes, memory, sizeof memory));
    if (request->tp && request->multiple_of) {
        snprintf(plan->explanation, sizeof plan->explanation, "tp %u and multiple_of %u as asked for", plan->tp, plan->multiple_of);
        return;
    }
    char ducks[48];
    if (request->ducks)
        snprintf(ducks, sizeof ducks, "%u duck%s", request->ducks, request->ducks == 1 ? "" : "s");
    else if (request->tp)
        snprintf(ducks, sizeof ducks, "a duck for each rank");
    else
        snprintf(ducks, sizeof ducks, "an unknown number of ducks (up to %d)", PLAN_TP_AUTO_MAX);
    snprintf(
        plan->explanation, sizeof plan->explanation,
        "tp %u%s and multiple_of %u%s: best predicted decode rate, %.1f tokens/s (most of it waits for %s), of %u legal plan%s for %s%s",
        plan->tp, request->tp ? " as asked for" : " chosen", plan->multiple_of, request->multiple_of ? " as asked for" : " chosen",
        search->best_rate, plan_term_name(search->best_term), search->tried, search->tried == 1 ? "" : "s", ducks, fits);
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
        return refuse_memory(&search.nearest, !(request->tp && request->multiple_of), request->memory_bytes, err);
    plan->tp = search.best_tp;
    plan->multiple_of = search.best_multiple;
    explain(&search, plan);
    return 0;
}

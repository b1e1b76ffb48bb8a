#include "daemon/model/plan.h"

#include <errno.h>

#include "daemon/model/plan_bytes.h"
#include "daemon/model/plan_choose.h"
#include "proto/base/size.h"

const uint32_t plan_multiples[PLAN_MULTIPLES] = {128, 64, 32, 16, 8};

struct plan_slice plan_slice_of(uint32_t intermediate, uint32_t multiple_of, uint32_t tp, uint32_t rank)
{
    uint64_t units = size_ceil_div(intermediate, multiple_of);
    uint64_t run = units / tp, longer = units % tp;
    uint64_t first = rank * run + (rank < longer ? rank : longer);
    uint64_t padded = (run + (rank < longer)) * multiple_of;
    uint64_t begin = first * multiple_of;
    uint64_t left = begin < intermediate ? intermediate - begin : 0;
    return (struct plan_slice){
        .begin = (uint32_t)begin,
        .neurons = (uint32_t)(left < padded ? left : padded),
        .padded = (uint32_t)padded,
    };
}

static void fill_legal(const struct arch *arch, const struct plan_request *request, struct plan *plan)
{
    uint32_t ducks = request->ducks;
    for (size_t i = 0; i < PLAN_MULTIPLES; i++) {
        uint32_t most = plan_ranks_max(arch, request->strategy, plan_multiples[i]);
        plan->legal[i] = (struct plan_legal){
            .multiple_of = plan_multiples[i],
            .tp_max = most,
            .tp_max_fleet = ducks && ducks < most ? ducks : most,
        };
    }
}

int plan_make(const struct arch *arch, const struct plan_request *request, struct plan **ret_plan, struct err *err)
{
    int r = plan_choose_check(arch, request, err);
    if (r < 0)
        return r;
    _cleanup_(plan_freep) struct plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return err_no_memory(err, "plan", sizeof *plan);
    plan->rates = plan_rates_or_default(&request->rates);
    r = plan_choose(arch, request, plan, err);
    if (r < 0)
        return r;
    plan->ranks = calloc(plan->tp, sizeof *plan->ranks);
    if (!plan->ranks)
        return err_no_memory(err, "plan", plan->tp * sizeof *plan->ranks);
    fill_legal(arch, request, plan);
    r = plan_fill(arch, plan, err);
    if (r < 0)
        return r;
    *ret_plan = STEAL(plan);
    return 0;
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    free(plan->ranks);
    free(plan);
}

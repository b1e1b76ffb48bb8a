/* PURE. Refusals of more ranks than a model has parts for, with the numbers that would do. */
#include <errno.h>
#include <stdio.h>

#include "daemon/model/plan_choose.h"
#include "proto/base/size.h"

/* What config.json calls a width; of several that are as wide the first. */
static const char *field_of(const struct arch *arch, uint32_t width)
{
    const char *key = arch->dense_intermediate == width  ? arch->dense_key
                      : arch->moe_intermediate == width ? arch->moe_key
                                                        : arch->shared_key;
    return key ? key : "intermediate width";
}

/* "moe_intermediate_size 192 = 3 units of 64: tp is at most 3; 128 allows 2, 32 allows 6, 16 allows 12, 8 allows 24" */
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
    err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s %u = %u unit%s of %u: tp is at most %u; %s", field_of(arch, narrowest), narrowest, units,
            units == 1 ? "" : "s", multiple_of, plan_tp_max(arch, multiple_of), others);
    err_value_str(err, "field", field_of(arch, narrowest));
    err_value_int(err, "tp", tp);
    err_value_int(err, "multiple_of", multiple_of);
    err_value_int(err, "intermediate", narrowest);
    err_value_int(err, "units", units);
    err_value_int(err, "tp_max", plan_tp_max(arch, multiple_of));
    return -EINVAL;
}

/* "64 allows 12, 32 allows 24": what the other units do for a width that is cut into `units` of them. */
static const char *list_others(uint32_t intermediate, uint32_t multiple_of, char text[128])
{
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < PLAN_MULTIPLES; i++)
        if (plan_multiples[i] != multiple_of)
            at += (size_t)snprintf(text + at, 128 - at, "%s%u allows %u", at ? ", " : "", plan_multiples[i],
                                   (uint32_t)size_ceil_div(intermediate, plan_multiples[i]));
    return text;
}

/* A width that is split `ways` wide and has fewer units. */
static int refuse_units(const char *strategy, const char *what, uint32_t intermediate, uint32_t multiple_of, uint32_t ways, struct err *err)
{
    uint32_t units = (uint32_t)size_ceil_div(intermediate, multiple_of);
    char others[128];
    err_set(err, -EINVAL, ERR_BAD_SHAPE, "strategy %s splits %s over %u ranks: %u = %u unit%s of %u, so over %u at most; %s", strategy,
            what, ways, intermediate, units, units == 1 ? "" : "s", multiple_of, units, list_others(intermediate, multiple_of, others));
    err_value_int(err, "intermediate", intermediate);
    err_value_int(err, "units", units);
    return -EINVAL;
}

int plan_refuse_ranks(const struct arch *arch, const struct plan_shape *shape, struct plan_strategy strategy, struct err *err)
{
    if (!strategy.width || strategy.groups == 1)
        return refuse_tp(arch, shape->ranks, shape->multiple_of, err);
    char name[PLAN_STRATEGY_TEXT];
    uint32_t multiple_of = shape->multiple_of, most = plan_ranks_max(arch, strategy, multiple_of);
    plan_strategy_name(strategy, name);
    if (shape->groups > arch->experts)
        err_set(err, -EINVAL, ERR_BAD_SHAPE,
                "strategy %s: %u expert%s cannot be divided over %u groups, as every group owns at least one: %u "
                "group%s at most",
                name, arch->experts, size_plural(arch->experts), shape->groups, arch->experts, size_plural(arch->experts));
    else if (shape->width > size_ceil_div(arch->moe_intermediate, multiple_of))
        refuse_units(name, "an expert", arch->moe_intermediate, multiple_of, shape->width, err);
    else if (arch->dense_intermediate && shape->ranks > size_ceil_div(arch->dense_intermediate, multiple_of))
        refuse_units(name, "dense layers", arch->dense_intermediate, multiple_of, shape->ranks, err);
    else if (arch->shared_intermediate && shape->ranks > size_ceil_div(arch->shared_intermediate, multiple_of))
        refuse_units(name, "the shared expert", arch->shared_intermediate, multiple_of, shape->ranks, err);
    else
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "strategy %s: %u ranks are more than %d", name, shape->ranks, PLAN_TP_MAX);
    err_value_str(err, "strategy", name);
    err_value_int(err, "tp", shape->ranks);
    err_value_int(err, "multiple_of", multiple_of);
    err_value_int(err, "experts", arch->experts);
    err_value_int(err, "tp_max", most);
    return -EINVAL;
}

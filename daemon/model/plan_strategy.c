/* PURE. Names of strategies. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/plan.h"

const char *plan_strategy_name(struct plan_strategy strategy, char text[PLAN_STRATEGY_TEXT])
{
    if (strategy.width && strategy.groups)
        snprintf(text, PLAN_STRATEGY_TEXT, "tp%uxep%u", strategy.width, strategy.groups);
    else
        snprintf(text, PLAN_STRATEGY_TEXT, "%s", strategy.width ? "ep" : "tp");
    return text;
}

/* A number of 1 to PLAN_TP_MAX as people write it: digits, no leading zero. */
static bool read_number(const char **at, uint32_t *ret_number)
{
    uint32_t number = 0;
    if (**at < '1' || **at > '9')
        return false;
    for (; **at >= '0' && **at <= '9' && number <= PLAN_TP_MAX; (*at)++)
        number = number * 10 + (uint32_t)(**at - '0');
    *ret_number = number;
    return number <= PLAN_TP_MAX;
}

static bool skip(const char **at, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0)
        return false;
    *at += length;
    return true;
}

int plan_strategy_parse(const char *text, struct plan_strategy *ret_strategy, struct err *err)
{
    const char *at = text;
    uint32_t width, groups;
    if (strcmp(text, "tp") == 0) {
        *ret_strategy = PLAN_TP;
        return 0;
    }
    if (strcmp(text, "ep") == 0) {
        *ret_strategy = PLAN_EP;
        return 0;
    }
    if (skip(&at, "tp") && read_number(&at, &width) && skip(&at, "xep") && read_number(&at, &groups) && !*at &&
        width * groups <= PLAN_TP_MAX) {
        *ret_strategy = (struct plan_strategy){.width = width, .groups = groups};
        return 0;
    }
    err_set(err, -EINVAL, ERR_BAD_REQUEST,
            "strategy \"%.64s\" is not known: tp, ep and tpNxepM are, as in tp2xep4, with N times M ranks, at most %d", text, PLAN_TP_MAX);
    err_value_str(err, "strategy", text);
    return -EINVAL;
}

bool plan_strategy_same(struct plan_strategy a, struct plan_strategy b)
{
    return a.width == b.width && (!a.width || a.groups == b.groups);
}

bool plan_strategy_given(struct plan_strategy strategy)
{
    return strategy.width || strategy.groups;
}

bool plan_strategy_fits(struct plan_strategy strategy, const struct plan *plan)
{
    if (strategy.width && strategy.groups)
        return strategy.width == plan->width && strategy.groups == plan->groups;
    return !plan_strategy_given(strategy) || plan_strategy_same(strategy, plan->strategy);
}

uint32_t plan_strategy_ranks(struct plan_strategy strategy)
{
    return strategy.width * strategy.groups;
}

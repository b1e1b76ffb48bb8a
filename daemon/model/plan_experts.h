/* PURE. Which group owns which experts, and how many of a token's experts meet in one group. Private to the plan. */
#ifndef FP9_MODEL_PLAN_EXPERTS_H
#define FP9_MODEL_PLAN_EXPERTS_H

#include "daemon/model/plan.h"

/* A group's run of `experts` over `groups`, 1 to experts of them. */
struct plan_run {
    uint32_t first, count;
};
struct plan_run plan_run_of(uint32_t experts, uint32_t groups, uint32_t group);
uint32_t plan_group_of(uint32_t experts, uint32_t groups, uint32_t expert);

/* plan.h states the formulas. A gated shared expert is active for every token: the others are drawn from the rest, and its group, the last
 * one, has one active expert more. */
struct plan_draw {
    double slowest; /* E[max]: active experts in the group with most of them */
    double groups;  /* with an active expert */
};
struct plan_draw plan_draw_of(const struct arch *arch, uint32_t groups);

#endif

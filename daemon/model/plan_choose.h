/* PURE. Which (tp, multiple_of) may be asked for, and which one is best. Private to the plan. */
#ifndef FP9_MODEL_PLAN_CHOOSE_H
#define FP9_MODEL_PLAN_CHOOSE_H

#include "daemon/model/plan_bytes.h"

/* Intermediate width of the narrowest kind of expert: it limits tp, since no rank may get nothing in any layer. */
uint32_t plan_narrowest(const struct arch *arch);
/* Whole units of the narrowest kind, at most PLAN_TP_MAX. */
uint32_t plan_tp_max(const struct arch *arch, uint32_t multiple_of);

/* The most ranks that a strategy allows at a multiple_of, at most PLAN_TP_MAX; 0: its width is too much for an expert. */
uint32_t plan_ranks_max(const struct arch *arch, struct plan_strategy strategy, uint32_t multiple_of);
struct plan_shape plan_shape_of(struct plan_strategy strategy, uint32_t ranks, uint32_t multiple_of);

/* plan_refuse.c: why so many ranks cannot be. Sets err and returns its code. */
int plan_refuse_ranks(const struct arch *arch, const struct plan_shape *shape, struct plan_strategy strategy, struct err *err);

/* Refuses what was asked for and cannot be. */
int plan_choose_check(const struct arch *arch, const struct plan_request *request, struct err *err);

/* Sets tp, groups, width, multiple_of, strategy and the explanation of `plan` for a checked request. NO_MEMORY when nothing that may be
 * chosen fits. */
int plan_choose(const struct arch *arch, const struct plan_request *request, struct plan *plan, struct err *err);

#endif

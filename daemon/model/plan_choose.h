/* PURE. Which (tp, multiple_of) may be asked for, and which one is best. Private to the plan. */
#ifndef FP9_MODEL_PLAN_CHOOSE_H
#define FP9_MODEL_PLAN_CHOOSE_H

#include "daemon/model/plan.h"

/* Intermediate width of the narrowest kind of expert: it limits tp, since no rank may get nothing in any layer. */
uint32_t plan_narrowest(const struct arch *arch);
/* Whole units of the narrowest kind, at most PLAN_TP_MAX. */
uint32_t plan_tp_max(const struct arch *arch, uint32_t multiple_of);

/* Refuses what was asked for and cannot be. */
int plan_choose_check(const struct arch *arch, const struct plan_request *request, struct err *err);

/* Sets tp, multiple_of and the explanation of `plan` for a checked request. NO_MEMORY when nothing that may be chosen fits. */
int plan_choose(const struct arch *arch, const struct plan_request *request, struct plan *plan, struct err *err);

#endif

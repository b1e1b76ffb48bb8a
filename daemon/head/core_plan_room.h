/* PURE. Whether a plan fits the fleet's ducks beside the slots of others, before any checkpoint is read. */
#ifndef FP9_HEAD_CORE_PLAN_ROOM_H
#define FP9_HEAD_CORE_PLAN_ROOM_H

#include "daemon/head/core.h"

/* *ret_held, given in either case: bytes of slots on the ducks that cannot be the plan's. -ENOSPC when it does not fit beside them,
 * whichever duck gets which rank; what does not fit an empty duck is none of its business. */
int core_plan_room(const struct core *core, const struct arch *arch, const struct plan *plan, uint64_t *ret_held, struct err *err);

#endif

/* The alarm for the deadlines of steps. Loop thread. */
#ifndef FP9_HEAD_DEADLINE_H
#define FP9_HEAD_DEADLINE_H

#include "daemon/head/head.h"

int deadline_begin(struct head *head, struct err *err);
/* The step that runs in a lane of a session has `ms` from now on; 0: as long as it takes. */
void deadline_set(struct head *head, uint64_t session, uint32_t lane, uint32_t ms);

#endif

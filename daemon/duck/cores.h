/* CPUs: the list a person writes ("0-3,5"), and the affinity of this process. */
#ifndef FP9_DUCK_CORES_H
#define FP9_DUCK_CORES_H

#include <sched.h>
#include <stdint.h>

#include "proto/base/err.h"

/* -EINVAL BAD_REQUEST for anything but numbers and ranges from low to high, below CPU_SETSIZE. */
int cores_parse(const char *text, cpu_set_t *ret_set, struct err *err);

/* Restricts the process to `text` ("" or NULL: what it may use already). A CPU that it may not use is refused by number. *ret_count:
 * CPUs it now has. Call before threads start. */
int cores_apply(const char *text, uint32_t *ret_count, struct err *err);

#endif

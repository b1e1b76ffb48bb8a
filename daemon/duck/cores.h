/* CPUs: the list a person writes ("0-3,5"), the affinity and the quota of this process, and what a team may make of them. */
#ifndef FP9_DUCK_CORES_H
#define FP9_DUCK_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"

struct cores {
    cpu_set_t cpus;        /* that the process may use */
    uint64_t quota_millis; /* thousandths of a CPU, QUOTA_NONE when less is not the limit than there are CPUs */
    uint32_t members;      /* of the team: one per CPU; under a quota as many as it feeds, rounded down */
    bool bind;             /* there is exactly one CPU for each member */
    bool spin;             /* there is a CPU for each member, and no quota that spinning would use up */
};

/* -EINVAL BAD_REQUEST for anything but numbers and ranges from low to high, below CPU_SETSIZE. */
int cores_parse(const char *text, cpu_set_t *ret_set, struct err *err);

/* PURE. quota_millis as quota.h has it; members 0: as many as fit. */
struct cores cores_share(const cpu_set_t *cpus, uint64_t quota_millis, uint32_t members);

/* Restricts the process to `text` ("" or NULL: what it may use already), reads its quota and shares both out. A CPU that it may not use
 * is refused by number. Call before threads start. */
int cores_apply(const char *text, uint32_t members, struct cores *ret_cores, struct err *err);

/* For the log: "4 cores", "2 cores (quota of 2.50 CPUs)", "4 cores on 2 CPUs". */
#define CORES_TEXT_SIZE 64
const char *cores_text(const struct cores *cores, char text[CORES_TEXT_SIZE]);

#endif

/* The CPU time that control groups (version 1 or 2) leave to this process: CFS bandwidth, as systemd's CPUQuota= and containers set it. */
#ifndef FP9_BASE_QUOTA_H
#define FP9_BASE_QUOTA_H

#include <stdint.h>

#define QUOTA_NONE UINT64_MAX

/* Thousandths of a CPU, the smallest quota of the process's groups and of all above them, or QUOTA_NONE. groups: its /proc/self/cgroup;
 * root: where the hierarchies are mounted, /sys/fs/cgroup. What is not there or cannot be read limits nothing. */
uint64_t quota_millis(const char *groups, const char *root);

#endif

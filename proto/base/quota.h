/* The CPU time and the memory that control groups (version 1 or 2) leave to this process, as systemd's CPUQuota= (CFS bandwidth) and
 * MemoryMax= and containers set them. */
#ifndef FP9_BASE_QUOTA_H
#define FP9_BASE_QUOTA_H

#include <stdint.h>

#define QUOTA_NONE UINT64_MAX

/* Thousandths of a CPU, the smallest quota of the process's groups and of all above them, or QUOTA_NONE. groups: its /proc/self/cgroup;
 * root: where the hierarchies are mounted, /sys/fs/cgroup. What is not there or cannot be read limits nothing. */
uint64_t quota_millis(const char *groups, const char *root);
/* Bytes, in the same way. Who takes more is killed by the kernel; no call fails. */
uint64_t quota_memory(const char *groups, const char *root);

#endif

/* Local ducks: fp9-duck as a child process. fp9d makes and keeps the weight buffer's memfd, so that the contents outlive the child. */
#ifndef FP9_HEAD_LOCAL_H
#define FP9_HEAD_LOCAL_H

#include <sched.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/base/err.h"

/* The path of the fp9-duck program that belongs to this fp9d: beside it, in the build tree, or the installed one. */
int local_find_program(char *ret_path, size_t size, struct err *err);

/* A sparse memfd of `bytes`; memory is taken as slots are prepared. */
int local_make_buffer(const char *name, uint64_t bytes, int *ret_fd, struct err *err);

uint64_t local_buffer_size(int fd); /* of a buffer's memfd */

/* What each of `ducks` gets when nothing is said: four fifths of RAM, shared. */
uint64_t local_default_memory(uint32_t ducks);

/* Whether `list` is one of CPUs: "0-3,5", or "". */
int local_check_cores(const char *list, struct err *err);
/* The CPUs of duck `index` of `ducks` as a list ("0,4"): `list` (or, when empty, the CPUs this process may use) is dealt out; with fewer
 * CPUs than ducks everyone gets all (*ret_shared), and nobody is pinned to a shared one. */
int local_share_cores(const char *list, uint32_t index, uint32_t ducks, char *ret_list, size_t size, bool *ret_shared, struct err *err);

/* The one CPU of a shared list (as local_share_cores gave it) on which duck `index` has its kernel thread: dealt out in turn. Threads that
 * are free to move stay where they were woken while background work keeps the other CPUs from being idle, up to some ticks. */
int local_member_cpu(const char *list, uint32_t index);

/* The CPUs that this process may use and no local duck does: what its own threads and its clients have to themselves. */
void local_spare_cpus(const char *list, uint32_t ducks, cpu_set_t *ret_spare);

/* Keeps the calling thread to `cpus`, but not the children that it starts. */
int local_bind(const cpu_set_t *cpus, struct err *err);

/* What a local duck is started with. Descriptors are borrowed. */
struct local_setup {
    const char *program, *name;
    const char *cores; /* a list of CPUs */
    bool shared;       /* with other ducks: it has one kernel thread */
    int member_cpu;    /* whose CPU this is; < 0 unless shared */
    bool prealloc;     /* it takes its buffer's memory at once */
    int weights_fd, stage_fd;
    int channel_fd; /* shared memory for steps (proto/wire/channel.h); -1: none */
    int bell_fd;    /* what the child rings then */
};

/* Starts the child: *ret_link is our end of its link (nonblocking), *ret_pidfd becomes readable when it ends. */
int local_start(const struct local_setup *setup, pid_t *ret_pid, int *ret_pidfd, int *ret_link, struct err *err);

/* Reaps an ended child and says how it ended ("was killed by signal 9 (Killed)"). 0 when it has not ended yet, 1 when it has. */
int local_reap(int pidfd, char *ret_how, size_t size);

#endif

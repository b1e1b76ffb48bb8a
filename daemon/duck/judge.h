/* The one-shot judge: a step in a fresh kernel process (this program executed again), which maps the weights read-only, computes, and
 * exits. Its job and its result lie in a memfd of their own, sealed against any change of size. */
#ifndef FP9_DUCK_JUDGE_H
#define FP9_DUCK_JUDGE_H

#include "daemon/duck/compute.h"
#include "daemon/duck/team.h"

#define JUDGE_OPTION "--kernel-process" /* argv[1] of a kernel process; not for people */

/* Where the slot lies in the weights file. */
struct judge_slot {
    struct msg_prepare_begin words;
    uint64_t offset; /* multiple of the page size */
    uint64_t bytes;
};

struct judge_result {
    uint64_t duck_time_ns;
    struct compute_cost cost;
};

/* Runs the job in a kernel process, by a team of its own after `setup`, and waits for it; job->layer is not looked at. A process that
 * dies is -EIO INTERNAL naming the signal; *cancel kills it (-ECANCELED). weights_fd must be inheritable. Any thread, one at a time. */
int judge_run(const struct compute_job *job, const struct judge_slot *slot, const struct team_setup *setup, int weights_fd,
              _Atomic uint64_t *progress, const _Atomic bool *cancel, struct judge_result *ret_result, struct err *err);

/* main() of a kernel process: JUDGE_OPTION JOB-FD WEIGHTS-FD. Returns the exit status. */
int judge_main(int argc, char **argv);

#endif

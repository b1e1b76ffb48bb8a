/* The one-shot judge: a step in a fresh kernel process, which maps the weights read-only, computes, and exits. Its job and its result lie
 * in a memfd of their own, sealed against any change of size, so that nothing of one step can be taken for another's.
 *
 * Its program is fp9-kernel, not this one: half of what a step costs here is the start of a process, and most of that is the dynamic
 * linker at work on libraries that kernels have no use for. */
#ifndef FP9_DUCK_JUDGE_H
#define FP9_DUCK_JUDGE_H

#include "daemon/duck/compute.h"
#include "daemon/duck/team.h"

#define JUDGE_PROGRAM "fp9-kernel"

/* Where the slot lies in the weights file. */
struct judge_slot {
    struct msg_prepare_begin words;
    uint64_t offset; /* multiple of the page size */
    uint64_t bytes;
};

struct judge_result {
    struct compute_cost cost;
    struct msg_one_shot parts; /* by the monotonic clock, without gaps from the call of judge_run to its return */
};

/* The program, opened once, so that an upgrade under a running duck changes nothing: a close-on-exec descriptor for judge_run. It stands
 * beside fp9-duck or in the folder of such programs. -ENOENT NO_SUCH naming both. */
int judge_open_program(int *ret_fd, struct err *err);

/* Runs the job in a kernel process, by a team of its own after `setup`, and waits for it; job->layer is not looked at. A process that
 * dies is -EIO INTERNAL naming the signal; so is one that made no progress for JUDGE_STALL_LOOKS tenths of setup->stall_ns, and is killed;
 * *cancel kills it (-ECANCELED). When this returns the process is gone. weights_fd must be inheritable. Any thread, one at a time; the
 * process dies with the thread. */
#define JUDGE_STALL_LOOKS 15 /* more than the ten after which its own team names a member that is stalled */
int judge_run(int program_fd, const struct compute_job *job, const struct judge_slot *slot, const struct team_setup *setup, int weights_fd,
              _Atomic uint64_t *progress, const _Atomic bool *cancel, struct judge_result *ret_result, struct err *err);

/* main() of the program: JOB-FD WEIGHTS-FD. Returns the exit status, or ends the process itself. */
int judge_main(int argc, char **argv);

#endif

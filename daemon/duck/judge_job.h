/* What the duck and a kernel process share: the layout of the job's memfd. For judge.c and judge_process.c alone. */
#ifndef FP9_DUCK_JUDGE_JOB_H
#define FP9_DUCK_JUDGE_JOB_H

#include <sys/types.h>

#include "daemon/duck/judge.h"
#include "proto/base/size.h"

#define JUDGE_JOB_MAGIC UINT64_C(0x3267656a39706621)
#define JUDGE_KERNELS_MAX 32

/* The front of the memfd; tensors follow at multiples of 64. The duck writes all of it but the last part before the process starts. */
struct judge_job {
    uint64_t magic;
    uint64_t size; /* of the memfd */
    pid_t parent;
    char kernels[JUDGE_KERNELS_MAX]; /* as FP9_CPU has them: those of the duck, so that nothing is timed again */
    struct judge_slot slot;
    struct team_setup setup;
    uint32_t kind, dtype;
    uint32_t tokens, top_k, hidden;
    uint64_t x, ids, weights, partial; /* offsets */
    /* Written by the kernel process, `done` last. */
    _Atomic uint64_t progress; /* moves while the kernels run */
    uint64_t main_ns, mapped_ns, team_ns, ran_ns; /* when it was there, by the machine's monotonic clock */
    struct compute_cost cost;
    struct err err;
    _Atomic uint32_t done; /* 1: the partial is whole */
};

static inline size_t judge_dtype_bytes(uint32_t dtype)
{
    return dtype == MSG_F32 ? 4 : 2;
}

/* Offsets of the tensors and the size; every factor is under its wire limit, so sums fit. */
static inline void judge_job_place(struct judge_job *job)
{
    uint64_t values = (uint64_t)job->tokens * job->hidden, slots = (uint64_t)job->tokens * job->top_k;
    job->x = size_round_up(sizeof *job, 64);
    job->ids = job->x + size_round_up(values * 2, 64);
    job->weights = job->ids + size_round_up(slots * 4, 64);
    job->partial = job->weights + size_round_up(slots * 4, 64);
    job->size = job->partial + size_round_up(values * judge_dtype_bytes(job->dtype), 64);
}

#endif

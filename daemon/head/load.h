/* Loading: opens and checks a checkpoint (disk worker), then streams the missing slots to their ducks (bulk worker). */
#ifndef FP9_HEAD_LOAD_H
#define FP9_HEAD_LOAD_H

#include "daemon/head/head.h"

/* CORE_ACT_OPEN: ends in core_load_opened or core_load_open_failed. */
void load_open(struct head *head, uint64_t job);
/* CORE_ACT_STREAM: ends in core_stream_ended. The checkpoint is the one that load_open left open. */
void load_stream(struct head *head, uint64_t job);
/* CORE_ACT_STREAM_CANCEL */
void load_cancel(struct head *head, uint64_t job);
/* A job is over and never streams: what load_open left is freed. */
void load_forget(struct head *head, uint64_t job);
/* A few times a second: tells the core how far each stream is. */
void load_tick(struct head *head);
/* At the end, when the workers have stopped. */
void load_free_all(struct head *head);

/* The PREPARE request ids of a job's slots. Bit 63 keeps them apart from the core's own numbers. */
#define LOAD_REQUEST_BIT (UINT64_C(1) << 63)
#define LOAD_REQUEST_SHIFT 20 /* a job has at most ARCH_LAYERS_MAX * PLAN_TP_MAX slots */
static inline uint64_t load_request(uint64_t job, uint64_t slot)
{
    return LOAD_REQUEST_BIT | job << LOAD_REQUEST_SHIFT | slot;
}
static inline bool load_is_request(uint64_t request)
{
    return request & LOAD_REQUEST_BIT;
}
static inline uint64_t load_job_of_request(uint64_t request)
{
    return (request & ~LOAD_REQUEST_BIT) >> LOAD_REQUEST_SHIFT;
}

#endif

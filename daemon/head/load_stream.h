/* Streams the missing slots of a job: reads each matrix in large pieces, slices it by rank, frames it, and keeps only so many bytes
 * on the way.
 *
 * Made on the loop's thread from what the core knows; run on the bulk worker; frames are handed to the peers on the loop. */
#ifndef FP9_HEAD_LOAD_STREAM_H
#define FP9_HEAD_LOAD_STREAM_H

#include "daemon/head/head.h"

struct load_stream;

/* Copies all it needs of job and model. Aborts when out of memory for that (a few kB). */
struct load_stream *load_stream_new(struct head *head, const struct core_job *job, const struct core_model *model);
void load_stream_free(struct load_stream *stream);

/* Bulk worker: returns when everything is handed over, on an error, or soon after a cancel (-ECANCELED). Slots begun and not ended are
 * aborted. */
int load_stream_run(struct load_stream *stream, struct checkpoint *checkpoint, struct err *err);

/* Any thread. */
void load_stream_cancel(struct load_stream *stream);
void load_stream_progress(struct load_stream *stream, uint64_t *ret_read_bytes, uint64_t *ret_sent_bytes);

/* The PREPARE request ids of a job's slots. Bit 63 keeps them apart from the core's own numbers. */
#define LOAD_STREAM_REQUEST_BIT (UINT64_C(1) << 63)
#define LOAD_STREAM_REQUEST_SHIFT 20 /* a job has at most ARCH_LAYERS_MAX * PLAN_TP_MAX slots */
static inline uint64_t load_stream_request(uint64_t job, uint64_t slot)
{
    return LOAD_STREAM_REQUEST_BIT | job << LOAD_STREAM_REQUEST_SHIFT | slot;
}
static inline bool load_stream_is_request(uint64_t request)
{
    return request & LOAD_STREAM_REQUEST_BIT;
}
static inline uint64_t load_stream_job_of(uint64_t request)
{
    return (request & ~LOAD_STREAM_REQUEST_BIT) >> LOAD_STREAM_REQUEST_SHIFT;
}

#endif

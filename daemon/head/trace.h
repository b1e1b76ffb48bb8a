/* When what happened to one step, for a client that asks for it (`trace` of decode and prefill).
 *
 * Stamps are clock_now_ns(). A step that is not traced has NULL here, for which every function does nothing: no clock is read. Loop thread
 * only. */
#ifndef FP9_HEAD_TRACE_H
#define FP9_HEAD_TRACE_H

#include <jansson.h>

#include "daemon/head/core.h"

#define TRACE_CHUNKS_MAX 16 /* of a step; later ones are only counted */

struct trace;

/* received_ns: when the request's line was taken. NULL: out of memory. */
struct trace *trace_new(uint64_t received_ns, uint32_t tp);
void trace_free(struct trace *trace);
CLEANUP_DEFINE(struct trace *, trace_free);

/* The step's chunk is in its frame. */
void trace_chunk(struct trace *trace, const struct core_step *step);
/* The frame was handed to the rank's link, which may still hold bytes of it. */
void trace_sent(struct trace *trace, uint32_t rank);
void trace_answered(struct trace *trace, uint64_t now, uint32_t rank, uint64_t duck_time_ns);
/* y of the chunk is written. */
void trace_summed(struct trace *trace);

/* The object of the answer, as fp9-control(7) has it; NULL for NULL. */
json_t *trace_json(const struct trace *trace, const struct core *core, const struct core_session *session);

#endif

/* The timing words as JSON objects: of metrics, status and session.list. Times in microseconds; what is not defined is null. */
#ifndef FP9_HEAD_TIMING_JSON_H
#define FP9_HEAD_TIMING_JSON_H

#include <jansson.h>

#include "daemon/head/metrics.h"

/* {count, sum} since the start, {p50, p90, p99, max} of the last 30 to 60 seconds; of times in us, of a ratio as it is. */
json_t *timing_json_histogram(const struct histogram *histogram, uint64_t now);

/* {decode: {...}, prefill: {...}}, without a kind that has never run: steps, tokens, the words, the rates. */
json_t *timing_json_kinds(const struct timing_set kinds[TIMING_KINDS], uint64_t now);

/* {duck, share, late_us}, or null. `session` as for timing_straggler(). */
json_t *timing_json_straggler(const struct head *head, const struct timing_session *session, uint64_t now);

/* The short form of a session, or with NULL of all: {kind, steps, judge_wait_us {p50, p99}, judge_gap_us {p50, p99}, judge_ratio,
 * straggler}, of decode, or of prefill when there is no decode lately; null when there was no step lately. */
json_t *timing_json_summary(const struct head *head, const struct timing_session *session, uint64_t now);

#endif

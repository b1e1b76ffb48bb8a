/* Everything that is counted in the text format that Prometheus reads (version 0.0.4): names begin with fp9_ and end with their unit, times
 * are in seconds, quantiles are of the last 30 to 60 seconds, counts and sums since the start. */
#ifndef FP9_HEAD_PROMETHEUS_H
#define FP9_HEAD_PROMETHEUS_H

#include "daemon/head/metrics.h"
#include "proto/base/buf.h"

/* So that it fits, with its quotes escaped, into a line of JSON. Layers and sessions that find no room are counted in
 * fp9_series_left_out. */
#define PROMETHEUS_BYTES_MAX (880u * 1024)

/* Appends to `text`, which is empty. */
int prometheus_write(const struct head *head, uint64_t now, struct buf *text, struct err *err);

#endif

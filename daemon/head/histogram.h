/* PURE. How values are spread: a rolling histogram of fixed size.
 *
 * Values are whole numbers of any unit (nanoseconds, thousandths). Below 256 a bucket is 8 wide, above it a 32nd of a power of two: a
 * quantile is off by at most 4, or 1.6 %. Values from 2^36 on count as the highest bucket.
 *
 * Counts are kept for the running period of HISTOGRAM_PERIOD_NS and the one before it, so quantiles and `max` speak of the last 30 to 60
 * seconds. Count and sum go on since the start. Time is passed in, in nanoseconds, and never goes back. Zero-initialised is empty and
 * valid. One thread at a time. */
#ifndef FP9_HEAD_HISTOGRAM_H
#define FP9_HEAD_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

#define HISTOGRAM_PERIOD_NS UINT64_C(30000000000)
#define HISTOGRAM_SPLIT 32 /* buckets of a power of two, and of the values below the first */
#define HISTOGRAM_FIRST 8  /* 2^8: from here on buckets grow */
#define HISTOGRAM_LAST 36  /* 2^36: no value is told from a higher one */
#define HISTOGRAM_BUCKETS ((size_t)(HISTOGRAM_LAST - HISTOGRAM_FIRST + 1) * HISTOGRAM_SPLIT)

struct histogram {
    uint64_t count, sum; /* since the start */
    uint64_t period;     /* now / HISTOGRAM_PERIOD_NS of the newest value */
    uint32_t current;    /* which of the two is the running period's */
    uint32_t counts[2];
    uint64_t max[2];
    uint32_t buckets[2][HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *histogram, uint64_t now, uint64_t value);

struct histogram_summary {
    uint64_t count, sum;  /* since the start */
    uint64_t recent;      /* values that the rest is of */
    double p50, p90, p99; /* nearest rank; NaN when recent is 0 */
    uint64_t max;         /* exact; 0 when recent is 0 */
};
void histogram_read(const struct histogram *histogram, uint64_t now, struct histogram_summary *ret_summary);

#endif

#include "daemon/head/histogram.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define SPLIT_BITS 5 /* HISTOGRAM_SPLIT = 2^5 */

static size_t bucket_of(uint64_t value)
{
    if (value < UINT64_C(1) << HISTOGRAM_FIRST)
        return value >> (HISTOGRAM_FIRST - SPLIT_BITS);
    if (value >= UINT64_C(1) << HISTOGRAM_LAST)
        return HISTOGRAM_BUCKETS - 1;
    unsigned power = 63 - (unsigned)__builtin_clzll(value);
    return (size_t)(power - HISTOGRAM_FIRST + 1) * HISTOGRAM_SPLIT + ((value >> (power - SPLIT_BITS)) & (HISTOGRAM_SPLIT - 1));
}

static double middle_of(size_t bucket)
{
    size_t octave = bucket / HISTOGRAM_SPLIT, place = bucket % HISTOGRAM_SPLIT;
    if (octave == 0)
        return ldexp((double)place + 0.5, HISTOGRAM_FIRST - SPLIT_BITS);
    return ldexp((double)(HISTOGRAM_SPLIT + place) + 0.5, (int)octave - 1 + HISTOGRAM_FIRST - SPLIT_BITS);
}

static void clear(struct histogram *histogram, uint32_t which)
{
    if (histogram->counts[which])
        memset(histogram->buckets[which], 0, sizeof histogram->buckets[which]);
    histogram->counts[which] = 0;
    histogram->max[which] = 0;
}

static void rotate(struct histogram *histogram, uint64_t period)
{
    if (period != histogram->period + 1)
        clear(histogram, histogram->current); /* old, too */
    histogram->current ^= 1;
    clear(histogram, histogram->current);
    histogram->period = period;
}

void histogram_add(struct histogram *histogram, uint64_t now, uint64_t value)
{
    uint64_t period = now / HISTOGRAM_PERIOD_NS;
    if (period > histogram->period)
        rotate(histogram, period);
    uint32_t which = histogram->current;
    histogram->count++;
    histogram->sum += value;
    histogram->counts[which]++;
    if (value > histogram->max[which])
        histogram->max[which] = value;
    histogram->buckets[which][bucket_of(value)]++;
}

/* The values of rising ranks, counted from 1, of the periods asked for. */
static void at_ranks(const struct histogram *histogram, const bool use[2], const uint64_t *ranks, double *const *values, size_t count)
{
    uint64_t seen = 0;
    for (size_t bucket = 0, i = 0; bucket < HISTOGRAM_BUCKETS && i < count; bucket++) {
        for (uint32_t which = 0; which < 2; which++)
            seen += use[which] ? histogram->buckets[which][bucket] : 0;
        for (; i < count && seen >= ranks[i]; i++)
            *values[i] = middle_of(bucket);
    }
}

void histogram_read(const struct histogram *histogram, uint64_t now, struct histogram_summary *ret_summary)
{
    uint64_t period = now / HISTOGRAM_PERIOD_NS, age = period > histogram->period ? period - histogram->period : 0;
    bool use[2] = {0};
    use[histogram->current] = age < 2;
    use[histogram->current ^ 1] = age < 1;
    struct histogram_summary summary = {.count = histogram->count, .sum = histogram->sum, .p50 = NAN, .p90 = NAN, .p99 = NAN};
    for (uint32_t which = 0; which < 2; which++) {
        summary.recent += use[which] ? histogram->counts[which] : 0;
        if (use[which] && histogram->max[which] > summary.max)
            summary.max = histogram->max[which];
    }
    if (summary.recent) {
        double *const values[] = {&summary.p50, &summary.p90, &summary.p99};
        const uint64_t ranks[] = {(summary.recent + 1) / 2, (summary.recent * 90 + 99) / 100, (summary.recent * 99 + 99) / 100};
        at_ranks(histogram, use, ranks, values, 3);
        /* The middle of the highest bucket may lie above the highest value. */
        for (size_t i = 0; i < 3; i++)
            *values[i] = fmin(*values[i], (double)summary.max);
    }
    *ret_summary = summary;
}

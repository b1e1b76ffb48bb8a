/* Medians and quartiles of a few numbers. */
#ifndef FP9_TESTS_BENCH_STATS_H
#define FP9_TESTS_BENCH_STATS_H

#include <stddef.h>

/* q in 0 .. 1, nearest rank; sorts the values. */
double stats_quantile(double *values, size_t count, double q);
double stats_median(double *values, size_t count);
double stats_spread(double *values, size_t count); /* (third quartile - first) / median */

#endif

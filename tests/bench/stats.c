#include "tests/bench/stats.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double stats_quantile(double *values, size_t count, double q)
{
    qsort(values, count, sizeof(*values), compare);
    return values[(size_t)lround(q * (double)(count - 1))];
}

double stats_median(double *values, size_t count)
{
    return stats_quantile(values, count, 0.5);
}

double stats_spread(double *values, size_t count)
{
    return (stats_quantile(values, count, 0.75) - stats_quantile(values, count, 0.25)) / stats_median(values, count);
}

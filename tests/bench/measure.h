/* Rounds: in each, every reader and every variant runs for about the same time, one after another, so that the ratios of a round are taken
 * under the same conditions. The order turns from round to round. */
#ifndef FP9_TESTS_BENCH_MEASURE_H
#define FP9_TESTS_BENCH_MEASURE_H

#include "tests/bench/pool.h"

struct result {
    struct variant variant;
    const char *reader;                                             /* the way of reading that was fastest most often */
    double gparam_s, gb_s, read_gb_s, of_read, of_limit, imbalance; /* medians over the rounds */
    double of_seed, of_raw8;     /* medians of the rate over that rival's in the same round; NaN when it did not run */
    double spread, ratio_spread; /* of gparam_s and of of_limit: (third quartile - first) / median */
    size_t pool_bytes, huge_bytes;
    bool pinned;
};

/* What goes from case to case: memory, and the settings, which must outlive it. */
struct bench;
int bench_new(struct bench **ret_bench, const struct settings *settings, struct err *err);
void bench_free(struct bench *bench); /* accepts NULL */

/* Checks and measures all variants of the settings that can run here; what cannot is named on stderr, unless it was asked for by name,
 * which fails. Returns the number of results, or a negative errno. */
int measure_case(struct bench *bench, const struct bench_case *what, struct result ret_results[VARIANTS_MAX], struct err *err);

#endif

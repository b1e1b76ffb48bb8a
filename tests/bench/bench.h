/* What a measurement consists of: the variants that run, the pools that they read, and a value of each for every round. */
#ifndef FP9_TESTS_BENCH_BENCH_H
#define FP9_TESTS_BENCH_BENCH_H

#include "tests/bench/measure.h"
#include "tests/bench/run.h"

/* What is measured of one variant, a value for each round. */
struct series {
    struct variant variant;
    struct pool *pool;
    struct run run;
    double rate[SETTINGS_ROUNDS_MAX]; /* parameters per second */
    double imbalance[SETTINGS_ROUNDS_MAX];
};

/* Reading one pool's items: the best way of each round. */
struct reading {
    struct run runs[READERS_MAX];
    size_t count;
    double best[SETTINGS_ROUNDS_MAX]; /* bytes per second */
    uint32_t wins[READERS_MAX];
};

struct bench {
    const struct settings *settings;
    /* of the case under way; pools[0] is fp9's */
    const struct bench_case *what;
    struct team *team;
    struct vectors *vectors; /* [threads] */
    struct reader readers[READERS_MAX];
    struct pool pools[VARIANTS_MAX];
    struct reading readings[VARIANTS_MAX]; /* of each pool */
    size_t pool_count, series_count;
    struct series series[VARIANTS_MAX];
};

/* lineup.c: which variants run (series), and their pools, filled. `all` are all variants, the reference first. */
int lineup_choose(struct bench *bench, const struct variant *all, size_t count, struct err *err);
int lineup_pools(struct bench *bench, const struct variant *reference, struct err *err);

/* summary.c: the medians of a variant's rounds. */
struct result summary_of(struct bench *bench, struct series *series);

#endif

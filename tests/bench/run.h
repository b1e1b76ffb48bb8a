/* One run: the team's members all take steps on their parts of a pool, with a reader or with a variant. */
#ifndef FP9_TESTS_BENCH_RUN_H
#define FP9_TESTS_BENCH_RUN_H

#include "tests/bench/pool.h"
#include "tests/bench/reader.h"
#include "tests/bench/team.h"

struct run {
    const struct bench_case *what;
    struct pool *pool;
    const struct reader *reader; /* or, when NULL, */
    const struct variant *variant;
    struct vectors *vectors; /* [threads] */
    uint32_t threads;
    uint64_t steps; /* of each member */
};

struct run_rate {
    double steps_per_s; /* of all members together, by the wall */
    double imbalance;   /* wall / the longest member's own time */
};

/* How many steps every member does in `for_ns`: at least 1. Runs for that long. */
uint64_t run_calibrate(struct run *run, struct team *team, uint64_t for_ns);
struct run_rate run_measure(struct run *run, struct team *team);

#endif

/* A variant that computes something else must not be measured. */
#ifndef FP9_TESTS_BENCH_CHECK_H
#define FP9_TESTS_BENCH_CHECK_H

#include "tests/bench/pool.h"

/* Runs a step of the variant on each kind of item and compares with the C reference on the same weights: to the bit when the variant is
 * exact, else within 2^-15 of the result's root mean square. `ours` is a pool of fp9's. -EBADMSG naming variant, row and both values when
 * it differs. */
int check_variant(const struct variant *variant, const struct bench_case *what, const struct pool *pool, const struct variant *reference,
                  const struct pool *ours, const struct settings *settings, struct vectors *vectors, struct err *err);

#endif

/* What the command line asks for. */
#ifndef FP9_TESTS_BENCH_SETTINGS_H
#define FP9_TESTS_BENCH_SETTINGS_H

#include <stdbool.h>

#include "tests/bench/memory.h"

#define SETTINGS_THREADS_MAX 256
#define SETTINGS_ROUNDS_MAX 99
#define SETTINGS_POOL_MAX (UINT64_C(1) << 40)

struct settings {
    bool cold;
    uint32_t threads;
    uint32_t rounds;
    bool json;
    enum memory_kind memory;
    uint64_t pool_bytes;  /* of a cold pool; 0: 1 GiB, or four times the last cache if that is more */
    double subnormals;    /* share of the weights */
    const char *variants; /* names with commas between; NULL: all that run here */
    const char *corrupt;  /* a variant whose result is spoilt before it is checked, to try the check; or NULL */
};

#endif

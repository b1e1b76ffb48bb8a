/* OpenBLAS, looked for when the program runs: without it everything else still works, and the program says what is missing. */
#ifndef FP9_TESTS_BENCH_OPENBLAS_H
#define FP9_TESTS_BENCH_OPENBLAS_H

#include <stdint.h>

#include "proto/base/err.h"

/* The order and transposition words of its C interface. */
#define OPENBLAS_ROW_MAJOR 101
#define OPENBLAS_NO_TRANSPOSE 111
#define OPENBLAS_TRANSPOSE 112

/* Opens the library once, stays open until the program ends. -ENOTSUP when it or one of its own functions is missing.
 * OpenBLAS knows CPUs by their model numbers and takes a newer one for a very old one (SSE3): unless the user has set OPENBLAS_CORETYPE, it
 * is told here what the CPU can do, or a comparison would be worth nothing. Its other environment variables are the user's. */
int openblas_open(struct err *err);

/* After openblas_open only. `function` of the library, -ENOTSUP when it has none. */
int openblas_function(const char *function, void **ret_function, struct err *err);
void openblas_threads(uint32_t threads);

/* How it was built, and the CPU that it works for; NULL when it is not open. */
const char *openblas_config(void);
const char *openblas_core(void);

#endif

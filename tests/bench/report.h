/* The results as a table or as JSON. */
#ifndef FP9_TESTS_BENCH_REPORT_H
#define FP9_TESTS_BENCH_REPORT_H

#include "tests/bench/measure.h"

void report_begin(const struct settings *settings);
void report_case(const struct bench_case *what, const struct settings *settings, const struct result *results, int count);
void report_end(const struct settings *settings);

#endif

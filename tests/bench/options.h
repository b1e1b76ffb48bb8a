/* The command line. */
#ifndef FP9_TESTS_BENCH_OPTIONS_H
#define FP9_TESTS_BENCH_OPTIONS_H

#include "tests/bench/cases.h"
#include "tests/bench/settings.h"

#define OPTIONS_EXIT_REFUSED 1
#define OPTIONS_EXIT_USAGE 2

struct options {
    enum case_kind kind;
    bool smp;         /* kind CASE_MOE by all threads together */
    bool prefill;     /* kind CASE_GEMV with many tokens */
    uint32_t experts; /* of smp's steps; 0: the usual numbers */
    uint32_t tokens;  /* smp: not one token but so many; 0: one */
    const char *text; /* of the case; NULL: the usual ones; "all": all that have a name */
    struct settings settings;
};

/* True: *ret_options is what to do. False: everything is said and *ret_status is the exit status. */
bool options_parse(int argc, char **argv, struct options *ret_options, int *ret_status);

#endif

/* One token through a layer by all threads together: what the team of a duck does, here with a bare barrier between its phases.
 *
 * Measured in the same rounds: phases.h's split (rows of output; "rows") with one thread and with all, the split of the fp9 that was there
 * before ("slots": each thread whole experts, each expert's result aside, the first thread adds them up), and pure reads of the same experts
 * with one thread and with all. */
#ifndef FP9_TESTS_BENCH_SMP_H
#define FP9_TESTS_BENCH_SMP_H

#include "tests/bench/options.h"

struct smp_result {
    uint32_t experts;
    double gparam_s, read_gb_s;
    double of_limit;        /* weights per second x 1.125 / bytes per second of the best read with all threads */
    double speedup;         /* all threads over one */
    double read_speedup;    /* of the best reads */
    double of_read_speedup; /* speedup / read_speedup, of a round */
    double imbalance;       /* the longest time that a thread was at work / the mean */
    double slots_over_rows; /* rate of the other split / ours */
    double spread;          /* of of_limit */
    bool pinned;
};

/* One line or object for each number of experts; -EBADMSG when a way computes something else than one thread alone. */
int smp_case(const struct bench_case *what, const struct options *options, struct err *err);

/* smp_report.c */
void smp_report_begin(const struct settings *settings);
void smp_report(const struct bench_case *what, const struct settings *settings, const struct smp_result *result);
void smp_report_end(const struct settings *settings);

#endif

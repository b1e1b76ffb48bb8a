/* One token through a layer by all threads together: what the team of a duck does, here with a bare barrier between its phases.
 *
 * Measured in the same rounds: phases.h's split (rows of output; "rows") with one thread and with all, the seed's split ("slots": each
 * thread whole experts, each expert's result aside, the first thread adds them up), and pure reads of the same experts with one thread and
 * with all. */
#ifndef FP9_TESTS_BENCH_SMP_H
#define FP9_TESTS_BENCH_SMP_H

#include <sched.h>

#include "tests/bench/options.h"

#define WHOLE_TOKENS_MAX 8192

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

/* smp_whole.c: many tokens through a layer, by all threads. */
struct smp_whole {
    uint32_t tokens;
    double gflops;           /* two FLOPs a weight and token, padding not counted */
    double of_peak;          /* of the FMA peak of all threads; NaN: not known here */
    double speedup;          /* all threads over one */
    double over_decodes;     /* time of as many decodes / time of this */
    double weight_stream_gb; /* bytes of passes over weights per second */
    double imbalance;
    double tiles, avg_tile_batch;
};
int smp_whole(const struct bench_case *what, const struct options *options, struct err *err);

/* A barrier that spins. */
struct smp_barrier {
    uint32_t come, open; /* atomic: members that have come, and how often all have */
};

static inline void smp_barrier(struct smp_barrier *barrier, uint32_t threads)
{
    uint32_t turn = __atomic_load_n(&barrier->open, __ATOMIC_RELAXED);

    if (threads == 1)
        return;
    if (__atomic_add_fetch(&barrier->come, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&barrier->come, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->open, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    for (uint32_t i = 1; __atomic_load_n(&barrier->open, __ATOMIC_ACQUIRE) == turn; i++) {
        if (i % 65536 == 0) /* more threads than CPUs */
            sched_yield();
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

/* smp_report.c */
void smp_report_whole(const struct bench_case *what, const struct settings *settings, const struct smp_whole *result);
void smp_report_begin(const struct settings *settings, bool whole); /* whole: what follows are struct smp_whole */
void smp_report(const struct bench_case *what, const struct settings *settings, const struct smp_result *result);
void smp_report_end(const struct settings *settings, bool whole);

#endif

/* Many tokens through one matrix, as a layer's prefill does it: fp9's batches beside OpenBLAS' sgemm on the weights as binary32 and, in the
 * same rounds, one token at a time and the peak of the machine's FMA. Several threads divide the matrix' rows. */
#ifndef FP9_TESTS_BENCH_PREFILL_H
#define FP9_TESTS_BENCH_PREFILL_H

#include "tests/bench/options.h"
#include "tests/bench/variant.h"

#define PREFILL_TOKENS_MAX 512

/* Medians over the rounds; NaN: not known here. */
struct prefill_result {
    uint32_t tokens;
    double gflops;       /* two FLOPs a weight and token, padding not counted */
    double of_peak;      /* of the widest FMA that the variant's instructions have, all threads */
    double vs_openblas;  /* rate over sgemm's */
    double over_decodes; /* time of one token's pass x tokens / time of the batch */
    double spread;       /* of of_peak, or of gflops where no peak is known: (third quartile - first) / median */
};

/* All that the options ask for. -EBADMSG when a batch is not what each token alone gives, or OpenBLAS something else. */
int prefill_run(const struct options *options, struct err *err);

/* prefill_blas.c: looks for the library; -ENOTSUP says what is missing. `threads` of its own. */
int prefill_blas_open(uint32_t threads, struct err *err);
const char *prefill_blas_core(void); /* the CPU that it takes this one for; NULL: not in use */
/* c[tokens][rows] = x[tokens][columns] . a[rows][columns], transposed */
void prefill_blas_multiply(const float *a, uint32_t rows, uint32_t columns, const float *x, uint32_t tokens, float *c);

/* prefill_peak.c: FLOPs of one call, a fraction of a millisecond of independent FMAs; 0: no such loop for the tier. */
double prefill_peak(enum kernels_tier tier);

/* prefill_report.c */
void prefill_report_begin(const struct settings *settings);
void prefill_report(const struct bench_case *what, const struct settings *settings, const char *variant,
                    const struct prefill_result *result);
void prefill_report_end(const struct settings *settings);

#endif

/* OpenBLAS' sgemm. */
#include "tests/bench/openblas.h"
#include "tests/bench/prefill.h"

static void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                     int ldb, float beta, float *c, int ldc);

int prefill_blas_open(uint32_t threads, struct err *err)
{
    int r = openblas_open(err);

    if (r == 0)
        r = openblas_function("cblas_sgemm", (void **)&sgemm, err);
    if (r == 0)
        openblas_threads(threads);
    return r;
}

const char *prefill_blas_core(void)
{
    return sgemm ? openblas_core() : NULL;
}

void prefill_blas_multiply(const float *a, uint32_t rows, uint32_t columns, const float *x, uint32_t tokens, float *c)
{
    sgemm(OPENBLAS_ROW_MAJOR, OPENBLAS_NO_TRANSPOSE, OPENBLAS_TRANSPOSE, (int)tokens, (int)rows, (int)columns, 1.0f, x, (int)columns, a,
          (int)columns, 0.0f, c, (int)rows);
}

/* OpenBLAS' sgemm. OpenBLAS knows CPUs by their model numbers and takes a newer one for a very old one (SSE3): unless the user has set
 * OPENBLAS_CORETYPE, it is told here what the CPU can do, or the comparison would be worth nothing. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/bench/prefill.h"

#define LIBRARY "libopenblas.so.0"
#define ROW_MAJOR 101
#define NO_TRANSPOSE 111
#define TRANSPOSE 112

static struct {
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                  int ldb, float beta, float *c, int ldc);
    void (*set_num_threads)(int threads);
    char *(*get_corename)(void);
} blas;

static void name_core(void)
{
    if (kernels_tier_available(KERNELS_AVX512))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    else if (kernels_tier_available(KERNELS_AVX2))
        setenv("OPENBLAS_CORETYPE", "Haswell", 0);
}

int prefill_blas_open(uint32_t threads, struct err *err)
{
    void *library; /* stays open until the program ends */

    name_core();
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_set(err, -ENOTSUP, ERR_NO_SUCH, "%s (install libopenblas-dev)", dlerror());
    *(void **)&blas.set_num_threads = dlsym(library, "openblas_set_num_threads");
    *(void **)&blas.get_corename = dlsym(library, "openblas_get_corename");
    *(void **)&blas.sgemm = dlsym(library, "cblas_sgemm");
    if (!blas.sgemm || !blas.set_num_threads || !blas.get_corename) {
        blas.sgemm = NULL;
        return err_set(err, -ENOTSUP, ERR_NO_SUCH, "%s has no cblas_sgemm or none of OpenBLAS' own functions", LIBRARY);
    }
    blas.set_num_threads((int)threads);
    return 0;
}

const char *prefill_blas_core(void)
{
    return blas.sgemm ? blas.get_corename() : NULL;
}

void prefill_blas_multiply(const float *a, uint32_t rows, uint32_t columns, const float *x, uint32_t tokens, float *c)
{
    blas.sgemm(ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, (int)tokens, (int)rows, (int)columns, 1.0f, x, (int)columns, a, (int)columns, 0.0f, c,
               (int)rows);
}

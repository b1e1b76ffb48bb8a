/* OpenBLAS' sgemv on the weights as binary32, scales multiplied in. The library is looked for when the program runs: without it everything
 * else still works, and the program says what is missing. Its environment variables are the user's. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "proto/base/size.h"
#include "tests/bench/rival.h"

#define LIBRARY "libopenblas.so.0"
#define ROW_MAJOR 101
#define NO_TRANSPOSE 111

static struct {
    void (*sgemv)(int order, int transpose, int rows, int columns, float alpha, const float *a, int lda, const float *x, int x_step,
                  float beta, float *y, int y_step);
    void (*set_num_threads)(int threads);
    char *(*get_config)(void);
    char *(*get_corename)(void);
} blas;

static int check(struct err *err)
{
    void *library; /* stays open until the program ends */

    if (blas.sgemv)
        return 0;
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_set(err, -ENOTSUP, ERR_NO_SUCH, "%s (install libopenblas-dev)", dlerror());
    *(void **)&blas.set_num_threads = dlsym(library, "openblas_set_num_threads");
    *(void **)&blas.get_config = dlsym(library, "openblas_get_config");
    *(void **)&blas.get_corename = dlsym(library, "openblas_get_corename");
    *(void **)&blas.sgemv = dlsym(library, "cblas_sgemv");
    if (!blas.sgemv || !blas.set_num_threads || !blas.get_config || !blas.get_corename) {
        blas.sgemv = NULL;
        return err_set(err, -ENOTSUP, ERR_NO_SUCH, "%s has no cblas_sgemv or none of OpenBLAS' own functions", LIBRARY);
    }
    blas.set_num_threads(1); /* the bench's threads are the threads */
    return rival_needs_avx2(err);
}

const char *rival_openblas_config(void)
{
    return blas.sgemv ? blas.get_config() : NULL;
}

static const char *isa(void)
{
    return blas.sgemv ? blas.get_corename() : "?";
}

static size_t matrix_bytes(uint32_t rows, uint32_t columns)
{
    return size_round_up((size_t)rows * columns * sizeof(float), LAYOUT_ALIGN);
}

static void pack(const struct weights_matrix *matrix, uint8_t *at)
{
    float *values = (float *)(void *)at;

    for (uint32_t row = 0; row < matrix->rows; row++)
        for (uint32_t k = 0; k < matrix->columns; k++)
            *values++ = weights_code_value(matrix->codes[(size_t)row * matrix->columns + k]) * weights_scale(matrix, row, k);
}

static float prepare(float *v, const float *in, uint32_t columns)
{
    memcpy(v, in, columns * sizeof(float));
    return 1.0f;
}

static void gemv(const uint8_t *at, uint32_t rows, uint32_t columns, const float *v, float undo, float weight, float *y)
{
    blas.sgemv(ROW_MAJOR, NO_TRANSPOSE, (int)rows, (int)columns, weight * undo, (const float *)(const void *)at, (int)columns, v, 1, 1.0f,
               y, 1);
}

const struct rival rival_openblas = {
    .name = "openblas",
    .isa = isa,
    .check = check,
    .matrix_bytes = matrix_bytes,
    .pack = pack,
    .prepare = prepare,
    .gemv = gemv,
};

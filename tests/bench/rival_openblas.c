/* OpenBLAS' sgemv on the weights as binary32, scales multiplied in. */
#include <string.h>

#include "proto/base/size.h"
#include "tests/bench/openblas.h"
#include "tests/bench/rival.h"

static void (*sgemv)(int order, int transpose, int rows, int columns, float alpha, const float *a, int lda, const float *x, int x_step,
                     float beta, float *y, int y_step);

static int check(struct err *err)
{
    int r = openblas_open(err);

    if (r == 0 && !sgemv)
        r = openblas_function("cblas_sgemv", (void **)&sgemv, err);
    if (r < 0)
        return r;
    openblas_threads(1); /* the bench's threads are the threads */
    return rival_needs_avx2(err);
}

static const char *isa(void)
{
    return sgemv ? openblas_core() : "?";
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
    sgemv(OPENBLAS_ROW_MAJOR, OPENBLAS_NO_TRANSPOSE, (int)rows, (int)columns, weight * undo, (const float *)(const void *)at, (int)columns,
          v, 1, 1.0f, y, 1);
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

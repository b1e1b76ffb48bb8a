#include "tests/bench/weights.h"

#include <stdlib.h>

#include "kernels/kernels.h"
#include "proto/base/size.h"

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64 */

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Four binades of normal numbers, or one of the seven subnormals; either sign. */
static uint8_t random_code(uint64_t bits, uint64_t subnormal_below)
{
    uint8_t sign = (uint8_t)(bits & 0x80);
    uint32_t low = (uint32_t)(bits >> 8 & 0xff);

    if ((bits >> 32) < subnormal_below)
        return sign | (uint8_t)(1 + low % 7);
    return sign | (uint8_t)(0x20 + low % 0x20);
}

static int matrix_init(struct weights_matrix *matrix, uint32_t rows, uint32_t columns, double subnormals, uint64_t *state, struct err *err)
{
    size_t codes = (size_t)rows * columns, scales;

    *matrix = (struct weights_matrix){.rows = rows, .columns = columns};
    matrix->segments = (uint32_t)size_ceil_div(columns, LAYOUT_BLOCK);
    scales = (size_t)size_ceil_div(rows, LAYOUT_TILE_ROWS) * matrix->segments;
    matrix->codes = malloc(codes);
    matrix->scales = malloc(scales * sizeof(float));
    if (!matrix->codes || !matrix->scales)
        return err_no_memory(err, "a matrix as the checkpoint has it", codes + scales * sizeof(float));
    for (size_t i = 0; i < codes; i++)
        matrix->codes[i] = random_code(random_next(state), (uint64_t)(subnormals * 0x1p32));
    for (size_t i = 0; i < scales; i++)
        matrix->scales[i] = (float)(1 + random_next(state) % 1000) * 0x1p-17f;
    return 0;
}

int weights_init(struct weights *ret_weights, const struct bench_case *what, double subnormals, uint64_t seed, struct err *err)
{
    struct weights weights = {.count = what->kind == CASE_GEMV ? 1 : 3};
    int r = 0;

    for (uint32_t m = 0; m < weights.count && r == 0; m++)
        r = m == KERNELS_DOWN ? matrix_init(&weights.matrices[m], what->columns, what->rows, subnormals, &seed, err)
                              : matrix_init(&weights.matrices[m], what->rows, what->columns, subnormals, &seed, err);
    if (r < 0) {
        weights_release(&weights);
        return r;
    }
    *ret_weights = weights;
    return 0;
}

void weights_release(struct weights *weights)
{
    for (uint32_t m = 0; m < weights->count; m++) {
        free(weights->matrices[m].codes);
        free(weights->matrices[m].scales);
    }
    *weights = (struct weights){0};
}

float weights_code_value(uint8_t code)
{
    return kernels_fp9_to_f32(kernels_fp9_of_e4m3(code));
}

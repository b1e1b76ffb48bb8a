#include "tests/bench/vectors.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "proto/base/cleanup.h"
#include "proto/base/size.h"

static size_t padded(uint32_t count)
{
    return (size_t)size_round_up(count, LAYOUT_BLOCK) * sizeof(float);
}

static size_t scratch_bytes(const struct bench_case *what)
{
    struct kernels_layer layer = {.layout = &what->layout, .expert_count = 1};

    return (size_t)size_round_up(kernels_scratch_bytes(&layer), LAYOUT_ALIGN);
}

int vectors_init(struct vectors *ret_vectors, const struct bench_case *what, struct err *err)
{
    uint32_t inputs = case_inputs(what);
    size_t in = padded(inputs), out = padded(case_outputs(what)), neurons = padded(what->rows), scratch = scratch_bytes(what);
    size_t bytes = 3 * in + out + 3 * neurons + scratch;
    struct vectors vectors = {.memory = aligned_alloc(LAYOUT_ALIGN, bytes)};
    uint32_t state = 1;
    char *at = vectors.memory;

    if (!at)
        return err_no_memory(err, "a thread's vectors", bytes);
    memset(at, 0, bytes);
    vectors.x = (uint16_t *)(void *)at;
    vectors.floats = (float *)(void *)(at += in);
    vectors.v = (float *)(void *)(at += in);
    vectors.y = (float *)(void *)(at += in);
    vectors.gate = (float *)(void *)(at += out);
    vectors.up = (float *)(void *)(at += neurons);
    vectors.h = (float *)(void *)(at += neurons);
    vectors.scratch = at + neurons;
    for (uint32_t k = 0; k < inputs; k++) {
        state = state * 1664525 + 1013904223;
        vectors.x[k] = kernels_bf16_of_f32((float)(int32_t)state * 0x1p-31f);
        vectors.floats[k] = kernels_bf16_to_f32(vectors.x[k]);
    }
    for (uint32_t j = 0; j < CASE_TOP_K_MAX; j++)
        vectors.weights[j] = 0.0625f + 0.03125f * (float)(j % 5);
    *ret_vectors = vectors;
    return 0;
}

void vectors_release(struct vectors *vectors)
{
    free(vectors->memory);
    *vectors = (struct vectors){0};
}

void vectors_clear_output(struct vectors *vectors, const struct bench_case *what)
{
    memset(vectors->y, 0, case_outputs(what) * sizeof(float));
}

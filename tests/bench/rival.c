#include "tests/bench/rival.h"

#include <errno.h>
#include <string.h>

const struct rival *const rivals[] = {
#if defined(__x86_64__)
    &rival_seed,
    &rival_raw8,
    &rival_openblas,
#endif
    NULL,
};

int rival_needs_avx2(struct err *err)
{
    if (!kernels_tier_available(KERNELS_AVX2))
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST, "this CPU or its operating system lacks AVX2 or FMA");
    return 0;
}

size_t rival_item_bytes(const struct rival *rival, const struct bench_case *what)
{
    if (what->kind == CASE_GEMV)
        return rival->matrix_bytes(what->rows, what->columns);
    return 2 * rival->matrix_bytes(what->rows, what->columns) + rival->matrix_bytes(what->columns, what->rows);
}

void rival_pack(const struct rival *rival, const struct weights *weights, uint8_t *item)
{
    for (uint32_t m = 0; m < weights->count; m++) {
        const struct weights_matrix *matrix = &weights->matrices[m];

        rival->pack(matrix, item);
        item += rival->matrix_bytes(matrix->rows, matrix->columns);
    }
}

void rival_begin(const struct rival *rival, const struct bench_case *what, struct vectors *vectors)
{
    if (what->kind == CASE_GEMV)
        vectors->undo = rival->prepare(vectors->v, vectors->floats, what->columns);
}

/* h needs a place for its prepared form: that of `up`, which is done with. */
static void step_expert(const struct rival *rival, const struct bench_case *what, struct vectors *vectors, const uint8_t *at, float weight)
{
    uint32_t neurons = what->rows, hidden = what->columns;
    size_t bytes = rival->matrix_bytes(neurons, hidden);
    float undo;

    memset(vectors->gate, 0, neurons * sizeof(float));
    memset(vectors->up, 0, neurons * sizeof(float));
    rival->gemv(at, neurons, hidden, vectors->v, vectors->undo, 1.0f, vectors->gate);
    rival->gemv(at + bytes, neurons, hidden, vectors->v, vectors->undo, 1.0f, vectors->up);
    rival_silu(vectors->h, vectors->gate, vectors->up, neurons);
    undo = rival->prepare(vectors->up, vectors->h, neurons);
    rival->gemv(at + 2 * bytes, hidden, neurons, vectors->up, undo, weight, vectors->y);
}

void rival_step(const struct rival *rival, const struct bench_case *what, struct vectors *vectors, const uint8_t *items, const int32_t *ids)
{
    size_t bytes = rival_item_bytes(rival, what);

    if (what->kind == CASE_GEMV) {
        rival->gemv(items + (size_t)ids[0] * bytes, what->rows, what->columns, vectors->v, vectors->undo, 1.0f, vectors->y);
        return;
    }
    vectors->undo = rival->prepare(vectors->v, vectors->floats, what->columns);
    for (uint32_t j = 0; j < what->top_k; j++)
        step_expert(rival, what, vectors, items + (size_t)ids[j] * bytes, what->kind == CASE_MLP ? 1.0f : vectors->weights[j]);
}

#include "tests/bench/check.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/fpenv.h"
#include "proto/base/cleanup.h"

#define TOLERANCE 0x1p-15 /* of the result's root mean square */

static void run(const struct variant *variant, const struct bench_case *what, const struct pool *pool, const int32_t *ids,
                struct vectors *vectors)
{
    fpenv_saved saved = fpenv_enter();

    variant_begin(variant, what, vectors);
    variant_step(variant, what, vectors, pool->items, pool->count, ids);
    fpenv_leave(saved);
}

static int compare(const struct variant *variant, const struct bench_case *what, const float *y, const float *wanted, struct err *err)
{
    uint32_t outputs = case_outputs(what);
    double squares = 0.0, allowed;

    for (uint32_t row = 0; row < outputs; row++)
        squares += (double)wanted[row] * (double)wanted[row];
    allowed = TOLERANCE * sqrt(squares / outputs);
    for (uint32_t row = 0; row < outputs; row++) {
        bool same = variant->exact ? memcmp(&y[row], &wanted[row], sizeof(*y)) == 0 : fabs((double)y[row] - (double)wanted[row]) <= allowed;

        if (!same)
            return err_set(err, -EBADMSG, ERR_INTERNAL, "%s computes %s wrong: row %u is %a, the reference says %a", variant->name,
                           what->name, row, (double)y[row], (double)wanted[row]);
    }
    return 0;
}

static void spoil(float *last)
{
    *last += *last * 0x1p-10f;
}

int check_variant(const struct variant *variant, const struct bench_case *what, const struct pool *pool, const struct variant *reference,
                  const struct pool *ours, const struct settings *settings, struct vectors *vectors, struct err *err)
{
    uint32_t outputs = case_outputs(what), kinds = pool->count < ours->count ? pool->count : ours->count;
    _cleanup_(freep) float *wanted = malloc(outputs * sizeof(*wanted));
    int32_t ids[CASE_TOP_K_MAX];
    int r = 0;

    if (!wanted)
        return err_no_memory(err, "a result to compare with", outputs * sizeof(*wanted));
    if (kinds > POOL_DISTINCT)
        kinds = POOL_DISTINCT;
    for (uint32_t first = 0; first < kinds && r == 0; first += what->top_k) {
        for (uint32_t j = 0; j < what->top_k; j++)
            ids[j] = (int32_t)(first + j);
        run(reference, what, ours, ids, vectors);
        memcpy(wanted, vectors->y, outputs * sizeof(*wanted));
        run(variant, what, pool, ids, vectors);
        if (settings->corrupt && strcmp(settings->corrupt, variant->name) == 0)
            spoil(&vectors->y[outputs - 1]);
        r = compare(variant, what, vectors->y, wanted, err);
    }
    return r;
}

#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

/* The reference is slow and has no claim: it is timed when it is what the programs use, or by name. */
int lineup_choose(struct bench *bench, const struct variant *all, size_t count, struct err *err)
{
    const char *list = bench->settings->variants;

    for (size_t i = 0; i < count; i++) {
        struct err why;
        int r;

        if (list ? !variant_named(list, all[i].name) : i == 0 && !variant_chosen(&all[i]))
            continue;
        r = variant_check(&all[i], &why);
        if (r < 0 && list)
            return err_set(err, r, why.name, "variant %s: %s", all[i].name, why.message);
        if (r < 0)
            fprintf(stderr, "fp9-bench: %s is left out: %s\n", all[i].name, why.message);
        else
            bench->series[bench->series_count++].variant = all[i];
    }
    return 0;
}

static struct pool *pool_of(struct bench *bench, const struct variant *variant)
{
    for (size_t p = 0; p < bench->pool_count; p++)
        if (bench->pools[p].variant->rival == variant->rival)
            return &bench->pools[p];
    return NULL;
}

int lineup_pools(struct bench *bench, const struct variant *reference, struct err *err)
{
    size_t wanted = 1, limit, held = 0;
    int r;

    for (size_t s = 0; s < bench->series_count; s++)
        wanted += bench->series[s].variant.rival != NULL;
    for (size_t p = 0; p < VARIANTS_MAX; p++)
        held += bench->pools[p].memory.bytes;
    limit = (memory_available() + held) / 4 * 3 / wanted;
    r = pool_init(&bench->pools[0], bench->what, bench->settings, reference, limit, err);
    if (r < 0)
        return r;
    bench->pool_count = 1;
    for (size_t s = 0; s < bench->series_count; s++) {
        struct series *series = &bench->series[s];

        if (!pool_of(bench, &series->variant)) {
            r = pool_init(&bench->pools[bench->pool_count], bench->what, bench->settings, &series->variant, limit, err);
            if (r < 0)
                return r;
            bench->pool_count++;
        }
        series->pool = pool_of(bench, &series->variant);
    }
    return pools_fill(bench->pools, bench->pool_count, bench->what, bench->settings, err);
}

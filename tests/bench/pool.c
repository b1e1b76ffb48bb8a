#include "tests/bench/pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"

#define COLD_BYTES ((size_t)1 << 30)
#define COLD_CACHES 4 /* times the last cache */

static size_t wanted_bytes(const struct settings *settings, size_t least)
{
    size_t want = COLD_CACHES * memory_last_cache();

    if (!settings->cold)
        return least;
    if (settings->pool_bytes)
        want = (size_t)settings->pool_bytes;
    else if (want < COLD_BYTES)
        want = COLD_BYTES;
    return want < least ? least : want;
}

static void shuffle(uint32_t *order, uint32_t count)
{
    uint64_t state = 1;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t j;

        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        j = (uint32_t)((state >> 33) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
}

int pool_init(struct pool *pool, const struct bench_case *what, const struct settings *settings, const struct variant *variant,
              size_t limit, struct err *err)
{
    size_t item_bytes = variant_item_bytes(variant, what);
    size_t step = (size_t)what->top_k * settings->threads * item_bytes; /* of all threads */
    size_t want = wanted_bytes(settings, step);
    char needs[32], has[32];
    int r;

    if (step > limit)
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "%s as %s keeps it with %u threads needs %s, its share of the memory there is is %s",
                       what->name, variant->name, settings->threads, size_format(step, needs, sizeof(needs)),
                       size_format(limit, has, sizeof(has)));
    if (want > limit && settings->cold && settings->pool_bytes)
        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "--pool %s: its share of the memory there is for %s is %s",
                       size_format(want, needs, sizeof(needs)), variant->name, size_format(limit, has, sizeof(has)));
    if (want > limit) {
        fprintf(stderr, "fp9-bench: memory is short: the cold pool of %s has %s instead of %s, caches may help\n", variant->name,
                size_format(limit, has, sizeof(has)), size_format(want, needs, sizeof(needs)));
        want = limit / step * step;
    }
    pool->variant = variant;
    pool->item_bytes = item_bytes;
    pool->part = (uint32_t)size_ceil_div(want, step) * what->top_k;
    pool->count = pool->part * settings->threads;
    pool->order = calloc(pool->part, sizeof(*pool->order));
    pool->cursors = calloc(settings->threads, sizeof(*pool->cursors));
    if (!pool->order || !pool->cursors)
        r = err_no_memory(err, "the order of a pool", pool->part * sizeof(*pool->order));
    else
        r = memory_map(&pool->memory, settings->memory, pool_bytes(pool), err);
    if (r < 0) {
        pool_release(pool);
        return r;
    }
    shuffle(pool->order, pool->part);
    pool->items = pool->memory.at;
    return 0;
}

void pool_release(struct pool *pool)
{
    free(pool->order);
    free(pool->cursors);
    *pool = (struct pool){.memory = pool->memory};
}

static int pack(struct pool *pool, const struct bench_case *what, const struct weights *weights, uint32_t i, struct err *err)
{
    uint8_t *item = pool->items + i * pool->item_bytes;

    memset(item, 0, pool->item_bytes);
    return variant_pack(pool->variant, what, weights, item, err);
}

int pools_fill(struct pool *pools, size_t count, const struct bench_case *what, const struct settings *settings, struct err *err)
{
    for (uint32_t seed = 0; seed < POOL_DISTINCT; seed++) {
        struct weights weights;
        int r = weights_init(&weights, what, settings->subnormals, seed, err);

        if (r < 0)
            return r;
        for (size_t p = 0; p < count && r == 0; p++)
            if (seed < pools[p].count)
                r = pack(&pools[p], what, &weights, seed, err);
        weights_release(&weights);
        if (r < 0)
            return r;
    }
    for (size_t p = 0; p < count; p++)
        for (uint32_t i = POOL_DISTINCT; i < pools[p].count; i++)
            memcpy(pools[p].items + i * pools[p].item_bytes, pools[p].items + i % POOL_DISTINCT * pools[p].item_bytes, pools[p].item_bytes);
    return 0;
}

void pool_next(const struct pool *pool, uint32_t *cursor, uint32_t top_k, int32_t ids[CASE_TOP_K_MAX])
{
    for (uint32_t j = 0; j < top_k; j++) {
        int32_t id = (int32_t)pool->order[*cursor + j];
        uint32_t at = j;

        for (; at > 0 && ids[at - 1] > id; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
    *cursor = (*cursor + top_k) % pool->part;
}

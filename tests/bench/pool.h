/* Many items in memory, and the order in which threads come by them.
 *
 * Each thread has a part of its own. It walks round its part in a random order, so that nothing is read twice before all of it was read
 * once, and what lies behind an item in memory is not what comes next: a layer's experts are as far apart.
 */
#ifndef FP9_TESTS_BENCH_POOL_H
#define FP9_TESTS_BENCH_POOL_H

#include "tests/bench/settings.h"
#include "tests/bench/variant.h"

#define POOL_DISTINCT 4 /* item i of every pool has the weights of seed i % 4: the place in memory is what makes the time */

struct pool {
    const struct variant *variant; /* one of those whose items these are */
    struct memory memory;          /* outlives the pool: the next case uses it again */
    uint8_t *items;                /* count * item_bytes */
    size_t item_bytes;
    uint32_t count;    /* threads * part */
    uint32_t part;     /* items of a thread, a multiple of top_k */
    uint32_t *order;   /* [part], owned */
    uint32_t *cursors; /* [threads], owned; goes on from run to run: what comes next is what was not touched for longest */
};

/* Room for the pool's items, not filled yet; *pool is zero but for its memory. It has a step for each thread at least; cold: what settings
 * say, refused beyond `limit` bytes; or by default `limit` bytes if that is less (then it says so on stderr). */
int pool_init(struct pool *pool, const struct bench_case *what, const struct settings *settings, const struct variant *variant,
              size_t limit, struct err *err);
void pool_release(struct pool *pool); /* all but its memory */

static inline size_t pool_bytes(const struct pool *pool)
{
    return pool->count * pool->item_bytes;
}

/* Fills pools of one case with the same weights. */
int pools_fill(struct pool *pools, size_t count, const struct bench_case *what, const struct settings *settings, struct err *err);

/* The items of a thread's next step within its part, ascending; moves its cursor. */
void pool_next(const struct pool *pool, uint32_t *cursor, uint32_t top_k, int32_t ids[CASE_TOP_K_MAX]);

static inline const uint8_t *pool_part(const struct pool *pool, uint32_t thread)
{
    return pool->items + (size_t)thread * pool->part * pool->item_bytes;
}

#endif

#include "daemon/duck/fill_pool.h"

#include <stdlib.h>

#include "daemon/duck/draft.h"

#define POOL_IDLE_BYTES (2u * WIRE_PREPARE_WINDOW)

static void work_free(struct fill_work *work)
{
    free(work->memory);
    free(work);
}

void fill_pool_release(struct fill_pool *pool)
{
    while (pool->idle) {
        struct fill_work *next = pool->idle->next;
        work_free(pool->idle);
        pool->idle = next;
    }
    pool->idle_bytes = 0;
    free(STEAL(pool->draft_memory));
    pool->draft_room = 0;
}

struct fill_work *fill_pool_take(struct fill_pool *pool, size_t room)
{
    struct fill_work *work = room ? pool->idle : NULL;
    if (work) {
        pool->idle = work->next;
        pool->idle_bytes -= work->room;
    } else {
        work = calloc(1, sizeof *work);
        if (!work)
            return NULL;
    }
    if (work->room < room) {
        free(work->memory);
        work->memory = malloc(room);
        work->room = work->memory ? room : 0;
        if (!work->memory) {
            work_free(work);
            return NULL;
        }
    }
    return work;
}

void fill_pool_give(struct fill_pool *pool, struct fill_work *work)
{
    if (!work->room || pool->idle_bytes + work->room > POOL_IDLE_BYTES) {
        work_free(work);
        return;
    }
    work->next = pool->idle;
    pool->idle = work;
    pool->idle_bytes += work->room;
}

struct draft *fill_pool_draft(struct fill_pool *pool, struct wbuf *wbuf, uint32_t slot)
{
    return draft_new(wbuf, slot, STEAL(pool->draft_memory), pool->draft_room);
}

void fill_pool_undraft(struct fill_pool *pool, struct draft *draft)
{
    uint64_t room;
    uint8_t *memory = draft ? draft_unref(draft, &room) : NULL;
    if (!memory)
        return;
    free(pool->draft_memory);
    pool->draft_memory = memory;
    pool->draft_room = room;
}

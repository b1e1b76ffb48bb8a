#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"
#include "tests/bench/bench.h"

#define COLD_BYTES ((size_t)1 << 30)
#define COLD_CACHES 4 /* times the last cache */

static size_t memory_available(void)
{
    _cleanup_(fclosep) FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib;

    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            return (size_t)kib << 10;
    return COLD_BYTES;
}

/* Weights of a usual spread; every item is a copy, for only the place in memory matters to the time. */
static int pack_item(const struct bench_case *what, uint8_t *item, struct err *err)
{
    const struct layout_mlp *layout = &what->layout;
    size_t codes_bytes = (size_t)layout->hidden * layout->neurons;
    size_t tiles = (layout->hidden > layout->neurons ? layout->hidden : layout->neurons) / 16 + 1;
    size_t scales_bytes = tiles * (layout->gate_up.segments > layout->down.segments ? layout->gate_up.segments : layout->down.segments);
    _cleanup_(freep) uint8_t *codes = malloc(codes_bytes);
    _cleanup_(freep) float *scales = malloc(scales_bytes * sizeof(float));
    _cleanup_(freep) uint8_t *expert = aligned_alloc(64, (size_t)layout->expert_bytes);
    uint64_t state = 1;
    int r = 0;

    if (!codes || !scales || !expert)
        return err_no_memory(err, "one expert", (size_t)layout->expert_bytes);
    for (size_t i = 0; i < codes_bytes; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        codes[i] = (uint8_t)((state >> 56 & 0x80) | (0x20 + (state >> 40) % 0x20));
    }
    for (size_t i = 0; i < scales_bytes; i++)
        scales[i] = 0x1p-8f;
    kernels_pack_begin(layout, expert);
    for (int m = what->kind == BENCH_GEMV ? KERNELS_DOWN : KERNELS_GATE; m <= KERNELS_DOWN && r == 0; m++) {
        struct kernels_rows rows = {
            .matrix = (enum kernels_matrix)m,
            .rows = m == KERNELS_DOWN ? layout->hidden : layout->neurons,
            .codes = codes,
            .scales = scales,
        };

        r = kernels_pack(layout, expert, &rows, err);
    }
    memcpy(item, expert + layout->expert_bytes - what->item_bytes, what->item_bytes);
    return r;
}

static size_t last_cache(void)
{
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);

    return bytes > 0 ? (size_t)bytes : 0;
}

int bench_pool_init(struct bench_pool *ret_pool, const struct bench_case *what, const struct bench_settings *settings, struct err *err)
{
    size_t least = (size_t)what->top_k * settings->threads * what->item_bytes; /* a step for each thread */
    size_t want = last_cache() * COLD_CACHES, limit = memory_available() / 2;
    struct bench_pool pool = {0};
    void *memory;
    int r;

    if (want < COLD_BYTES)
        want = COLD_BYTES;
    if (!settings->cold || want < least)
        want = least;
    if (least > limit) {
        char needs[32], has[32];

        return err_set(err, -ENOMEM, ERR_NO_MEMORY, "%s with %u threads needs %s, half of the memory available is %s", what->name,
                       settings->threads, size_format(least, needs, sizeof(needs)), size_format(limit, has, sizeof(has)));
    }
    if (want > limit) {
        char wanted[32], has[32];

        want = limit;
        fprintf(stderr, "fp9-bench: memory is short: the cold pool has %s instead of %s, caches may help\n",
                size_format(want, has, sizeof(has)), size_format(COLD_BYTES, wanted, sizeof(wanted)));
    }
    /* The same number for every thread, rounded up to whole steps unless memory is what limits it. */
    pool.count = (uint32_t)(want < limit ? size_round_up(size_ceil_div(want, what->item_bytes), (size_t)what->top_k * settings->threads)
                                         : want / what->item_bytes / (what->top_k * settings->threads) * (what->top_k * settings->threads));
    pool.bytes = pool.count * what->item_bytes;
    memory = mmap(NULL, pool.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return err_errno(err, "mapping a pool of %zu bytes", pool.bytes);
    madvise(memory, pool.bytes, MADV_HUGEPAGE); /* a kernel without them serves small ones */
    pool.items = memory;

    r = pack_item(what, pool.items, err);
    if (r < 0) {
        bench_pool_release(&pool);
        return r;
    }
    for (uint32_t i = 1; i < pool.count; i++)
        memcpy(pool.items + i * what->item_bytes, pool.items, what->item_bytes);
    *ret_pool = pool;
    return 0;
}

void bench_pool_release(struct bench_pool *pool)
{
    if (pool->items)
        munmap(pool->items, pool->bytes);
    *pool = (struct bench_pool){0};
}

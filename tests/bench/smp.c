#include "tests/bench/smp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/phases.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "tests/bench/pool.h"
#include "tests/bench/reader.h"
#include "tests/bench/smp_slots.h"
#include "tests/bench/stats.h"
#include "tests/bench/team.h"

#define COLD_NS (40 * CLOCK_NS_PER_MS) /* of one run */
#define HOT_NS (15 * CLOCK_NS_PER_MS)
#define READERS_KEPT 2

enum kind {
    READ,
    ROWS,
    SLOTS,
};

/* What is run: a kind with a number of threads, and what a round gave. */
struct way {
    enum kind kind;
    const struct reader *reader;
    uint32_t threads;
    uint64_t steps;
    double rate; /* steps per second, of the last run */
    double imbalance;
};

#define WAYS_MAX (2 * READERS_MAX + 4)

struct smp {
    const struct bench_case *what;
    const struct settings *settings;
    const struct kernels_layer *layer; /* all of the pool */
    uint32_t experts;
    struct pool pool; /* all of it one thread's part */
    struct vectors vectors;
    struct team *team;
    uint8_t *scratch; /* owned; 64-byte aligned */
    float *y;         /* in scratch, as all below */
    struct phases phases;
    struct smp_slots slots;
    void *phases_scratch;
    /* of the step under way: member 0 writes, a barrier before and after */
    int32_t ids[CASE_TOP_K_MAX];
    struct smp_barrier barrier;
    uint64_t *busy;  /* [threads * BUSY_STRIDE] ns */
    uint64_t sink;   /* atomic */
    struct way *way; /* the one that runs */
};

#define BUSY_STRIDE 16

/* The experts of the next step, ascending: those that were not touched for longest, or when hot always the first ones. */
static void next(const struct smp *smp, uint32_t *cursor, int32_t ids[CASE_TOP_K_MAX])
{
    for (uint32_t j = 0; j < smp->experts; j++) {
        int32_t id = (int32_t)smp->pool.order[(*cursor + j) % smp->pool.part];
        uint32_t at = j;

        for (; at > 0 && ids[at - 1] > id; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
    if (smp->settings->cold)
        *cursor = (*cursor + smp->experts) % smp->pool.part;
}

/* ---- steps ------------------------------------------------------------------------------------- */

static void read_step(struct smp *smp, uint32_t member, const int32_t *ids)
{
    const struct way *way = smp->way;
    size_t lines = smp->pool.item_bytes / 64, begin = lines * member / way->threads, end = lines * (member + 1) / way->threads;
    uint64_t sum = 0;

    for (uint32_t j = 0; j < smp->experts; j++)
        sum ^= way->reader->read(smp->pool.items + (size_t)ids[j] * smp->pool.item_bytes + 64 * begin, 64 * (end - begin));
    __atomic_xor_fetch(&smp->sink, sum, __ATOMIC_RELAXED);
}

static void begin_step(struct smp *smp)
{
    struct phases_job job = {
        .layer = smp->layer,
        .tokens = 1,
        .top_k = smp->experts,
        .x = smp->vectors.x,
        .ids = smp->ids,
        .weights = smp->vectors.weights,
        .partial = smp->y,
    };

    if (smp->way->kind == ROWS)
        phases_begin(&smp->phases, &job, smp->way->threads, smp->phases_scratch);
    else
        smp_slots_begin(&smp->slots, smp->vectors.x);
}

static void compute_step(struct smp *smp, uint32_t member)
{
    const struct way *way = smp->way;
    uint64_t busy = 0, from = clock_now_ns();
    uint32_t phases;

    if (member == 0)
        begin_step(smp);
    busy += clock_now_ns() - from;
    smp_barrier(&smp->barrier, way->threads);
    phases = way->kind == ROWS ? phases_count(&smp->phases) : SMP_SLOTS_PHASES;
    for (uint32_t phase = 0; phase < phases; phase++) {
        from = clock_now_ns();
        if (way->kind == ROWS)
            phases_run(&smp->phases, phase, member, NULL, NULL);
        else
            smp_slots_run(&smp->slots, smp->pool.items, smp->ids, smp->vectors.weights, smp->experts, phase, member, way->threads, smp->y);
        busy += clock_now_ns() - from;
        smp_barrier(&smp->barrier, way->threads);
    }
    smp->busy[member * BUSY_STRIDE] += busy;
}

static void work(void *data, uint32_t member)
{
    struct smp *smp = data;
    const struct way *way = smp->way;
    uint32_t cursor = smp->pool.cursors[0];
    int32_t ids[CASE_TOP_K_MAX];

    if (member >= way->threads)
        return;
    for (uint64_t step = 0; step < way->steps; step++) {
        next(smp, &cursor, ids);
        if (way->kind == READ) {
            read_step(smp, member, ids);
            continue;
        }
        if (member == 0)
            memcpy(smp->ids, ids, sizeof(ids));
        compute_step(smp, member);
    }
    smp_barrier(&smp->barrier, way->threads);
    if (member == 0)
        smp->pool.cursors[0] = cursor;
}

static void run_way(struct smp *smp, struct way *way)
{
    uint32_t threads = smp->settings->threads;
    uint64_t longest = 0, sum = 0;
    struct team_time time;

    smp->way = way;
    memset(smp->busy, 0, threads * BUSY_STRIDE * sizeof(*smp->busy));
    time = team_run(smp->team, work, smp);
    for (uint32_t i = 0; i < way->threads; i++) {
        uint64_t busy = smp->busy[i * BUSY_STRIDE];

        sum += busy;
        longest = busy > longest ? busy : longest;
    }
    way->rate = (double)way->steps * 1e9 / (double)time.wall_ns;
    way->imbalance = sum ? (double)longest * way->threads / (double)sum : 1.0;
}

/* As many steps as fill a run. */
static void calibrate(struct smp *smp, struct way *way)
{
    uint64_t ns = smp->settings->cold ? COLD_NS : HOT_NS;

    for (way->steps = 1;; way->steps *= 2) {
        run_way(smp, way);
        if ((double)way->steps / way->rate * 1e9 > (double)ns / 4)
            break;
    }
    way->steps = (uint64_t)(way->rate * (double)ns / 1e9) + 1;
}

/* ---- a number of experts ----------------------------------------------------------------------- */

/* Every way gives the bits of one core. */
static int check(struct smp *smp, struct way *ways, size_t count, struct err *err)
{
    uint32_t hidden = smp->what->layout.hidden;
    _cleanup_(freep) float *want = malloc(hidden * sizeof(*want));
    int32_t ids[CASE_TOP_K_MAX];
    uint32_t cursor;

    if (!want)
        return err_no_memory(err, "a result to compare with", hidden * sizeof(*want));
    for (size_t i = 0; i < count; i++) {
        if (ways[i].kind == READ)
            continue;
        cursor = smp->pool.cursors[0];
        next(smp, &cursor, ids);
        kernels_moe(smp->layer, smp->vectors.x, ids, smp->vectors.weights, 1, smp->experts, want, smp->vectors.scratch);
        memset(smp->y, 0xff, hidden * sizeof(*want));
        ways[i].steps = 1;
        run_way(smp, &ways[i]);
        for (uint32_t row = 0; row < hidden; row++)
            if (memcmp(&smp->y[row], &want[row], sizeof(*want)) != 0)
                return err_set(err, -EBADMSG, ERR_INTERNAL, "%s: %s with %u threads and %u experts: row %u is %a, one core has %a",
                               smp->what->name, ways[i].kind == ROWS ? "rows" : "slots", ways[i].threads, smp->experts, row,
                               (double)smp->y[row], (double)want[row]);
    }
    return 0;
}

/* The fastest readers with so many threads; returns how many. */
static size_t add_readers(struct smp *smp, const struct reader *readers, size_t reader_count, uint32_t threads, struct way *ways)
{
    size_t kept = 0;

    for (size_t i = 0; i < reader_count; i++) {
        struct way way = {.kind = READ, .reader = &readers[i], .threads = threads};
        size_t at = kept < READERS_KEPT ? kept++ : READERS_KEPT;

        calibrate(smp, &way);
        for (; at > 0 && ways[at - 1].rate < way.rate; at--)
            if (at < READERS_KEPT)
                ways[at] = ways[at - 1];
        if (at < READERS_KEPT)
            ways[at] = way;
    }
    return kept;
}

static double best_read(const struct way *ways, size_t count, uint32_t threads)
{
    double best = 0.0;

    for (size_t i = 0; i < count; i++)
        if (ways[i].kind == READ && ways[i].threads == threads && ways[i].rate > best)
            best = ways[i].rate;
    return best;
}

struct rounds {
    double rate[SETTINGS_ROUNDS_MAX], read[SETTINGS_ROUNDS_MAX], of_limit[SETTINGS_ROUNDS_MAX], speedup[SETTINGS_ROUNDS_MAX],
        read_speedup[SETTINGS_ROUNDS_MAX], of_read_speedup[SETTINGS_ROUNDS_MAX], imbalance[SETTINGS_ROUNDS_MAX], slots[SETTINGS_ROUNDS_MAX];
};

static void measure_round(struct smp *smp, struct way *ways, size_t count, uint32_t round, struct rounds *ret)
{
    double params = smp->what->step_params / smp->what->top_k * smp->experts, bytes = (double)smp->pool.item_bytes * smp->experts;
    uint32_t threads = smp->settings->threads;
    double read, all;

    for (size_t i = 0; i < count; i++)
        run_way(smp, &ways[(i + round) % count]);
    read = best_read(ways, count, threads);
    all = ways[1].rate;
    ret->rate[round] = all * params / 1e9;
    ret->read[round] = read * bytes / 1e9;
    ret->of_limit[round] = all * params * 1.125 / (read * bytes);
    ret->speedup[round] = all / ways[0].rate;
    ret->read_speedup[round] = read / best_read(ways, count, 1);
    ret->of_read_speedup[round] = ret->speedup[round] / ret->read_speedup[round];
    ret->imbalance[round] = ways[1].imbalance;
    ret->slots[round] = ways[2].rate / all;
}

static int measure(struct smp *smp, struct smp_result *ret_result, struct err *err)
{
    struct reader readers[READERS_MAX];
    struct way ways[WAYS_MAX] = {
        {.kind = ROWS, .threads = 1},
        {.kind = ROWS, .threads = smp->settings->threads},
        {.kind = SLOTS, .threads = smp->settings->threads},
    };
    size_t reader_count = readers_all(readers), count = 3;
    uint32_t n = smp->settings->rounds;
    _cleanup_(freep) struct rounds *rounds = calloc(1, sizeof(*rounds));
    int r;

    if (!rounds)
        return err_no_memory(err, "the figures of a case", sizeof(*rounds));
    r = check(smp, ways, count, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < 3; i++)
        calibrate(smp, &ways[i]);
    count += add_readers(smp, readers, reader_count, smp->settings->threads, ways + count);
    if (smp->settings->threads > 1)
        count += add_readers(smp, readers, reader_count, 1, ways + count);
    for (uint32_t round = 0; round < n; round++)
        measure_round(smp, ways, count, round, rounds);
    *ret_result = (struct smp_result){
        .experts = smp->experts,
        .spread = stats_spread(rounds->of_limit, n),
        .gparam_s = stats_median(rounds->rate, n),
        .read_gb_s = stats_median(rounds->read, n),
        .of_limit = stats_median(rounds->of_limit, n),
        .speedup = stats_median(rounds->speedup, n),
        .read_speedup = stats_median(rounds->read_speedup, n),
        .of_read_speedup = stats_median(rounds->of_read_speedup, n),
        .imbalance = stats_median(rounds->imbalance, n),
        .slots_over_rows = stats_median(rounds->slots, n),
        .pinned = team_pinned(smp->team),
    };
    return 0;
}

/* ---- a case ------------------------------------------------------------------------------------ */

/* Fills *layer with the pool's experts, too: the scratch has tables of all of them. */
static int prepare(struct smp *smp, struct kernels_layer *layer, const struct variant *variant, struct err *err)
{
    const struct layout_mlp *layout = &smp->what->layout;
    struct settings alone = *smp->settings;
    uint32_t threads = smp->settings->threads, experts = smp->what->top_k;
    size_t slots = smp_slots_bytes(layout, experts, threads), y = size_round_up(layout->hidden * sizeof(float), LAYOUT_ALIGN);
    size_t busy = size_round_up(threads * BUSY_STRIDE * sizeof(*smp->busy), LAYOUT_ALIGN), phases;
    int r;

    alone.threads = 1;
    r = pool_init(&smp->pool, smp->what, &alone, variant, memory_available() / 4 * 3, err);
    if (r == 0)
        r = pools_fill(&smp->pool, 1, smp->what, &alone, err);
    if (r == 0)
        r = vectors_init(&smp->vectors, smp->what, err);
    if (r == 0)
        r = team_new(&smp->team, threads, err);
    if (r < 0)
        return r;
    *layer = (struct kernels_layer){.layout = layout, .experts = smp->pool.items, .expert_count = smp->pool.count};
    smp->layer = layer;
    phases = size_round_up(phases_scratch_bytes(layer, 1, experts, threads), LAYOUT_ALIGN);
    smp->scratch = aligned_alloc(LAYOUT_ALIGN, phases + slots + y + busy);
    if (!smp->scratch)
        return err_no_memory(err, "scratch", phases + slots + y + busy);
    memset(smp->scratch, 0, phases + slots + y + busy);
    smp->phases_scratch = smp->scratch;
    smp_slots_init(&smp->slots, layout, threads, smp->scratch + phases);
    smp->y = (float *)(void *)(smp->scratch + phases + slots);
    smp->busy = (uint64_t *)(void *)(smp->scratch + phases + slots + y);
    return 0;
}

static void release(struct smp *smp)
{
    team_free(smp->team);
    free(smp->scratch);
    vectors_release(&smp->vectors);
    pool_release(&smp->pool);
    memory_unmap(&smp->pool.memory);
}

/* What the programs use. */
static struct variant chosen_variant(void)
{
    struct variant all[VARIANTS_MAX];
    size_t count = variants_all(all), i = 0;

    while (i + 1 < count && !variant_chosen(&all[i]))
        i++;
    return all[i];
}

int smp_case(const struct bench_case *what, const struct options *options, struct err *err)
{
    static const uint32_t usual[] = {1, 2, 3, 5, 8};
    struct bench_case most = *what;
    struct variant variant = chosen_variant();
    struct smp smp = {.what = &most, .settings = &options->settings};
    struct kernels_layer layer;
    int r;

    most.top_k = options->experts ? options->experts : usual[ARRAY_LENGTH(usual) - 1];
    most.step_params = what->step_params / what->top_k * most.top_k;
    r = prepare(&smp, &layer, &variant, err);
    for (size_t i = 0; i < (options->experts ? 1 : ARRAY_LENGTH(usual)) && r == 0; i++) {
        struct smp_result result;

        smp.experts = options->experts ? options->experts : usual[i];
        smp.pool.cursors[0] = 0;
        r = measure(&smp, &result, err);
        if (r == 0)
            smp_report(what, &options->settings, &result);
    }
    release(&smp);
    return r;
}

#include "tests/bench/measure.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "tests/bench/bench.h"
#include "tests/bench/check.h"

#define COLD_NS (50 * CLOCK_NS_PER_MS) /* of one run */
#define HOT_NS (15 * CLOCK_NS_PER_MS)
/* The fastest readers of the warm-up go on, three where limits are taken from: the others would only take time. */
#define READERS_KEPT 3
#define READERS_KEPT_RIVAL 1

static uint64_t run_ns(const struct settings *settings)
{
    return settings->cold ? COLD_NS : HOT_NS;
}

static struct run run_of(struct bench *bench, struct pool *pool)
{
    return (struct run){.what = bench->what, .pool = pool, .vectors = bench->vectors, .threads = bench->settings->threads};
}

/* Finds out how many steps fill a run, and which readers are worth going on with. */
static void warm_up_readers(struct bench *bench, struct reading *reading, struct pool *pool)
{
    size_t keep = pool == bench->pools ? READERS_KEPT : READERS_KEPT_RIVAL;
    size_t count = readers_all(bench->readers);

    for (size_t i = 0; i < count; i++) {
        struct run run = run_of(bench, pool);
        size_t at = reading->count;

        run.reader = &bench->readers[i];
        run.steps = run_calibrate(&run, bench->team, run_ns(bench->settings));
        for (; at > 0 && reading->runs[at - 1].steps < run.steps; at--)
            if (at < keep)
                reading->runs[at] = reading->runs[at - 1];
        if (at < keep)
            reading->runs[at] = run;
        if (reading->count < keep)
            reading->count++;
    }
}

static void warm_up(struct bench *bench)
{
    for (size_t p = 0; p < bench->pool_count; p++)
        warm_up_readers(bench, &bench->readings[p], &bench->pools[p]);
    for (size_t s = 0; s < bench->series_count; s++) {
        struct series *series = &bench->series[s];

        series->run = run_of(bench, series->pool);
        series->run.variant = &series->variant;
        series->run.steps = run_calibrate(&series->run, bench->team, run_ns(bench->settings));
    }
}

static void read_pool(struct bench *bench, size_t p, uint32_t round)
{
    struct reading *reading = &bench->readings[p];
    double step_bytes = (double)bench->pools[p].item_bytes * bench->what->top_k;
    size_t winner = 0;

    reading->best[round] = 0.0;
    for (size_t i = 0; i < reading->count; i++) {
        double rate = run_measure(&reading->runs[i], bench->team).steps_per_s * step_bytes;

        if (rate > reading->best[round]) {
            reading->best[round] = rate;
            winner = i;
        }
    }
    reading->wins[winner]++;
}

static void measure_round(struct bench *bench, uint32_t round)
{
    size_t things = bench->pool_count + bench->series_count;

    for (size_t i = 0; i < things; i++) {
        size_t at = (i + round) % things;

        if (at < bench->pool_count) {
            read_pool(bench, at, round);
        } else {
            struct series *series = &bench->series[at - bench->pool_count];
            struct run_rate rate = run_measure(&series->run, bench->team);

            series->rate[round] = rate.steps_per_s * bench->what->step_params;
            series->imbalance[round] = rate.imbalance;
        }
    }
}

static int measure(struct bench *bench, struct result *ret_results, struct err *err)
{
    struct variant all[VARIANTS_MAX];
    size_t count = variants_all(all);
    int r = lineup_choose(bench, all, count, err);

    if (r == 0)
        r = lineup_pools(bench, &all[0], err);
    for (uint32_t i = 0; i < bench->settings->threads && r == 0; i++)
        r = vectors_init(&bench->vectors[i], bench->what, err);
    for (size_t s = 0; s < bench->series_count && r == 0; s++)
        r = check_variant(&bench->series[s].variant, bench->what, bench->series[s].pool, &all[0], &bench->pools[0], bench->settings,
                          bench->vectors, err);
    if (r == 0)
        r = team_new(&bench->team, bench->settings->threads, err);
    if (r < 0)
        return r;
    warm_up(bench);
    for (uint32_t round = 0; round < bench->settings->rounds; round++)
        measure_round(bench, round);
    for (size_t s = 0; s < bench->series_count; s++)
        ret_results[s] = summary_of(bench, &bench->series[s]);
    return (int)bench->series_count;
}

/* Everything of the case, but not the memory. */
static void forget(struct bench *bench)
{
    team_free(bench->team);
    for (uint32_t i = 0; i < bench->settings->threads; i++)
        vectors_release(&bench->vectors[i]);
    for (size_t p = 0; p < bench->pool_count; p++)
        pool_release(&bench->pools[p]);
    memset(bench->readings, 0, sizeof(bench->readings));
    memset(bench->series, 0, sizeof(bench->series));
    bench->team = NULL;
    bench->pool_count = bench->series_count = 0;
}

int measure_case(struct bench *bench, const struct bench_case *what, struct result ret_results[VARIANTS_MAX], struct err *err)
{
    int r;

    bench->what = what;
    r = measure(bench, ret_results, err);
    forget(bench);
    return r;
}

int bench_new(struct bench **ret_bench, const struct settings *settings, struct err *err)
{
    struct bench *bench = calloc(1, sizeof(*bench));

    if (bench)
        bench->vectors = calloc(settings->threads, sizeof(*bench->vectors));
    if (!bench || !bench->vectors) {
        free(bench);
        return err_no_memory(err, "the figures of a case", sizeof(*bench));
    }
    bench->settings = settings;
    *ret_bench = bench;
    return 0;
}

void bench_free(struct bench *bench)
{
    if (!bench)
        return;
    for (size_t p = 0; p < VARIANTS_MAX; p++)
        memory_unmap(&bench->pools[p].memory);
    free(bench->vectors);
    free(bench);
}

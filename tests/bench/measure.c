#include "tests/bench/measure.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "tests/bench/check.h"
#include "tests/bench/run.h"
#include "tests/bench/stats.h"

#define COLD_NS (50 * CLOCK_NS_PER_MS) /* of one run */
#define HOT_NS (15 * CLOCK_NS_PER_MS)
/* The fastest readers of the warm-up go on, three where limits are taken from: the others would only take time. */
#define READERS_KEPT 3
#define READERS_KEPT_RIVAL 1
#define FP9_BYTES 1.125

/* What is measured of one variant, a value for each round. */
struct series {
    struct variant variant;
    struct pool *pool;
    struct run run;
    double rate[SETTINGS_ROUNDS_MAX]; /* parameters per second */
    double imbalance[SETTINGS_ROUNDS_MAX];
};

/* Reading one pool's items: the best way of each round. */
struct reading {
    struct run runs[READERS_MAX];
    size_t count;
    double best[SETTINGS_ROUNDS_MAX]; /* bytes per second */
    uint32_t wins[READERS_MAX];
};

struct bench {
    const struct settings *settings;
    /* of the case under way; pools[0] is fp9's */
    const struct bench_case *what;
    struct team *team;
    struct vectors *vectors; /* [threads] */
    struct reader readers[READERS_MAX];
    struct pool pools[VARIANTS_MAX];
    struct reading readings[VARIANTS_MAX]; /* of each pool */
    size_t pool_count, series_count;
    struct series series[VARIANTS_MAX];
};

static uint64_t run_ns(const struct settings *settings)
{
    return settings->cold ? COLD_NS : HOT_NS;
}

static bool named(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

/* The reference is slow and has no claim: it is timed when it is what the programs use, or by name. */
static int choose_variants(struct bench *bench, const struct variant *all, size_t count, struct err *err)
{
    const char *list = bench->settings->variants;

    for (size_t i = 0; i < count; i++) {
        struct err why;
        int r;

        if (list ? !named(list, all[i].name) : i == 0 && !variant_chosen(&all[i]))
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

static int make_pools(struct bench *bench, const struct variant *reference, struct err *err)
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

/* The median of the rounds' ratios to a rival. */
static double over_rival(const struct bench *bench, const struct series *series, const char *rival)
{
    double ratios[SETTINGS_ROUNDS_MAX];

    for (size_t s = 0; s < bench->series_count; s++) {
        if (strcmp(bench->series[s].variant.name, rival) != 0)
            continue;
        for (uint32_t i = 0; i < bench->settings->rounds; i++)
            ratios[i] = series->rate[i] / bench->series[s].rate[i];
        return stats_median(ratios, bench->settings->rounds);
    }
    return (double)NAN;
}

static const char *best_reader(const struct reading *reading)
{
    size_t best = 0;

    for (size_t i = 1; i < reading->count; i++)
        if (reading->wins[i] > reading->wins[best])
            best = i;
    return reading->runs[best].reader->name;
}

static struct result summarise(struct bench *bench, struct series *series)
{
    struct reading *reading = &bench->readings[series->pool - bench->pools];
    double bytes_per_param = (double)series->pool->item_bytes * bench->what->top_k / bench->what->step_params;
    double rates[SETTINGS_ROUNDS_MAX], reads[SETTINGS_ROUNDS_MAX], of_read[SETTINGS_ROUNDS_MAX], of_limit[SETTINGS_ROUNDS_MAX];
    uint32_t rounds = bench->settings->rounds;
    struct result result = {.variant = series->variant};

    for (uint32_t i = 0; i < rounds; i++) {
        rates[i] = series->rate[i] / 1e9;
        reads[i] = reading->best[i] / 1e9;
        of_read[i] = series->rate[i] * bytes_per_param / reading->best[i];
        of_limit[i] = series->rate[i] * FP9_BYTES / bench->readings[0].best[i];
    }
    result.of_seed = over_rival(bench, series, "seed");
    result.of_raw8 = over_rival(bench, series, "raw8");
    result.gparam_s = stats_median(rates, rounds);
    result.gb_s = result.gparam_s * bytes_per_param;
    result.read_gb_s = stats_median(reads, rounds);
    result.of_read = stats_median(of_read, rounds);
    result.of_limit = stats_median(of_limit, rounds);
    result.imbalance = stats_median(series->imbalance, rounds);
    result.spread = stats_spread(rates, rounds);
    result.ratio_spread = stats_spread(of_limit, rounds);
    result.reader = best_reader(reading);
    result.pool_bytes = pool_bytes(series->pool);
    result.huge_bytes = memory_huge_bytes(&series->pool->memory);
    if (result.huge_bytes > result.pool_bytes)
        result.huge_bytes = result.pool_bytes;
    result.pinned = team_pinned(bench->team);
    return result;
}

static int measure(struct bench *bench, struct result *ret_results, struct err *err)
{
    struct variant all[VARIANTS_MAX];
    size_t count = variants_all(all);
    int r = choose_variants(bench, all, count, err);

    if (r == 0)
        r = make_pools(bench, &all[0], err);
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
        ret_results[s] = summarise(bench, &bench->series[s]);
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

#include <math.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/stats.h"

#define FP9_BYTES 1.125 /* a weight */

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

struct result summary_of(struct bench *bench, struct series *series)
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

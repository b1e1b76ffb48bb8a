#include <string.h>

#include "proto/base/size.h"
#include "tests/bench/bench.h"

static const char *chosen; /* the variant that the programs would use */
static bool any;

static const char *isa(enum kernels_tier tier)
{
    switch (tier) {
    case KERNELS_REF:
        return "ref";
    case KERNELS_AVX2:
        return "avx2";
    }
    return "?";
}

void bench_report_begin(const struct bench_settings *settings)
{
    chosen = kernels_tier_name();
    if (settings->json)
        putchar('[');
    else
        printf("%-16s %-8s %-5s %7s %9s %8s %9s %8s %8s %7s\n", "case", "variant", "cache", "threads", "Gparam/s", "GB/s", "read GB/s",
               "of_read", "of_limit", "spread");
}

static void line(const struct bench_case *what, const struct bench_settings *settings, const struct bench_pool *pool,
                 const struct bench_result *result)
{
    const char *cache = settings->cold ? "cold" : "hot";
    bool is_chosen = strcmp(result->variant->name, chosen) == 0;

    if (!settings->json) {
        printf("%-16s %-7s%c %-5s %7u %9.3f %8.2f %9.2f %8.3f %8.3f %6.1f%%\n", what->name, result->variant->name,
               is_chosen ? '*' : ' ', cache, settings->threads, result->gparam_s,
               result->gb_s, result->read_gb_s, result->of_read, result->of_limit, 100.0 * result->spread);
        return;
    }
    printf("%s\n {\"case\": \"%s\", \"variant\": \"%s\", \"chosen\": %s, \"cache\": \"%s\", \"threads\": %u, \"isa\": \"%s\", "
           "\"gparam_s\": %.4f, \"gb_s\": %.4f, \"read_gb_s\": %.4f, \"of_read\": %.4f, \"of_limit\": %.4f, \"spread\": %.4f, "
           "\"pool_bytes\": %zu}",
           any ? "," : "", what->name, result->variant->name, is_chosen ? "true" : "false", cache, settings->threads,
           isa(result->variant->tier), result->gparam_s, result->gb_s, result->read_gb_s, result->of_read, result->of_limit, result->spread,
           pool->bytes);
    any = true;
}

void bench_report(const struct bench_case *what, const struct bench_settings *settings, const struct bench_pool *pool,
                  const struct bench_result *results, int count)
{
    for (int i = 0; i < count; i++)
        line(what, settings, pool, &results[i]);
    fflush(stdout);
}

void bench_report_end(const struct bench_settings *settings)
{
    if (settings->json)
        puts("\n]");
    else
        puts("* is what the programs use. Medians of interleaved rounds; only ratios (of_read, of_limit) compare between runs.");
}

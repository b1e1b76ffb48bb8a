#include "tests/bench/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"
#include "tests/bench/openblas.h"

static bool any; /* a JSON object was printed */

static void cpu_model(char *text, size_t size)
{
    _cleanup_(fclosep) FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(text, size, "unknown");
    while (file && fgets(line, sizeof(line), file)) {
        const char *value = strstr(line, ": ");

        if (strncmp(line, "model name", 10) == 0 && value) {
            snprintf(text, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
            return;
        }
    }
}

void report_begin(const struct settings *settings)
{
    char model[128], cache[32];

    if (settings->json) {
        putchar('[');
        return;
    }
    cpu_model(model, sizeof(model));
    printf("%s, last cache %s; %s, %u thread%s, %u rounds, %s memory, subnormals %g of the weights\n", model,
           size_format(memory_last_cache(), cache, sizeof(cache)), settings->cold ? "cold" : "hot", settings->threads,
           settings->threads == 1 ? "" : "s", settings->rounds, memory_kind_name(settings->memory), settings->subnormals);
    printf("%-20s %-10s %8s %7s %7s %8s %8s %7s %7s %7s %7s %7s\n", "case", "variant", "Gparam/s", "GB/s", "read", "of_read", "of_limit",
           "/seed", "/raw8", "imbal", "spread", "ratios");
}

static void ratio_text(double ratio, char text[16])
{
    if (isnan(ratio))
        snprintf(text, 16, "-");
    else
        snprintf(text, 16, "%.2f", ratio);
}

static void table_line(const struct bench_case *what, const struct result *result)
{
    char seed[16], raw8[16];

    ratio_text(result->of_seed, seed);
    ratio_text(result->of_raw8, raw8);
    printf("%-20s %-9s%c %8.2f %7.2f %7.2f %8.3f %8.3f %7s %7s %7.4f %6.1f%% %6.1f%%\n", what->name, result->variant.name,
           variant_chosen(&result->variant) ? '*' : ' ', result->gparam_s, result->gb_s, result->read_gb_s, result->of_read,
           result->of_limit, seed, raw8, result->imbalance, 100.0 * result->spread, 100.0 * result->ratio_spread);
}

static void json_ratio(const char *key, double ratio)
{
    if (isnan(ratio))
        printf(", \"%s\": null", key);
    else
        printf(", \"%s\": %.5g", key, ratio);
}

static void json_object(const struct bench_case *what, const struct settings *settings, const struct result *result)
{
    printf("%s\n {\"case\": \"%s\", \"variant\": \"%s\", \"chosen\": %s, \"cache\": \"%s\", \"threads\": %u, \"isa\": \"%s\", "
           "\"gparam_s\": %.5g, \"gb_s\": %.5g, \"read_gb_s\": %.5g, \"of_read\": %.5g, \"of_limit\": %.5g, \"spread\": %.5g, ",
           any ? "," : "", what->name, result->variant.name, variant_chosen(&result->variant) ? "true" : "false",
           settings->cold ? "cold" : "hot", settings->threads, variant_isa(&result->variant), result->gparam_s, result->gb_s,
           result->read_gb_s, result->of_read, result->of_limit, result->spread);
    printf("\"ratio_spread\": %.5g, \"imbalance\": %.6f, \"pinned\": %s, \"verified\": \"%s\", \"reader\": \"%s\", \"rounds\": %u, "
           "\"memory\": \"%s\", \"pool_bytes\": %zu, \"huge_bytes\": %zu, \"subnormals\": %g",
           result->ratio_spread, result->imbalance, result->pinned ? "true" : "false", result->variant.exact ? "bits" : "tolerance",
           result->reader, settings->rounds, memory_kind_name(settings->memory), result->pool_bytes, result->huge_bytes,
           settings->subnormals);
    json_ratio("of_seed", result->of_seed);
    json_ratio("of_raw8", result->of_raw8);
    putchar('}');
    any = true;
}

/* What was asked for and what the system gave. */
static void tell_memory(const struct settings *settings, const struct result *result)
{
    static bool told;
    char pool[32], huge[32], why[256];

    if (told)
        return;
    told = true;
    printf("  pools of %s, %s of it in huge pages; fastest reader here: %s%s\n", size_format(result->pool_bytes, pool, sizeof(pool)),
           size_format(result->huge_bytes, huge, sizeof(huge)), result->reader, result->pinned ? "" : "; threads not pinned");
    if (settings->memory == MEMORY_MEMFD_HUGE && result->huge_bytes < result->pool_bytes / 2) {
        memory_explain(why, sizeof(why));
        printf("  memfd-huge got small pages: %s\n", why);
    }
}

void report_case(const struct bench_case *what, const struct settings *settings, const struct result *results, int count)
{
    for (int i = 0; i < count; i++)
        if (settings->json)
            json_object(what, settings, &results[i]);
        else
            table_line(what, &results[i]);
    if (!settings->json && count > 0)
        tell_memory(settings, &results[0]);
    fflush(stdout);
}

void report_end(const struct settings *settings)
{
    if (settings->json) {
        puts("\n]");
        return;
    }
    if (openblas_config())
        printf("%s\n", openblas_config());
    puts("* is what the programs use; every variant was checked against the reference first. Medians of interleaved rounds with spreads\n"
         "(quartiles): of the rate, and of of_limit; only ratios of one run compare with another run's.");
}

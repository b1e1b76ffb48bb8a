#include <math.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "tests/bench/smp.h"

static bool any; /* a JSON object was printed */

void smp_report_begin(const struct settings *settings, bool whole)
{
    if (settings->json) {
        putchar('[');
        return;
    }
    printf("%s, %u thread%s, kernels %s, %u rounds, %s memory\n", settings->cold ? "cold" : "hot", settings->threads,
           settings->threads == 1 ? "" : "s", kernels_variant_name(), settings->rounds, memory_kind_name(settings->memory));
    if (!whole)
        printf("%-20s %8s %9s %8s %9s %8s %8s %10s %10s %7s\n", "case", "experts", "Gparam/s", "read", "of_limit", "speedup", "of_read",
               "imbalance", "slots/rows", "spread");
}

void smp_report(const struct bench_case *what, const struct settings *settings, const struct smp_result *result)
{
    if (settings->json)
        printf("%s\n {\"case\": \"%s\", \"experts\": %u, \"threads\": %u, \"cache\": \"%s\", \"variant\": \"%s\", \"of_limit\": %.5g, "
               "\"speedup\": %.5g, \"read_speedup\": %.5g, \"of_read_speedup\": %.5g, \"imbalance\": %.6f, \"gparam_s\": %.5g, "
               "\"read_gb_s\": %.5g, \"slots_over_rows\": %.5g, \"spread\": %.5g, \"pinned\": %s, \"rounds\": %u}",
               any ? "," : "", what->name, result->experts, settings->threads, settings->cold ? "cold" : "hot", kernels_variant_name(),
               result->of_limit, result->speedup, result->read_speedup, result->of_read_speedup, result->imbalance, result->gparam_s,
               result->read_gb_s, result->slots_over_rows, result->spread, result->pinned ? "true" : "false", settings->rounds);
    else
        printf("%-20s %8u %9.2f %8.2f %9.3f %8.3f %8.3f %10.5f %10.3f %6.1f%%\n", what->name, result->experts, result->gparam_s,
               result->read_gb_s, result->of_limit, result->speedup, result->of_read_speedup, result->imbalance, result->slots_over_rows,
               100.0 * result->spread);
    any = true;
    fflush(stdout);
}

void smp_report_whole(const struct bench_case *what, const struct settings *settings, const struct smp_whole *result)
{
    char of_peak[16];

    snprintf(of_peak, sizeof(of_peak), isnan(result->of_peak) ? "null" : "%.5g", result->of_peak);
    if (settings->json)
        printf("%s\n {\"case\": \"%s\", \"tokens\": %u, \"threads\": %u, \"variant\": \"%s\", \"gflops\": %.3f, \"of_peak\": %s, "
               "\"speedup\": %.5g, \"over_decodes\": %.5g, \"imbalance\": %.6f, \"weight_stream_gb_per_s\": %.5g, \"tiles\": %.0f, "
               "\"avg_tile_batch\": %.5g, \"rounds\": %u}",
               any ? "," : "", what->name, result->tokens, settings->threads, kernels_variant_name(), result->gflops, of_peak,
               result->speedup, result->over_decodes, result->imbalance, result->weight_stream_gb, result->tiles, result->avg_tile_batch,
               settings->rounds);
    else
        printf("%-20s %u tokens: %.1f GFLOP/s, of_peak %s, speedup %.3f, %.2f times as fast as decodes, imbalance %.4f, weights %.2f GB/s, "
               "%.0f tiles of %.1f tokens\n",
               what->name, result->tokens, result->gflops, of_peak, result->speedup, result->over_decodes, result->imbalance,
               result->weight_stream_gb, result->tiles, result->avg_tile_batch);
    any = true;
    fflush(stdout);
}

void smp_report_end(const struct settings *settings, bool whole)
{
    if (settings->json)
        puts("\n]");
    else if (!whole)
        puts("speedup: all threads over one; of_read: that over a pure read's own. Medians of interleaved rounds; spread: of of_limit.");
}

#include <math.h>
#include <stdio.h>

#include "tests/bench/prefill.h"

static bool any; /* a JSON object was printed */

void prefill_report_begin(const struct settings *settings)
{
    const char *core = prefill_blas_core();

    if (settings->json) {
        putchar('[');
        return;
    }
    printf("%s, %u thread%s, %u rounds, %s memory; OpenBLAS %s%s\n", settings->cold ? "cold" : "hot", settings->threads,
           settings->threads == 1 ? "" : "s", settings->rounds, memory_kind_name(settings->memory), core ? "as for " : "is not there",
           core ? core : "");
    printf("%-20s %-10s %7s %9s %8s %12s %13s %7s\n", "case", "variant", "tokens", "GFLOP/s", "of_peak", "vs_openblas", "over_decodes",
           "spread");
}

static void number(char text[16], double value)
{
    if (isnan(value))
        snprintf(text, 16, "-");
    else
        snprintf(text, 16, "%.3f", value);
}

static void json_number(const char *key, double value)
{
    if (isnan(value))
        printf(", \"%s\": null", key);
    else
        printf(", \"%s\": %.5g", key, value);
}

void prefill_report(const struct bench_case *what, const struct settings *settings, const char *variant,
                    const struct prefill_result *result)
{
    char of_peak[16], vs_openblas[16];

    if (settings->json) {
        printf("%s\n {\"case\": \"%s\", \"variant\": \"%s\", \"tokens\": %u, \"threads\": %u, \"cache\": \"%s\"", any ? "," : "",
               what->name, variant, result->tokens, settings->threads, settings->cold ? "cold" : "hot");
        json_number("gflops", result->gflops);
        json_number("of_peak", result->of_peak);
        json_number("vs_openblas", result->vs_openblas);
        json_number("over_decodes", result->over_decodes);
        json_number("spread", result->spread);
        printf(", \"verified\": \"bits\", \"rounds\": %u}", settings->rounds);
    } else {
        number(of_peak, result->of_peak);
        number(vs_openblas, result->vs_openblas);
        printf("%-20s %-10s %7u %9.1f %8s %12s %13.2f %6.1f%%\n", what->name, variant, result->tokens, result->gflops, of_peak, vs_openblas,
               result->over_decodes, 100.0 * result->spread);
    }
    any = true;
    fflush(stdout);
}

void prefill_report_end(const struct settings *settings)
{
    if (settings->json)
        puts("\n]");
    else
        puts("over_decodes: time of that many single tokens over the batch's. Every batch was checked against each token alone first.\n"
             "Medians of interleaved rounds; spread: of of_peak.");
}

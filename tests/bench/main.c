/* fp9-bench: the kernels alone, against pure reads of the same bytes. Its words are explained in fp9-bench(1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/options.h"
#include "tests/bench/prefill.h"
#include "tests/bench/report.h"
#include "tests/bench/smp.h"

static int run_case(struct bench *bench, const struct options *options, const char *text, struct err *err)
{
    struct result results[VARIANTS_MAX];
    struct bench_case what;
    int r = case_init(&what, options->kind, text, err);

    if (r == 0)
        r = measure_case(bench, &what, results, err);
    if (r > 0)
        report_case(&what, &options->settings, results, r);
    return r < 0 ? r : 0;
}

static int run(const struct options *options, struct err *err)
{
    bool all = options->text && strcmp(options->text, "all") == 0;
    char name[64];
    struct bench *bench = NULL;
    int r = bench_new(&bench, &options->settings, err);

    if (r < 0)
        return r;
    variants_choose();
    report_begin(&options->settings);
    if (options->text && !all)
        r = run_case(bench, options, options->text, err);
    for (size_t i = 0; all && r == 0 && case_named(options->kind, i, name); i++)
        r = run_case(bench, options, name, err);
    for (size_t i = 0; !options->text && r == 0 && case_default(options->kind, i); i++)
        r = run_case(bench, options, case_default(options->kind, i), err);
    if (r == 0 || options->settings.json) /* what was measured before a failure stays an array */
        report_end(&options->settings);
    bench_free(bench);
    return r;
}

static int run_smp(const struct options *options, struct err *err)
{
    bool all = options->text && strcmp(options->text, "all") == 0;
    char name[64];
    int r = 0;

    variants_choose();
    smp_report_begin(&options->settings, options->tokens > 0);
    for (size_t i = 0; r == 0; i++) {
        const char *text = all ? case_named(CASE_MOE, i, name) : !options->text ? case_default(CASE_MOE, i) : i == 0 ? options->text : NULL;
        struct bench_case what;

        if (!text)
            break;
        r = case_init(&what, CASE_MOE, text, err);
        if (r == 0)
            r = (options->tokens ? smp_whole : smp_case)(&what, options, err);
    }
    if (r == 0 || options->settings.json)
        smp_report_end(&options->settings, options->tokens > 0);
    return r;
}

int main(int argc, char **argv)
{
    struct options options;
    struct err err;
    int status;

    if (!options_parse(argc, argv, &options, &status))
        return status;
    if (kernels_select(getenv("FP9_CPU"), &err) < 0 || (options.prefill ? prefill_run : options.smp ? run_smp : run)(&options, &err) < 0) {
        fprintf(stderr, "fp9-bench: %s\n", err.message);
        return OPTIONS_EXIT_REFUSED;
    }
    if (options.settings.corrupt) {
        fprintf(stderr, "fp9-bench: --corrupt %s: it is not among what was measured\n", options.settings.corrupt);
        return OPTIONS_EXIT_REFUSED;
    }
    return 0;
}

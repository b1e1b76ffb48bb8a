/* fp9-bench: the kernels alone, against pure reads of the same bytes. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"
#include "tests/bench/bench.h"

#define EXIT_REFUSED 1
#define EXIT_USAGE 2

static int usage(FILE *to, int status)
{
    fputs("Usage: fp9-bench gemv|mlp|moe [--case NxK|NAME] [--cache hot|cold] [--threads N] [--variant V] [--json]\n"
          "Measures fp9's kernels and, in the same rounds, pure reads of the same bytes.\n"
          "\n"
          "  gemv  one matrix of N rows and K columns\n"
          "  mlp   one expert: gate, up and down of N neurons at hidden size K\n"
          "  moe   one token through 8 such experts\n"
          "  (smp and prefill: not in this version)\n"
          "\n"
          "  --case NxK|NAME   one shape instead of the usual ones; names (mlp, moe): qwen3-30b, qwen3-30b-tp12, qwen3-235b-tp4,\n"
          "                    v3-tp32, v3-ep\n"
          "  --cache hot|cold  the same weights again and again, or a pool of 1 GiB at least (cold)\n"
          "  --threads N       each on its own part of the pool (1)\n"
          "  --variant V       one of the kernels of this build: ref, avx2 (all that this CPU can run)\n"
          "  --json            an array of objects\n"
          "  --version, --help\n"
          "\n"
          "of_read: bytes of the weights per second / the best pure read of the same bytes.\n"
          "of_limit: weights per second x 1.125 byte / the same.\n"
          "FP9_CPU=ref|avx2 chooses what counts as chosen. Exit status: 0 done, 1 refused or failed, 2 wrong usage.\n",
          to);
    return status;
}

static int complain(const struct err *err, int status)
{
    fprintf(stderr, "fp9-bench: %s\n", err->message);
    return status;
}

static int find_variant(const char *name, const struct tiers_variant **ret_variant, struct err *err)
{
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);
    char names[128] = "";

    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, variants[i].name) == 0) {
            if (!kernels_tier_available(variants[i].tier))
                return err_set(err, -ENOTSUP, ERR_BAD_REQUEST, "variant %s: this CPU or its operating system lacks what it needs", name);
            *ret_variant = &variants[i];
            return 0;
        }
        strcat(names, i ? ", " : "");
        strcat(names, variants[i].name);
    }
    return err_set(err, -EINVAL, ERR_BAD_REQUEST, "variant %.60s is unknown; this build has: %s", name, names);
}

static int run_case(enum bench_kind kind, const char *text, const struct bench_settings *settings, struct err *err)
{
    struct bench_result results[BENCH_RESULTS_MAX];
    struct bench_case what;
    struct bench_pool pool = {0};
    int r;

    r = bench_case_init(&what, kind, text, err);
    if (r == 0)
        r = bench_pool_init(&pool, &what, settings, err);
    if (r == 0)
        r = bench_measure(&what, settings, &pool, results, err);
    if (r > 0)
        bench_report(&what, settings, &pool, results, r);
    bench_pool_release(&pool);
    return r < 0 ? r : 0;
}

static int run(enum bench_kind kind, const char *text, const struct bench_settings *settings, struct err *err)
{
    int r = 0;

    bench_report_begin(settings);
    if (text)
        r = run_case(kind, text, settings, err);
    for (size_t i = 0; !text && r == 0 && bench_case_default(kind, i); i++)
        r = run_case(kind, bench_case_default(kind, i), settings, err);
    if (r == 0)
        bench_report_end(settings);
    return r;
}

/* The options after the command. 0, or the exit status. */
static int parse_options(int argc, char **argv, struct bench_settings *settings, const char **ret_case)
{
    static const struct option options[] = {
        {"case", required_argument, NULL, 'c'},    {"cache", required_argument, NULL, 'k'}, {"threads", required_argument, NULL, 't'},
        {"variant", required_argument, NULL, 'v'}, {"json", no_argument, NULL, 'j'},        {0},
    };
    struct err err;
    uint64_t threads;
    int option, r;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'c':
            *ret_case = optarg;
            break;
        case 'k':
            if (strcmp(optarg, "hot") != 0 && strcmp(optarg, "cold") != 0) {
                fprintf(stderr, "fp9-bench: --cache is hot or cold, not %s\n", optarg);
                return EXIT_USAGE;
            }
            settings->cold = strcmp(optarg, "cold") == 0;
            break;
        case 't':
            if (!size_parse_u64(optarg, 1, BENCH_THREADS_MAX, &threads)) {
                fprintf(stderr, "fp9-bench: --threads is a number from 1 to %d, not %s\n", BENCH_THREADS_MAX, optarg);
                return EXIT_USAGE;
            }
            settings->threads = (uint32_t)threads;
            break;
        case 'v':
            r = find_variant(optarg, &settings->variant, &err);
            if (r < 0)
                return complain(&err, r == -EINVAL ? EXIT_USAGE : EXIT_REFUSED);
            break;
        case 'j':
            settings->json = true;
            break;
        default:
            return usage(stderr, EXIT_USAGE);
        }
    if (optind != argc) {
        fprintf(stderr, "fp9-bench: unexpected argument %s\n", argv[optind]);
        return EXIT_USAGE;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const commands[] = {[BENCH_GEMV] = "gemv", [BENCH_MLP] = "mlp", [BENCH_MOE] = "moe"};
    struct bench_settings settings = {.cold = true, .threads = 1};
    const char *text = NULL;
    struct bench_case what;
    size_t kind = 0;
    struct err err;
    int status;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return usage(stdout, 0);
        if (strcmp(argv[i], "--version") == 0) {
            puts("fp9-bench " FP9_VERSION);
            return 0;
        }
    }
    if (argc < 2)
        return usage(stderr, EXIT_USAGE);
    if (strcmp(argv[1], "smp") == 0 || strcmp(argv[1], "prefill") == 0) {
        fprintf(stderr, "fp9-bench: %s is not in this version; there are gemv, mlp and moe\n", argv[1]);
        return EXIT_REFUSED;
    }
    while (kind < ARRAY_LENGTH(commands) && strcmp(argv[1], commands[kind]) != 0)
        kind++;
    if (kind == ARRAY_LENGTH(commands)) {
        fprintf(stderr, "fp9-bench: what to measure comes first, gemv, mlp or moe, not %s\n", argv[1]);
        return EXIT_USAGE;
    }
    status = parse_options(argc - 1, argv + 1, &settings, &text);
    if (status != 0)
        return status;
    if (text && bench_case_init(&what, (enum bench_kind)kind, text, &err) < 0)
        return complain(&err, EXIT_USAGE);
    if (kernels_select(getenv("FP9_CPU"), &err) < 0 || run((enum bench_kind)kind, text, &settings, &err) < 0)
        return complain(&err, EXIT_REFUSED);
    return 0;
}

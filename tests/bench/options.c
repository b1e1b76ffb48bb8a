#include "tests/bench/options.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/phases.h"
#include "proto/base/cleanup.h"
#include "proto/base/size.h"
#include "tests/bench/smp.h"
#include "tests/bench/variant.h"

static const char help[] =
    "Usage: fp9-bench gemv|mlp|moe|smp|prefill [--case NxK|NAME|all] [--cache hot|cold] [--threads N] [--variant V,...] [--json]\n"
    "Measures fp9's kernels and others beside them and, in the same rounds, pure reads of the same bytes.\n"
    "\n"
    "  gemv  one matrix of N rows and K columns\n"
    "  mlp   one expert: gate, up and down of N neurons at hidden size K\n"
    "  moe   one token through 8 such experts, routed at random\n"
    "  smp   the same, all threads at one token, with 1, 2, 3, 5 and 8 experts\n"
    "  prefill  1 to 512 tokens through one matrix (hot unless --cache cold), beside OpenBLAS' sgemm and the FMA peak\n"
    "\n"
    "  --case NxK|NAME|all  one shape instead of the usual ones, or all that have a name\n"
    "  --cache hot|cold     the same weights again and again, or (cold) a pool of 1 GiB at least and four times the last cache\n"
    "  --threads N          each on its own part of the pool (1); smp: all on the same experts (one a CPU)\n"
    "  --variant V,...      not smp: some of ref, the tiers of this build, seed, raw8, openblas (all but ref)\n"
    "  --experts N          smp without --tokens: one number of them, 1 to 16\n"
    "  --tokens N           smp: so many tokens through a layer of 128 experts, beside the FMA peak and as many decodes\n"
    "  --memory KIND        anon, anon-huge, memfd or memfd-huge (anon-huge)\n"
    "  --subnormals SHARE   of the weights that are E4M3 subnormals (1e-4)\n"
    "  --rounds N           each measures everything once (9)\n"
    "  --pool BYTES         another size of the cold pools\n"
    "  --corrupt V          spoil V's result before it is checked: the run must fail\n"
    "  --json               an array of objects\n"
    "  --version, --help\n"
    "\n"
    "of_read: bytes of the weights per second / the best pure read of the same bytes.\n"
    "of_limit: weights per second x 1.125 byte / the best pure read of fp9's bytes.\n"
    "An option that what is measured does not look at is wrong usage (smp --tokens: --cache and --pool, too).\n"
    "FP9_CPU=ref|avx2|avx2:rm|avx2:rp|avx512 chooses what counts as chosen. Exit status: 0 done, 1 refused or failed, 2 wrong usage.\n";

static bool usage(int *ret_status)
{
    fputs(help, stderr);
    *ret_status = OPTIONS_EXIT_USAGE;
    return false;
}

static bool wrong(int *ret_status, const char *option, const char *what, const char *text)
{
    fprintf(stderr, "fp9-bench: %s is %s, not %s\n", option, what, text);
    *ret_status = OPTIONS_EXIT_USAGE;
    return false;
}

static bool parse_number(const char *text, uint64_t high, uint32_t *ret_value)
{
    uint64_t value;

    if (!size_parse_u64(text, 1, high, &value))
        return false;
    *ret_value = (uint32_t)value;
    return true;
}

static uint32_t cpus(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return count > PHASES_MEMBERS_MAX ? PHASES_MEMBERS_MAX : (uint32_t)count;
}

static bool parse_share(const char *text, double *ret_share)
{
    char *end;
    double share = strtod(text, &end);

    if (end == text || *end != '\0' || !(share >= 0.0 && share <= 1.0))
        return false;
    *ret_share = share;
    return true;
}

/* Every name of a list is a variant of this build. */
static bool known_variants(const char *list, int *ret_status)
{
    struct variant all[VARIANTS_MAX];
    size_t count = variants_all(all);
    char names[128] = "";

    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        size_t length = strcspn(at, ","), i = 0;

        while (i < count && (strlen(all[i].name) != length || strncmp(all[i].name, at, length) != 0))
            i++;
        if (i < count)
            continue;
        for (i = 0; i < count; i++)
            snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? ", " : "", all[i].name);
        fprintf(stderr, "fp9-bench: variant %.*s is unknown; this build has: %s\n", (int)length, at, names);
        *ret_status = OPTIONS_EXIT_USAGE;
        return false;
    }
    return true;
}

static bool parse_option(int option, struct options *options, int *ret_status)
{
    struct settings *settings = &options->settings;

    switch (option) {
    case 'c': options->text = optarg; return true;
    case 'k':
        settings->cold = strcmp(optarg, "cold") == 0;
        return settings->cold || strcmp(optarg, "hot") == 0 || wrong(ret_status, "--cache", "hot or cold", optarg);
    case 't':
        return parse_number(optarg, SETTINGS_THREADS_MAX, &settings->threads) ||
               wrong(ret_status, "--threads", "a number from 1 to 256", optarg);
    case 'e':
        return parse_number(optarg, CASE_TOP_K_MAX, &options->experts) || wrong(ret_status, "--experts", "a number from 1 to 16", optarg);
    case 'T':
        return parse_number(optarg, WHOLE_TOKENS_MAX, &options->tokens) || wrong(ret_status, "--tokens", "a number from 1 to 8192", optarg);
    case 'r':
        return parse_number(optarg, SETTINGS_ROUNDS_MAX, &settings->rounds) ||
               wrong(ret_status, "--rounds", "a number from 1 to 99", optarg);
    case 'v': settings->variants = optarg; return known_variants(optarg, ret_status);
    case 'x': settings->corrupt = optarg; return known_variants(optarg, ret_status);
    case 'm':
        return memory_kind_parse(optarg, &settings->memory) == 0 ||
               wrong(ret_status, "--memory", "anon, anon-huge, memfd or memfd-huge", optarg);
    case 's': return parse_share(optarg, &settings->subnormals) || wrong(ret_status, "--subnormals", "a number from 0 to 1", optarg);
    case 'p':
        return (size_parse(optarg, &settings->pool_bytes) && settings->pool_bytes > 0 && settings->pool_bytes <= SETTINGS_POOL_MAX) ||
               wrong(ret_status, "--pool", "a size up to 1T", optarg);
    case 'j': return settings->json = true;
    default: return usage(ret_status);
    }
}

/* Whether what is measured looks at an option. smp takes the variant in use; --tokens makes the pool and the experts its own. */
static bool looked_at(const struct options *options, int option)
{
    bool whole = options->smp && options->tokens > 0;

    switch (option) {
    case 'e': return options->smp && !whole;
    case 'T': return options->smp;
    case 'v':
    case 'x': return !options->smp;
    case 'k':
    case 'p': return !whole;
    default: return true;
    }
}

static bool parse_options(int argc, char **argv, struct options *options, int *ret_status)
{
    static const struct option known[] = {
        {"case", required_argument, NULL, 'c'},
        {"cache", required_argument, NULL, 'k'},
        {"threads", required_argument, NULL, 't'},
        {"experts", required_argument, NULL, 'e'},
        {"tokens", required_argument, NULL, 'T'},
        {"rounds", required_argument, NULL, 'r'},
        {"variant", required_argument, NULL, 'v'},
        {"memory", required_argument, NULL, 'm'},
        {"subnormals", required_argument, NULL, 's'},
        {"pool", required_argument, NULL, 'p'},
        {"corrupt", required_argument, NULL, 'x'},
        {"json", no_argument, NULL, 'j'},
        {0},
    };
    bool given[ARRAY_LENGTH(known)] = {false};
    int option, at;

    while ((option = getopt_long(argc, argv, "", known, &at)) != -1) {
        if (!parse_option(option, options, ret_status))
            return false;
        given[at] = true;
    }
    for (size_t i = 0; known[i].name; i++) /* when all are known: --tokens may come last */
        if (given[i] && !looked_at(options, known[i].val)) {
            fprintf(stderr, "fp9-bench: --%s is not for %s%s\n", known[i].name, argv[0],
                    options->tokens && options->smp ? " --tokens" : "");
            *ret_status = OPTIONS_EXIT_USAGE;
            return false;
        }
    if (optind != argc) {
        fprintf(stderr, "fp9-bench: unexpected argument %s\n", argv[optind]);
        *ret_status = OPTIONS_EXIT_USAGE;
        return false;
    }
    return true;
}

bool options_parse(int argc, char **argv, struct options *ret_options, int *ret_status)
{
    static const char *const commands[] = {[CASE_GEMV] = "gemv", [CASE_MLP] = "mlp", [CASE_MOE] = "moe"};
    struct options options = {
        .settings = {.cold = true, .rounds = 9, .memory = MEMORY_ANON_HUGE, .subnormals = 1e-4},
    };
    struct bench_case what;
    size_t kind = 0;
    struct err err;

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0) {
            fputs(argv[i][2] == 'h' ? help : "fp9-bench " FP9_VERSION "\n", stdout);
            *ret_status = 0;
            return false;
        }
    if (argc < 2)
        return usage(ret_status);
    options.smp = strcmp(argv[1], "smp") == 0;
    options.prefill = strcmp(argv[1], "prefill") == 0;
    if (options.smp)
        kind = CASE_MOE;
    if (options.prefill)
        options.settings.cold = false;
    while (!options.smp && !options.prefill && kind < ARRAY_LENGTH(commands) && strcmp(argv[1], commands[kind]) != 0)
        kind++;
    if (kind == ARRAY_LENGTH(commands))
        return wrong(ret_status, "what to measure comes first: it", "gemv, mlp, moe, smp or prefill", argv[1]);
    options.kind = (enum case_kind)kind;
    if (!parse_options(argc - 1, argv + 1, &options, ret_status))
        return false;
    if (options.settings.threads == 0)
        options.settings.threads = options.smp ? cpus() : 1;
    if (options.smp && options.settings.threads > PHASES_MEMBERS_MAX)
        return wrong(ret_status, "--threads", "at most 64 for smp", "more");
    if (options.text && strcmp(options.text, "all") != 0 && case_init(&what, options.kind, options.text, &err) < 0) {
        fprintf(stderr, "fp9-bench: %s\n", err.message);
        *ret_status = OPTIONS_EXIT_USAGE;
        return false;
    }
    *ret_options = options;
    return true;
}

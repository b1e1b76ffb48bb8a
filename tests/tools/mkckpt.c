#include "tests/tools/mkckpt.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/size.h"

#define EXIT_USAGE 2
#define SHARD_BYTES_DEFAULT (UINT64_C(4) << 30)

static const char help[] =
    "Usage: fp9-mkckpt --like CONFIG.json --out DIR [OPTION]...\n"
    "Writes a checkpoint in the real FP8 format (E4M3 in 128x128 blocks) with the tensor names of a\n"
    "config.json and seeded random weights: MLP and expert weights, their scales, routers, index and config.json.\n"
    "Families: those that fp9d loads. The same options give the same bytes in every tensor, whatever the shard size.\n"
    "\n"
    "  --like FILE             config.json to follow; FP8, BF16 or other: quantization_config is set anew\n"
    "  --out DIR               made, or an empty directory\n"
    "  --layers N              instead of num_hidden_layers\n"
    "  --experts N             instead of num_experts\n"
    "  --hidden N              instead of hidden_size\n"
    "  --intermediate N        instead of intermediate_size\n"
    "  --moe-intermediate N    instead of moe_intermediate_size\n"
    "  --seed S                0 to 2^64-1, default 1\n"
    "  --scale-dtype T         f32, bf16 (default) or f16\n"
    "  --shard-bytes SIZE      largest shard, with K M G T; default 4G\n"
    "  --mtp                   also the layers for multi-token prediction that the config announces\n"
    "  --fused                 matrices of a layer in one tensor (experts.gate_up_proj) where the family knows how\n"
    "  --sparse                holes in place of all data: headers as large as a model's, on no disk; all is 0\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 done, 1 refused or failed, 2 wrong usage.\n";

static int usage(const char *what, const char *argument)
{
    fprintf(stderr, "fp9-mkckpt: %s%s\nTry 'fp9-mkckpt --help'.\n", what, argument);
    return EXIT_USAGE;
}

enum option_id {
    OPTION_LIKE = 256,
    OPTION_OUT,
    OPTION_LAYERS,
    OPTION_EXPERTS,
    OPTION_HIDDEN,
    OPTION_INTERMEDIATE,
    OPTION_MOE_INTERMEDIATE,
    OPTION_SEED,
    OPTION_SCALE_DTYPE,
    OPTION_SHARD_BYTES,
    OPTION_MTP,
    OPTION_FUSED,
    OPTION_SPARSE,
    OPTION_HELP,
    OPTION_VERSION,
};

static bool number(const char *text, uint32_t high, uint32_t *ret_value)
{
    uint64_t value;
    if (!size_parse_u64(text, 1, high, &value))
        return false;
    *ret_value = (uint32_t)value;
    return true;
}

static bool scale_dtype(const char *text, enum safetensors_dtype *ret_dtype)
{
    static const struct {
        const char *name;
        enum safetensors_dtype dtype;
    } dtypes[] = {{"f32", SAFETENSORS_F32}, {"bf16", SAFETENSORS_BF16}, {"f16", SAFETENSORS_F16}};
    for (size_t i = 0; i < ARRAY_LENGTH(dtypes); i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *ret_dtype = dtypes[i].dtype;
            return true;
        }
    }
    return false;
}

/* What an option takes, for who gave something else. */
static const char *right(int option, char *text, size_t size)
{
    uint32_t high = 0;
    switch ((enum option_id)option) {
    case OPTION_LAYERS: high = ARCH_LAYERS_MAX; break;
    case OPTION_EXPERTS: high = ARCH_EXPERTS_MAX; break;
    case OPTION_HIDDEN: high = LAYOUT_HIDDEN_MAX; break;
    case OPTION_INTERMEDIATE:
    case OPTION_MOE_INTERMEDIATE: high = LAYOUT_NEURONS_MAX; break;
    case OPTION_SEED: return "a whole number from 0 to 2^64-1";
    case OPTION_SCALE_DTYPE: return "f32, bf16 or f16";
    case OPTION_SHARD_BYTES: return "a size above 0, in bytes or with K, M, G or T";
    case OPTION_LIKE:
    case OPTION_OUT:
    case OPTION_MTP:
    case OPTION_FUSED:
    case OPTION_SPARSE:
    case OPTION_HELP:
    case OPTION_VERSION: return "a path";
    }
    snprintf(text, size, "a whole number from 1 to %u", high);
    return text;
}

static bool take(int option, const char *text, struct mkckpt_options *options)
{
    switch ((enum option_id)option) {
    case OPTION_LIKE: options->like = text; return true;
    case OPTION_OUT: options->out = text; return *text != '\0';
    case OPTION_LAYERS: return number(text, ARCH_LAYERS_MAX, &options->layers);
    case OPTION_EXPERTS: return number(text, ARCH_EXPERTS_MAX, &options->experts);
    case OPTION_HIDDEN: return number(text, LAYOUT_HIDDEN_MAX, &options->hidden);
    case OPTION_INTERMEDIATE: return number(text, LAYOUT_NEURONS_MAX, &options->intermediate);
    case OPTION_MOE_INTERMEDIATE: return number(text, LAYOUT_NEURONS_MAX, &options->moe_intermediate);
    case OPTION_SEED: return size_parse_u64(text, 0, UINT64_MAX, &options->seed);
    case OPTION_SCALE_DTYPE: return scale_dtype(text, &options->scale_dtype);
    case OPTION_SHARD_BYTES: return size_parse(text, &options->shard_bytes) && options->shard_bytes > 0;
    case OPTION_MTP: options->mtp = true; return true;
    case OPTION_FUSED: options->fused = true; return true;
    case OPTION_SPARSE: options->sparse = true; return true;
    case OPTION_HELP:
    case OPTION_VERSION: break;
    }
    return true;
}

static int run(const struct mkckpt_options *options)
{
    struct err err = {0};
    _cleanup_(freep) char *config = NULL;
    _cleanup_(arch_freep) struct arch *arch = NULL;
    struct mkckpt_list list = {0};
    uint32_t shards = 0;
    uint64_t start = clock_now_ns();
    int r = mkckpt_config(options, &config, &arch, &err);
    if (r == 0)
        r = mkckpt_list_make(arch, options, &list, &err);
    if (r == 0)
        r = mkckpt_write(options, config, &list, &shards, &err);
    if (r == 0) {
        double seconds = (double)(clock_now_ns() - start) / 1e9;
        char total[32];
        printf("%s: %s, %u layer%s, %zu tensors, %s in %u shard%s, seed %llu, %.1f s (%.0f MB/s)\n", options->out, arch_family_name(arch),
               arch->layers, arch->layers == 1 ? "" : "s", list.count, size_format(list.bytes, total, sizeof total), shards,
               shards == 1 ? "" : "s", (unsigned long long)options->seed, seconds, (double)list.bytes / 1e6 / seconds);
    } else {
        fprintf(stderr, "fp9-mkckpt: %s\n", err.message);
    }
    mkckpt_list_release(&list);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"like", required_argument, NULL, OPTION_LIKE},
        {"out", required_argument, NULL, OPTION_OUT},
        {"layers", required_argument, NULL, OPTION_LAYERS},
        {"experts", required_argument, NULL, OPTION_EXPERTS},
        {"hidden", required_argument, NULL, OPTION_HIDDEN},
        {"intermediate", required_argument, NULL, OPTION_INTERMEDIATE},
        {"moe-intermediate", required_argument, NULL, OPTION_MOE_INTERMEDIATE},
        {"seed", required_argument, NULL, OPTION_SEED},
        {"scale-dtype", required_argument, NULL, OPTION_SCALE_DTYPE},
        {"shard-bytes", required_argument, NULL, OPTION_SHARD_BYTES},
        {"mtp", no_argument, NULL, OPTION_MTP},
        {"fused", no_argument, NULL, OPTION_FUSED},
        {"sparse", no_argument, NULL, OPTION_SPARSE},
        {"help", no_argument, NULL, OPTION_HELP},
        {"version", no_argument, NULL, OPTION_VERSION},
        {0},
    };
    struct mkckpt_options options = {.seed = 1, .scale_dtype = SAFETENSORS_BF16, .shard_bytes = SHARD_BYTES_DEFAULT};
    for (int option, at; (option = getopt_long(argc, argv, "", names, &at)) != -1;) {
        if (option == '?')
            return usage("unknown option or missing argument", "");
        if (option == OPTION_HELP || option == OPTION_VERSION) {
            fputs(option == OPTION_HELP ? help : "fp9-mkckpt " FP9_VERSION "\n", stdout);
            return EXIT_SUCCESS;
        }
        if (!take(option, optarg, &options)) {
            char range[64];
            fprintf(stderr, "fp9-mkckpt: --%s cannot be \"%s\": %s would be right\n", names[at].name, optarg,
                    right(option, range, sizeof range));
            return EXIT_USAGE;
        }
    }
    if (optind < argc)
        return usage("unexpected argument: ", argv[optind]);
    if (!options.like || !options.out)
        return usage("--like and --out are needed", "");
    return run(&options);
}

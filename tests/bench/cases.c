#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "tests/bench/bench.h"

/* Shapes of real models: neurons of one slice, hidden size, experts per token. */
static const struct {
    const char *name;
    uint32_t neurons, hidden, top_k;
} models[] = {
    {"qwen3-30b", 768, 2048, 8},       /* whole experts */
    {"qwen3-30b-tp12", 64, 2048, 8},
    {"qwen3-235b-tp4", 384, 4096, 8},
    {"v3-tp32", 64, 7168, 8},          /* DeepSeek V3.2, multiple_of 64 */
    {"v3-ep", 2048, 7168, 8},
};

/* Matrices that matter to decode: rows x columns. */
static const char *const gemv_defaults[] = {"2048x7168", "64x7168", "7168x64", "768x2048", "2048x768", NULL};
static const char *const model_defaults[] = {"qwen3-30b", "v3-tp32", NULL};

const char *bench_case_default(enum bench_kind kind, size_t i)
{
    return kind == BENCH_GEMV ? gemv_defaults[i] : model_defaults[i];
}

static bool parse_shape(const char *text, uint32_t *ret_n, uint32_t *ret_k)
{
    char *end;
    unsigned long n, k;

    if (*text < '0' || *text > '9')
        return false;
    n = strtoul(text, &end, 10);
    if (*end++ != 'x' || *end < '0' || *end > '9')
        return false;
    k = strtoul(end, &end, 10);
    if (*end != '\0' || n > LAYOUT_HIDDEN_MAX || k > LAYOUT_HIDDEN_MAX)
        return false;
    *ret_n = (uint32_t)n;
    *ret_k = (uint32_t)k;
    return true;
}

static int unknown_case(const char *text, enum bench_kind kind, struct err *err)
{
    char names[256] = "";

    for (size_t i = 0; kind != BENCH_GEMV && i < ARRAY_LENGTH(models); i++) {
        strcat(names, ", ");
        strcat(names, models[i].name);
    }
    return err_set(err, -EINVAL, ERR_BAD_REQUEST, "case %.60s is unknown: NxK with numbers up to %u%s", text, LAYOUT_HIDDEN_MAX, names);
}

int bench_case_init(struct bench_case *ret_case, enum bench_kind kind, const char *text, struct err *err)
{
    struct bench_case what = {.kind = kind, .top_k = kind == BENCH_MOE ? 8 : 1};
    uint32_t n = 0, k = 0;
    int r;

    for (size_t i = 0; kind != BENCH_GEMV && i < ARRAY_LENGTH(models); i++)
        if (strcmp(text, models[i].name) == 0) {
            n = models[i].neurons;
            k = models[i].hidden;
            what.top_k = kind == BENCH_MOE ? models[i].top_k : 1;
        }
    if (n == 0 && !parse_shape(text, &n, &k))
        return unknown_case(text, kind, err);

    /* A gemv is the down matrix of a slice with k neurons; an mlp has n neurons, each a row of k. */
    r = kind == BENCH_GEMV ? layout_mlp_init(&what.layout, n, 0, k, LAYOUT_TILE_ROWS, err)
                           : layout_mlp_init(&what.layout, k, 0, n, LAYOUT_TILE_ROWS, err);
    if (r < 0)
        return err_prefix(err, "case %s", text);
    what.item_bytes = (size_t)(what.layout.expert_bytes - (kind == BENCH_GEMV ? what.layout.down.scales_offset : 0));
    what.step_params = (double)n * k * (kind == BENCH_GEMV ? 1 : 3) * what.top_k;
    strncpy(what.name, text, sizeof(what.name) - 1);
    *ret_case = what;
    return 0;
}

#include "tests/bench/cases.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"

/* Slices of real models. A gemv of one is named with -gate or -down after it. */
static const struct {
    const char *name;
    uint32_t neurons, hidden;
    uint32_t top_k; /* 0: a dense model */
} models[] = {
    {"v3.2-tp32", 64, 7168, 8}, /* DeepSeek V3.2, multiple_of 64 */
    {"v3.2-ep", 2048, 7168, 8}, /* whole experts */
    {"qwen3-30b", 768, 2048, 8},      {"qwen3-30b-tp6", 128, 2048, 8}, {"qwen3-30b-tp12", 64, 2048, 8},
    {"qwen3-30b-tp24", 32, 2048, 8},  {"qwen3-235b", 1536, 4096, 8},   {"qwen3-235b-tp12", 128, 4096, 8},
    {"qwen3-235b-tp24", 64, 4096, 8}, {"qwen3-0.6b", 3072, 1024, 0},   {"qwen3-1.7b", 6144, 2048, 0},
};

static const char *const gemv_defaults[] = {"2048x7168", "64x7168", "1536x4096", "768x2048", "7168x64", "2048x768", NULL};
static const char *const mlp_defaults[] = {"qwen3-0.6b", "qwen3-1.7b", "v3.2-tp32", NULL};
static const char *const moe_defaults[] = {"qwen3-30b", "qwen3-30b-tp12", "v3.2-tp32", NULL};

const char *case_default(enum case_kind kind, size_t i)
{
    return kind == CASE_GEMV ? gemv_defaults[i] : kind == CASE_MLP ? mlp_defaults[i] : moe_defaults[i];
}

const char *case_named(enum case_kind kind, size_t i, char text[64])
{
    size_t left = kind == CASE_GEMV ? i / 2 : i;

    for (size_t m = 0; m < ARRAY_LENGTH(models); m++) {
        if (kind == CASE_MOE && models[m].top_k == 0)
            continue;
        if (left-- == 0) {
            snprintf(text, 64, "%s%s", models[m].name, kind != CASE_GEMV ? "" : i % 2 == 0 ? "-gate" : "-down");
            return text;
        }
    }
    return NULL;
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

static bool find_named(struct bench_case *what, const char *text)
{
    char name[64];

    for (size_t i = 0; case_named(what->kind, i, name); i++) {
        size_t length;

        if (strcmp(text, name) != 0)
            continue;
        length = strlen(name) - (what->kind == CASE_GEMV ? strlen("-gate") : 0);
        for (size_t m = 0; m < ARRAY_LENGTH(models); m++) {
            if (strlen(models[m].name) != length || strncmp(models[m].name, name, length) != 0)
                continue;
            what->rows = models[m].neurons;
            what->columns = models[m].hidden;
            if (what->kind == CASE_GEMV && i % 2 == 1) {
                what->rows = models[m].hidden;
                what->columns = models[m].neurons;
            }
            what->top_k = what->kind == CASE_MOE ? models[m].top_k : 1;
            return true;
        }
    }
    return false;
}

static int unknown_case(enum case_kind kind, const char *text, struct err *err)
{
    char names[512] = "", name[64];

    for (size_t i = 0; case_named(kind, i, name); i++)
        snprintf(names + strlen(names), sizeof(names) - strlen(names), ", %s", name);
    return err_set(err, -EINVAL, ERR_BAD_REQUEST, "case %.60s is unknown: NxK with numbers up to %u, all%s", text, LAYOUT_HIDDEN_MAX,
                   names);
}

int case_init(struct bench_case *ret_case, enum case_kind kind, const char *text, struct err *err)
{
    struct bench_case what = {.kind = kind, .top_k = kind == CASE_MOE ? 8 : 1};
    int r;

    if (!find_named(&what, text) && !parse_shape(text, &what.rows, &what.columns))
        return unknown_case(kind, text, err);
    r = kind == CASE_GEMV ? layout_mlp_init(&what.layout, what.rows, 0, what.columns, LAYOUT_TILE_ROWS, err)
                          : layout_mlp_init(&what.layout, what.columns, 0, what.rows, LAYOUT_TILE_ROWS, err);
    if (r < 0)
        return err_prefix(err, "case %s", text);
    what.step_params = (double)what.rows * what.columns * (kind == CASE_GEMV ? 1 : 3) * what.top_k;
    snprintf(what.name, sizeof(what.name), "%s", text);
    *ret_case = what;
    return 0;
}

uint32_t case_inputs(const struct bench_case *what)
{
    return what->columns;
}

uint32_t case_outputs(const struct bench_case *what)
{
    return what->kind == CASE_GEMV ? what->rows : what->columns;
}

#include "tests/bench/prefill.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/batch.h"
#include "kernels/bits.h"
#include "kernels/fpenv.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "tests/bench/ours.h"
#include "tests/bench/rival.h"
#include "tests/bench/stats.h"
#include "tests/bench/team.h"

#define RUN_NS (12 * CLOCK_NS_PER_MS) /* of one measurement */
#define PEAK_CALLS 8
#define TOLERANCE 0x1p-15 /* OpenBLAS', of the results' root mean square */
#define COLD_BYTES (UINT64_C(1) << 30)
#define LINE_FLOATS (LAYOUT_ALIGN / sizeof(float))

static const uint32_t token_counts[] = {1, 2, 4, 5, 8, 16, 32, 64, 128, 256, PREFILL_TOKENS_MAX};
static const char *const cases[] = {"768x2048", "2048x768", "1536x4096"};

/* The same matrix many times over where it is to be cold, walked round. */
struct copies {
    struct memory memory;
    size_t item_bytes, count, next;
};

enum kind {
    BATCH,
    DECODE, /* one token */
    OPENBLAS,
    PEAK,
    KIND_COUNT_, /* not a kind */
};

struct prefill {
    const struct settings *settings;
    const struct bench_case *what;
    const struct tiers_variant *variant;
    struct team *team;
    struct copies ours, floats;
    struct tiers_token tokens[PREFILL_TOKENS_MAX];
    float *x, *v, *y, *c; /* binary32 [tokens][columns], x' [tokens][stride], outputs [tokens][rows] */
    uint8_t *scratch;     /* [threads] */
    bool blas;
    uint32_t count; /* of tokens now */
    const uint8_t *item;
    double peak_flops; /* of one member's call */
};

static uint8_t *copies_next(struct copies *copies)
{
    uint8_t *item = (uint8_t *)copies->memory.at + copies->next * copies->item_bytes;

    copies->next = copies->next + 1 < copies->count ? copies->next + 1 : 0;
    return item;
}

static int copies_init(struct copies *copies, const struct settings *settings, size_t item_bytes, struct err *err)
{
    uint64_t pool = settings->pool_bytes ? settings->pool_bytes : COLD_BYTES, four_caches = 4 * (uint64_t)memory_last_cache();

    if (!settings->pool_bytes && four_caches > pool)
        pool = four_caches;
    if (pool > memory_available() / 3)
        pool = memory_available() / 3;
    copies->item_bytes = item_bytes;
    copies->count = settings->cold && pool > item_bytes ? (size_t)(pool / item_bytes) : 1;
    copies->next = 0;
    return memory_map(&copies->memory, settings->memory, copies->count * item_bytes, err);
}

static void copies_fill(struct copies *copies)
{
    for (size_t i = 1; i < copies->count; i++)
        memcpy((uint8_t *)copies->memory.at + i * copies->item_bytes, copies->memory.at, copies->item_bytes);
}

static int pack(struct prefill *prefill, struct err *err)
{
    struct weights weights;
    int r = weights_init(&weights, prefill->what, prefill->settings->subnormals, 1, err);

    if (r < 0)
        return r;
    r = copies_init(&prefill->ours, prefill->settings, ours_item_bytes(prefill->what), err);
    if (r == 0)
        r = ours_pack(prefill->what, &weights, prefill->ours.memory.at, err);
    if (r == 0)
        copies_fill(&prefill->ours);
    if (r == 0 && prefill->blas) {
        r = copies_init(&prefill->floats, prefill->settings, rival_item_bytes(&rival_openblas, prefill->what), err);
        if (r == 0) {
            rival_pack(&rival_openblas, &weights, prefill->floats.memory.at);
            copies_fill(&prefill->floats);
        }
    }
    weights_release(&weights);
    return r;
}

static float random_x(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return kernels_bf16_to_f32(kernels_bf16_of_f32((float)(int32_t)*state * 0x1p-31f));
}

/* x' of each token an odd number of lines from the next one's. */
static int make_tokens(struct prefill *prefill, struct err *err)
{
    const struct bench_case *what = prefill->what;
    uint32_t floats = layout_vector_floats(&what->layout.down), state = 1;
    size_t stride = (size_t)size_round_up(floats, LINE_FLOATS) + ((floats + LINE_FLOATS - 1) / LINE_FLOATS % 2 ? 0 : LINE_FLOATS);
    size_t x = (size_t)PREFILL_TOKENS_MAX * what->columns, y = (size_t)PREFILL_TOKENS_MAX * what->rows;
    _cleanup_(freep) uint16_t *bits = malloc(what->columns * sizeof(*bits));

    prefill->x = aligned_alloc(LAYOUT_ALIGN, x * sizeof(float));
    prefill->v = aligned_alloc(LAYOUT_ALIGN, PREFILL_TOKENS_MAX * stride * sizeof(float));
    prefill->y = aligned_alloc(LAYOUT_ALIGN, y * sizeof(float));
    prefill->c = aligned_alloc(LAYOUT_ALIGN, y * sizeof(float));
    prefill->scratch = aligned_alloc(LAYOUT_ALIGN, prefill->settings->threads * batch_scratch_bytes());
    if (!bits || !prefill->x || !prefill->v || !prefill->y || !prefill->c || !prefill->scratch)
        return err_no_memory(err, "the vectors of 512 tokens", (2 * x + 2 * y) * sizeof(float));
    memset(prefill->c, 0, y * sizeof(float));
    for (uint32_t t = 0; t < PREFILL_TOKENS_MAX; t++) {
        float *v = prefill->v + t * stride;
        int e;

        for (uint32_t k = 0; k < what->columns; k++) {
            prefill->x[(size_t)t * what->columns + k] = random_x(&state);
            bits[k] = kernels_bf16_of_f32(prefill->x[(size_t)t * what->columns + k]);
        }
        e = prefill->variant->ops->normalise_bf16(v, floats, bits, what->columns);
        prefill->tokens[t] =
            (struct tiers_token){.v = v, .undo = bits_pow2(e - 15), .weight = 1.0f, .out = prefill->y + (size_t)t * what->rows};
    }
    return 0;
}

static struct tiers_run run_of(const struct prefill *prefill, const uint8_t *item, uint32_t first, uint32_t count)
{
    const struct layout_matrix *down = &prefill->what->layout.down;

    return tiers_run_of(down, item - down->scales_offset, first, count); /* an item is a down matrix alone */
}

/* A member's rows. */
static void multiply(void *data, uint32_t member)
{
    struct prefill *prefill = data;
    uint32_t panels = prefill->what->layout.down.panels, threads = prefill->settings->threads;
    uint32_t first = (uint32_t)((uint64_t)panels * member / threads), end = (uint32_t)((uint64_t)panels * (member + 1) / threads);
    uint32_t row = first * LAYOUT_PANEL_ROWS, row_end = end * LAYOUT_PANEL_ROWS;
    struct tiers_token tokens[PREFILL_TOKENS_MAX];
    fpenv_saved saved = fpenv_enter();

    if (row_end > prefill->what->rows)
        row_end = prefill->what->rows;
    if (first < end) {
        struct tiers_run run = run_of(prefill, prefill->item, first, end - first);

        memcpy(tokens, prefill->tokens, prefill->count * sizeof(*tokens));
        for (uint32_t t = 0; t < prefill->count; t++)
            tokens[t].out += row;
        batch_down(prefill->variant->ops, &run, tokens, prefill->count, row_end - row, prefill->scratch + member * batch_scratch_bytes());
    }
    fpenv_leave(saved);
}

static void peak(void *data, uint32_t member)
{
    struct prefill *prefill = data;
    double flops = 0.0;

    for (int i = 0; i < PEAK_CALLS; i++)
        flops += prefill_peak(prefill->variant->tier);
    if (member == 0)
        prefill->peak_flops = flops;
}

/* FLOPs per second of some calls; 0: there is no such thing here. */
static double measure(struct prefill *prefill, enum kind kind, uint32_t tokens, uint64_t calls)
{
    const struct bench_case *what = prefill->what;
    uint64_t begin;

    if ((kind == OPENBLAS && !prefill->blas) || (kind == PEAK && prefill->variant->tier == KERNELS_REF))
        return 0.0;
    if (kind == PEAK) {
        begin = team_run(prefill->team, peak, prefill).wall_ns;
        return prefill->peak_flops * prefill->settings->threads * 1e9 / (double)begin;
    }
    prefill->count = kind == DECODE ? 1 : tokens;
    begin = clock_now_ns();
    for (uint64_t i = 0; i < calls; i++) {
        if (kind == OPENBLAS) {
            prefill_blas_multiply((const float *)(const void *)copies_next(&prefill->floats), what->rows, what->columns, prefill->x, tokens,
                                  prefill->c);
        } else {
            prefill->item = copies_next(&prefill->ours);
            team_run(prefill->team, multiply, prefill);
        }
    }
    return 2.0 * what->rows * what->columns * prefill->count * (double)calls * 1e9 / (double)(clock_now_ns() - begin);
}

/* How many calls fill a measurement. */
static uint64_t calibrate(struct prefill *prefill, enum kind kind, uint32_t tokens)
{
    double flops = 2.0 * prefill->what->rows * prefill->what->columns * (kind == DECODE ? 1 : tokens), rate;
    uint64_t calls;

    measure(prefill, kind, tokens, 1);
    rate = measure(prefill, kind, tokens, 1);
    calls = (uint64_t)(rate * (double)RUN_NS / 1e9 / flops);
    return calls > 0 ? calls : 1;
}

static double ratio(double a, double b)
{
    return b > 0.0 ? a / b : NAN;
}

static struct prefill_result measure_tokens(struct prefill *prefill, uint32_t tokens)
{
    uint32_t rounds = prefill->settings->rounds;
    double rate[SETTINGS_ROUNDS_MAX], of_peak[SETTINGS_ROUNDS_MAX], vs_blas[SETTINGS_ROUNDS_MAX], over[SETTINGS_ROUNDS_MAX];
    uint64_t calls[KIND_COUNT_];
    struct prefill_result result = {.tokens = tokens};

    for (int kind = BATCH; kind < KIND_COUNT_; kind++)
        calls[kind] = calibrate(prefill, (enum kind)kind, tokens);
    for (uint32_t round = 0; round < rounds; round++) {
        double rates[KIND_COUNT_];

        for (uint32_t i = 0; i < KIND_COUNT_; i++) {
            enum kind kind = (enum kind)((round + i) % KIND_COUNT_);

            rates[kind] = measure(prefill, kind, tokens, calls[kind]);
        }
        rate[round] = rates[BATCH] / 1e9;
        of_peak[round] = ratio(rates[BATCH], rates[PEAK]);
        vs_blas[round] = ratio(rates[BATCH], rates[OPENBLAS]);
        over[round] = ratio(rates[BATCH], rates[DECODE]);
    }
    result.spread = isnan(of_peak[0]) ? stats_spread(rate, rounds) : stats_spread(of_peak, rounds);
    result.gflops = stats_median(rate, rounds);
    result.of_peak = isnan(of_peak[0]) ? NAN : stats_median(of_peak, rounds);
    result.vs_openblas = isnan(vs_blas[0]) ? NAN : stats_median(vs_blas, rounds);
    result.over_decodes = stats_median(over, rounds);
    return result;
}

static int wrong(const struct prefill *prefill, const char *name, uint32_t tokens, uint32_t token, uint32_t row, float y, float wanted,
                 struct err *err)
{
    return err_set(err, -EBADMSG, ERR_INTERNAL, "%s computes %s wrong: token %u of %u, row %u is %a, not %a", name, prefill->what->name,
                   token, tokens, row, (double)y, (double)wanted);
}

static void spoil(const struct prefill *prefill, const char *name, float *last)
{
    if (prefill->settings->corrupt && strcmp(prefill->settings->corrupt, name) == 0)
        *last += *last * 0x1p-10f;
}

/* Each token alone by the variant's own decode, the first and the last by the reference, too. */
static int check_batch(struct prefill *prefill, uint32_t tokens, float *alone, struct err *err)
{
    const struct tiers_ops *reference = tiers_variants(&(size_t){0})->ops;
    uint32_t rows = prefill->what->rows;
    struct tiers_run run = run_of(prefill, prefill->ours.memory.at, 0, prefill->what->layout.down.panels);
    fpenv_saved saved = fpenv_enter();
    int r = 0;

    memset(prefill->y, 0, (size_t)tokens * rows * sizeof(float));
    prefill->count = tokens;
    prefill->item = prefill->ours.memory.at;
    team_run(prefill->team, multiply, prefill);
    spoil(prefill, prefill->variant->name, &prefill->y[(size_t)tokens * rows - 1]);
    for (uint32_t t = 0; t < tokens && r == 0; t++) {
        const struct tiers_token *token = &prefill->tokens[t];

        for (int by_reference = 0; by_reference < (t == 0 || t + 1 == tokens ? 2 : 1) && r == 0; by_reference++) {
            memset(alone, 0, rows * sizeof(*alone));
            (by_reference ? reference : prefill->variant->ops)->down(&run, token->v, token->undo, 1.0f, alone, rows);
            for (uint32_t row = 0; row < rows && r == 0; row++)
                if (memcmp(&alone[row], &token->out[row], sizeof(float)) != 0)
                    r = wrong(prefill, prefill->variant->name, tokens, t, row, token->out[row], alone[row], err);
        }
    }
    fpenv_leave(saved);
    return r;
}

/* After check_batch. */
static int check_blas(struct prefill *prefill, uint32_t tokens, struct err *err)
{
    uint32_t rows = prefill->what->rows;
    size_t count = (size_t)tokens * rows;
    double squares = 0.0, allowed;

    prefill_blas_multiply(prefill->floats.memory.at, rows, prefill->what->columns, prefill->x, tokens, prefill->c);
    spoil(prefill, "openblas", &prefill->c[count - 1]);
    for (size_t i = 0; i < count; i++)
        squares += (double)prefill->y[i] * (double)prefill->y[i];
    allowed = TOLERANCE * sqrt(squares / (double)count);
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)prefill->c[i] - (double)prefill->y[i]) <= allowed))
            return wrong(prefill, "openblas", tokens, (uint32_t)(i / rows), (uint32_t)(i % rows), prefill->c[i], prefill->y[i], err);
    return 0;
}

static int check(struct prefill *prefill, struct err *err)
{
    _cleanup_(freep) float *alone = malloc(prefill->what->rows * sizeof(*alone));
    int r = 0;

    if (!alone)
        return err_no_memory(err, "a token's result", prefill->what->rows * sizeof(*alone));
    for (size_t i = 0; i < ARRAY_LENGTH(token_counts) && r == 0; i++) {
        r = check_batch(prefill, token_counts[i], alone, err);
        if (r == 0 && prefill->blas)
            r = check_blas(prefill, token_counts[i], err);
    }
    return r;
}

static int run_case(struct prefill *prefill, struct err *err)
{
    int r = pack(prefill, err);

    if (r == 0)
        r = make_tokens(prefill, err);
    if (r == 0)
        r = team_new(&prefill->team, prefill->settings->threads, err);
    if (r == 0)
        r = check(prefill, err);
    for (size_t i = 0; i < ARRAY_LENGTH(token_counts) && r == 0; i++) {
        struct prefill_result result = measure_tokens(prefill, token_counts[i]);

        prefill_report(prefill->what, prefill->settings, prefill->variant->name, &result);
    }
    team_free(prefill->team);
    memory_unmap(&prefill->ours.memory);
    memory_unmap(&prefill->floats.memory);
    free(prefill->x);
    free(prefill->v);
    free(prefill->y);
    free(prefill->c);
    free(prefill->scratch);
    return r;
}

/* The variants that the options name, else the one in use. */
static bool wanted(const struct settings *settings, const char *name)
{
    return settings->variants ? variant_named(settings->variants, name) : strcmp(name, kernels_variant_name()) == 0;
}

static int run_variants(const struct options *options, const char *text, bool blas, struct err *err)
{
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);
    struct bench_case what;
    int r = case_init(&what, CASE_GEMV, text, err);

    for (size_t i = 0; i < count && r == 0; i++) {
        _cleanup_(freep) struct prefill *prefill = NULL;

        if (!wanted(&options->settings, variants[i].name))
            continue;
        if (!kernels_tier_available(variants[i].tier))
            return err_set(err, -ENOTSUP, ERR_BAD_REQUEST, "variant %s: this CPU or its operating system lacks what it needs",
                           variants[i].name);
        prefill = calloc(1, sizeof(*prefill));
        if (!prefill)
            return err_no_memory(err, "the figures of a case", sizeof(*prefill));
        prefill->settings = &options->settings;
        prefill->what = &what;
        prefill->variant = &variants[i];
        prefill->blas = blas;
        r = run_case(prefill, err);
    }
    return r;
}

int prefill_run(const struct options *options, struct err *err)
{
    bool all = options->text && strcmp(options->text, "all") == 0;
    struct err why;
    bool blas = prefill_blas_open(options->settings.threads, &why) == 0;
    char name[64];
    int r = 0;

    if (!blas)
        fprintf(stderr, "fp9-bench: openblas is left out: %s\n", why.message);
    prefill_report_begin(&options->settings);
    if (options->text && !all)
        r = run_variants(options, options->text, blas, err);
    for (size_t i = 0; all && r == 0 && case_named(CASE_GEMV, i, name); i++)
        r = run_variants(options, name, blas, err);
    for (size_t i = 0; !options->text && r == 0 && i < ARRAY_LENGTH(cases); i++)
        r = run_variants(options, cases[i], blas, err);
    if (r == 0 || options->settings.json) /* what was measured before a failure stays an array */
        prefill_report_end(&options->settings);
    return r;
}

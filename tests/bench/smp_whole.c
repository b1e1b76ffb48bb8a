/* Many tokens through a MoE layer. Every round: all threads, one thread, some decodes by all threads, the FMA peak. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/phases.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "tests/bench/pool.h"
#include "tests/bench/prefill.h"
#include "tests/bench/smp.h"
#include "tests/bench/stats.h"
#include "tests/bench/team.h"

#define EXPERTS 128
#define DECODES 32 /* of a round */
#define PEAK_CALLS 40
#define CHECKED 3 /* tokens that are compared with one core's decode */

struct whole {
    const struct bench_case *what;
    const struct settings *settings;
    struct kernels_layer layer;
    struct variant variant;
    struct pool pool;
    struct team *team;
    uint16_t *x;    /* owned, [tokens][hidden] */
    int32_t *ids;   /* owned, [tokens][top_k], distinct in a token */
    float *weights; /* owned */
    float *y;       /* owned */
    void *scratch;  /* owned */
    uint32_t tokens;
    /* of a run */
    uint32_t threads, first, count; /* tokens */
    struct phases phases;
    struct smp_barrier barrier;
    uint64_t busy[PHASES_MEMBERS_MAX]; /* ns */
    double peak_flops;
};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void fill_inputs(struct whole *whole)
{
    uint32_t top_k = whole->what->top_k, hidden = whole->what->layout.hidden;
    uint64_t state = 1;

    for (size_t i = 0; i < (size_t)whole->tokens * hidden; i++)
        whole->x[i] = kernels_bf16_of_f32((float)((double)next_random(&state) * 0x1p-30 - 1.0));
    for (uint32_t t = 0; t < whole->tokens; t++)
        for (uint32_t k = 0; k < top_k; k++) {
            int32_t *ids = whole->ids + (size_t)t * top_k;
            uint32_t j;

            do {
                ids[k] = (int32_t)(next_random(&state) % whole->layer.expert_count);
                for (j = 0; ids[j] != ids[k]; j++)
                    ;
            } while (j < k);
            whole->weights[(size_t)t * top_k + k] = 0.0625f + 0.03125f * (float)(k % 5);
        }
}

static void work(void *data, uint32_t member)
{
    struct whole *whole = data;
    uint32_t top_k = whole->what->top_k, hidden = whole->what->layout.hidden;
    size_t first = whole->first;
    struct phases_job job = {
        .layer = &whole->layer,
        .tokens = whole->count,
        .top_k = top_k,
        .x = whole->x + first * hidden,
        .ids = whole->ids + first * top_k,
        .weights = whole->weights + first * top_k,
        .partial = whole->y + first * hidden,
    };
    uint64_t from = clock_now_ns();

    if (member >= whole->threads)
        return;
    if (member == 0)
        phases_begin(&whole->phases, &job, whole->threads, whole->scratch);
    whole->busy[member] += clock_now_ns() - from;
    smp_barrier(&whole->barrier, whole->threads);
    for (uint32_t phase = 0; phase < phases_count(&whole->phases); phase++) {
        from = clock_now_ns();
        phases_run(&whole->phases, phase, member, NULL, NULL);
        whole->busy[member] += clock_now_ns() - from;
        smp_barrier(&whole->barrier, whole->threads);
    }
}

static void peak(void *data, uint32_t member)
{
    struct whole *whole = data;
    double flops = 0.0;

    for (int i = 0; i < PEAK_CALLS; i++)
        flops += prefill_peak(whole->variant.tier->tier);
    if (member == 0)
        whole->peak_flops = flops;
}

/* Nanoseconds for tokens [first, first + count). */
static double run(struct whole *whole, uint32_t threads, uint32_t first, uint32_t count)
{
    whole->threads = threads;
    whole->first = first;
    whole->count = count;
    memset(whole->busy, 0, sizeof(whole->busy));
    return (double)team_run(whole->team, work, whole).wall_ns;
}

static int check(struct whole *whole, struct err *err)
{
    uint32_t top_k = whole->what->top_k, hidden = whole->what->layout.hidden;
    _cleanup_(freep) float *want = malloc(hidden * sizeof(*want));
    _cleanup_(freep) void *scratch = aligned_alloc(LAYOUT_ALIGN, size_round_up(kernels_scratch_bytes(&whole->layer), LAYOUT_ALIGN));

    if (!want || !scratch)
        return err_no_memory(err, "a result to compare with", hidden * sizeof(*want));
    run(whole, whole->settings->threads, 0, whole->tokens);
    for (uint32_t i = 0; i < CHECKED; i++) {
        size_t t = (size_t)(whole->tokens - 1) * i / (CHECKED - 1);

        kernels_moe(&whole->layer, whole->x + t * hidden, whole->ids + t * top_k, whole->weights + t * top_k, 1, top_k, want, scratch);
        if (memcmp(want, whole->y + t * hidden, hidden * sizeof(*want)) != 0)
            return err_set(err, -EBADMSG, ERR_INTERNAL, "%s: token %zu of %u is not what it is alone", whole->what->name, t, whole->tokens);
    }
    return 0;
}

static double imbalance(const struct whole *whole)
{
    uint64_t longest = 0, sum = 0;

    for (uint32_t i = 0; i < whole->threads; i++) {
        sum += whole->busy[i];
        longest = whole->busy[i] > longest ? whole->busy[i] : longest;
    }
    return (double)longest * whole->threads / (double)sum;
}

static void measure(struct whole *whole)
{
    double rate[SETTINGS_ROUNDS_MAX], of_peak[SETTINGS_ROUNDS_MAX], speedup[SETTINGS_ROUNDS_MAX], over[SETTINGS_ROUNDS_MAX],
        stream[SETTINGS_ROUNDS_MAX], uneven[SETTINGS_ROUNDS_MAX];
    uint32_t rounds = whole->settings->rounds, threads = whole->settings->threads;
    uint32_t decodes = whole->tokens < DECODES ? whole->tokens : DECODES;
    struct smp_whole result = {.tokens = whole->tokens};

    for (uint32_t round = 0; round < rounds; round++) {
        double ns = run(whole, threads, 0, whole->tokens), flops, top, decode = 0.0;
        struct phases_cost cost = phases_cost(&whole->phases);

        uneven[round] = imbalance(whole);
        top = (double)team_run(whole->team, peak, whole).wall_ns;
        top = whole->peak_flops * threads / top;
        for (uint32_t t = 0; t < decodes; t++)
            decode += run(whole, threads, t, 1);
        speedup[round] = run(whole, 1, 0, whole->tokens) / ns;
        flops = 2.0 * (double)cost.params / ns; /* a nanosecond: GFLOP/s */
        rate[round] = flops;
        of_peak[round] = flops / top;
        over[round] = decode / decodes * whole->tokens / ns;
        stream[round] = (double)cost.weight_bytes / ns;
        result.tiles = (double)cost.tiles;
        result.avg_tile_batch = (double)cost.tile_tokens / (double)cost.tiles;
    }
    result.gflops = stats_median(rate, rounds);
    result.of_peak = whole->peak_flops > 0.0 ? stats_median(of_peak, rounds) : (double)NAN;
    result.speedup = stats_median(speedup, rounds);
    result.over_decodes = stats_median(over, rounds);
    result.weight_stream_gb = stats_median(stream, rounds);
    result.imbalance = stats_median(uneven, rounds);
    smp_report_whole(whole->what, whole->settings, &result);
}

static int prepare(struct whole *whole, struct err *err)
{
    struct settings alone = *whole->settings;
    uint32_t top_k = whole->what->top_k, hidden = whole->what->layout.hidden;
    size_t values = (size_t)whole->tokens * hidden, slots = (size_t)whole->tokens * top_k, scratch;
    int r;

    alone.threads = 1;
    alone.cold = true;
    alone.pool_bytes = EXPERTS * whole->what->layout.expert_bytes;
    r = pool_init(&whole->pool, whole->what, &alone, &whole->variant, memory_available() / 4 * 3, err);
    if (r == 0)
        r = pools_fill(&whole->pool, 1, whole->what, &alone, err);
    if (r == 0)
        r = team_new(&whole->team, whole->settings->threads, err);
    if (r < 0)
        return r;
    whole->layer = (struct kernels_layer){.layout = &whole->what->layout, .experts = whole->pool.items, .expert_count = whole->pool.count};
    scratch = size_round_up(phases_scratch_bytes(&whole->layer, whole->tokens, top_k, whole->settings->threads), LAYOUT_ALIGN);
    whole->x = malloc(values * sizeof(*whole->x));
    whole->y = malloc(values * sizeof(*whole->y));
    whole->ids = malloc(slots * sizeof(*whole->ids));
    whole->weights = malloc(slots * sizeof(*whole->weights));
    whole->scratch = aligned_alloc(LAYOUT_ALIGN, scratch);
    if (!whole->x || !whole->y || !whole->ids || !whole->weights || !whole->scratch)
        return err_no_memory(err, "tokens", values * 6 + scratch);
    fill_inputs(whole);
    return 0;
}

int smp_whole(const struct bench_case *what, const struct options *options, struct err *err)
{
    struct whole whole = {.what = what, .settings = &options->settings, .tokens = options->tokens};
    struct variant all[VARIANTS_MAX];
    size_t count = variants_all(all), i = 0;
    int r;

    while (i + 1 < count && !variant_chosen(&all[i]))
        i++;
    whole.variant = all[i];
    r = prepare(&whole, err);
    if (r == 0)
        r = check(&whole, err);
    if (r == 0)
        measure(&whole);
    team_free(whole.team);
    pool_release(&whole.pool);
    memory_unmap(&whole.pool.memory);
    free(whole.x);
    free(whole.y);
    free(whole.ids);
    free(whole.weights);
    free(whole.scratch);
    return r;
}

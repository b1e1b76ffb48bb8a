#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bits.h"
#include "kernels/fpenv.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "tests/bench/bench.h"

#define COLD_NS (60 * CLOCK_NS_PER_MS) /* of one variant in one round */
#define HOT_NS (20 * CLOCK_NS_PER_MS)
#define READERS_MAX 8

/* One thread's part of the pool and its own vectors. */
struct worker {
    const struct bench_case *what;
    const uint8_t *items; /* of this thread */
    uint32_t count;
    uint32_t cursor;      /* moves on from round to round: what comes next was not touched for a pool's length */
    uint16_t *x;
    float *v, *y; /* v: x' of a gemv */
    float undo;
    void *scratch;
    float weights[BENCH_TOP_K_MAX];

    /* the measurement under way */
    const struct tiers_ops *ops;    /* a kernel, or */
    const struct bench_reader *reader;
    uint64_t for_ns;
    double steps_per_s;
    uint64_t sink;
};

/* The items of a step: spread over the part, ascending, so that no expert happens to follow the one before in memory. */
static void step_items(const struct worker *worker, int32_t items[BENCH_TOP_K_MAX])
{
    uint32_t top_k = worker->what->top_k, stride = worker->count / top_k, offset = worker->cursor % stride;

    for (uint32_t j = 0; j < top_k; j++)
        items[j] = (int32_t)(offset + j * stride);
}

static void step_kernel(struct worker *worker)
{
    const struct bench_case *what = worker->what;
    const struct layout_mlp *layout = &what->layout;
    int32_t items[BENCH_TOP_K_MAX];

    step_items(worker, items);
    if (what->kind == BENCH_GEMV) {
        const uint8_t *item = worker->items + (size_t)items[0] * what->item_bytes;
        struct tiers_run run = tiers_run_of(&layout->down, item - layout->down.scales_offset, 0, layout->down.panels);

        worker->ops->down(&run, worker->v, worker->undo, 1.0f, worker->y, layout->hidden);
    } else {
        struct kernels_layer layer = {.layout = layout, .experts = worker->items, .expert_count = worker->count};

        if (what->kind == BENCH_MLP) {
            layer.experts += (size_t)items[0] * what->item_bytes;
            kernels_dense(&layer, worker->x, 1, worker->y, worker->scratch);
        } else {
            kernels_moe(&layer, worker->x, items, worker->weights, 1, what->top_k, worker->y, worker->scratch);
        }
    }
}

static void step_reader(struct worker *worker)
{
    int32_t items[BENCH_TOP_K_MAX];

    step_items(worker, items);
    for (uint32_t j = 0; j < worker->what->top_k; j++)
        worker->sink ^= worker->reader->read(worker->items + (size_t)items[j] * worker->what->item_bytes, worker->what->item_bytes);
}

static void *worker_run(void *data)
{
    struct worker *worker = data;
    fpenv_saved saved = fpenv_enter();
    uint64_t begin = clock_now_ns(), now;
    uint64_t steps = 0;

    do {
        if (worker->reader)
            step_reader(worker);
        else
            step_kernel(worker);
        worker->cursor++;
        steps++;
        now = clock_now_ns();
    } while (now - begin < worker->for_ns);
    worker->steps_per_s = (double)steps * 1e9 / (double)(now - begin);
    fpenv_leave(saved);
    return NULL;
}

/* Steps per second of all threads together. */
static double run_all(struct worker *workers, uint32_t count, const struct tiers_ops *ops, const struct bench_reader *reader,
                      uint64_t for_ns)
{
    pthread_t threads[BENCH_THREADS_MAX];
    uint32_t started = 0;
    double sum = 0.0;

    for (uint32_t i = 0; i < count; i++) {
        workers[i].ops = ops;
        workers[i].reader = reader;
        workers[i].for_ns = for_ns;
        workers[i].steps_per_s = 0.0;
    }
    for (; started + 1 < count; started++)
        if (pthread_create(&threads[started], NULL, worker_run, &workers[started + 1]) != 0)
            break;
    worker_run(&workers[0]);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < count; i++)
        sum += workers[i].steps_per_s;
    return started + 1 == count ? sum : -1.0;
}

static void worker_release(struct worker *worker)
{
    free(worker->x);
    free(worker->v);
    free(worker->y);
    free(worker->scratch);
}

static bool worker_init(struct worker *worker, const struct bench_case *what, const uint8_t *items, uint32_t count)
{
    const struct layout_mlp *layout = &what->layout;
    struct kernels_layer layer = {.layout = layout};
    uint32_t inputs = what->kind == BENCH_GEMV ? layout->neurons : layout->hidden;
    uint32_t floats = layout_vector_floats(&layout->down);

    *worker = (struct worker){.what = what, .items = items, .count = count};
    worker->x = malloc(inputs * sizeof(*worker->x));
    worker->v = aligned_alloc(64, floats * sizeof(float));
    worker->y = calloc(layout->hidden, sizeof(float));
    worker->scratch = aligned_alloc(64, kernels_scratch_bytes(&layer));
    if (!worker->x || !worker->v || !worker->y || !worker->scratch)
        return false;
    for (uint32_t k = 0; k < inputs; k++)
        worker->x[k] = kernels_bf16_of_f32((float)(k % 17) * 0.1f - 0.8f);
    if (what->kind == BENCH_GEMV)
        worker->undo = bits_pow2(tiers_active()->normalise_bf16(worker->v, floats, worker->x, inputs) - 15);
    for (uint32_t j = 0; j < what->top_k; j++)
        worker->weights[j] = 0.125f;
    return true;
}

/* y is added to in place, over and over: keep it finite and no subnormal. */
static void clear_outputs(struct worker *workers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        memset(workers[i].y, 0, workers[i].what->layout.hidden * sizeof(float));
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(double *values, double q)
{
    qsort(values, BENCH_ROUNDS, sizeof(*values), compare_doubles);
    return values[(size_t)lround(q * (BENCH_ROUNDS - 1))];
}

struct series {
    const struct tiers_variant *variant;
    double params[BENCH_ROUNDS], bytes[BENCH_ROUNDS], of_read[BENCH_ROUNDS], of_limit[BENCH_ROUNDS];
};

static struct bench_result summarise(struct series *series, double *reads)
{
    struct bench_result result = {.variant = series->variant};

    result.gparam_s = quantile(series->params, 0.5) / 1e9;
    result.spread = (quantile(series->params, 0.75) - quantile(series->params, 0.25)) / 1e9 / result.gparam_s;
    result.gb_s = quantile(series->bytes, 0.5) / 1e9;
    result.read_gb_s = quantile(reads, 0.5) / 1e9;
    result.of_read = quantile(series->of_read, 0.5);
    result.of_limit = quantile(series->of_limit, 0.5);
    return result;
}

static int measure(struct worker *workers, const struct bench_settings *settings, struct series *series, int count, double *reads,
                   struct err *err)
{
    const struct bench_case *what = workers->what;
    uint64_t for_ns = settings->cold ? COLD_NS : HOT_NS;
    double step_bytes = (double)what->item_bytes * what->top_k;

    for (int round = -1; round < BENCH_ROUNDS; round++) { /* round -1 warms up */
        int at = round < 0 ? 0 : round;
        struct bench_reader reader;
        double best = 0.0, rate;

        for (size_t i = 0; bench_reader(i, &reader); i++) {
            rate = run_all(workers, settings->threads, NULL, &reader, for_ns) * step_bytes;
            if (rate > best)
                best = rate;
        }
        reads[at] = best;
        for (int i = 0; i < count; i++) {
            int r = kernels_select(series[i].variant->name, err);

            if (r < 0)
                return r;
            clear_outputs(workers, settings->threads);
            rate = run_all(workers, settings->threads, series[i].variant->ops, NULL, for_ns);
            if (rate < 0.0 || best <= 0.0)
                return err_set(err, -EAGAIN, ERR_BUSY, "%u threads could not be started", settings->threads);
            series[i].params[at] = rate * what->step_params;
            series[i].bytes[at] = rate * step_bytes;
            series[i].of_read[at] = rate * step_bytes / best;
            series[i].of_limit[at] = rate * what->step_params * 1.125 / best;
        }
    }
    return 0;
}

int bench_measure(const struct bench_case *what, const struct bench_settings *settings, const struct bench_pool *pool,
                  struct bench_result ret_results[BENCH_RESULTS_MAX], struct err *err)
{
    static struct worker workers[BENCH_THREADS_MAX];
    struct series series[BENCH_RESULTS_MAX];
    double reads[BENCH_ROUNDS];
    size_t variants_count;
    const struct tiers_variant *variants = tiers_variants(&variants_count);
    uint32_t part = pool->count / settings->threads;
    int count = 0, r = 0;

    for (size_t i = 0; i < variants_count && count < BENCH_RESULTS_MAX; i++)
        if (settings->variant ? settings->variant == &variants[i] : kernels_tier_available(variants[i].tier))
            series[count++].variant = &variants[i];
    for (uint32_t i = 0; i < settings->threads; i++)
        if (!worker_init(&workers[i], what, pool->items + (size_t)i * part * what->item_bytes, part))
            r = err_no_memory(err, "a thread's vectors", what->item_bytes);
    if (r == 0)
        r = measure(workers, settings, series, count, reads, err);
    for (uint32_t i = 0; i < settings->threads; i++)
        worker_release(&workers[i]);
    if (r < 0)
        return r;
    for (int i = 0; i < count; i++)
        ret_results[i] = summarise(&series[i], reads);
    return count;
}

#include "tests/bench/run.h"

#include "kernels/fpenv.h"
#include "proto/base/clock.h"

struct job {
    struct run *run;
    uint64_t for_ns; /* 0: a number of steps */
    uint64_t least;  /* atomic: fewest steps of a member */
    uint64_t sink;   /* atomic: what was read, so that reading cannot be left out */
};

static uint64_t step(const struct run *run, uint32_t member, uint32_t *cursor)
{
    const uint8_t *items = pool_part(run->pool, member);
    int32_t ids[CASE_TOP_K_MAX];
    uint64_t sum = 0;

    pool_next(run->pool, cursor, run->what->top_k, ids);
    if (!run->reader) {
        variant_step(run->variant, run->what, &run->vectors[member], items, run->pool->part, ids);
        return 0;
    }
    for (uint32_t j = 0; j < run->what->top_k; j++)
        sum ^= run->reader->read(items + (size_t)ids[j] * run->pool->item_bytes, run->pool->item_bytes);
    return sum;
}

static void work(void *data, uint32_t member)
{
    struct job *job = data;
    const struct run *run = job->run;
    fpenv_saved saved = fpenv_enter();
    uint32_t cursor = run->pool->cursors[member];
    uint64_t steps = 0, sum = 0, least;

    if (job->for_ns == 0) {
        for (; steps < run->steps; steps++)
            sum ^= step(run, member, &cursor);
    } else {
        uint64_t end = clock_now_ns() + job->for_ns;

        do {
            sum ^= step(run, member, &cursor);
            steps++;
        } while (clock_now_ns() < end);
    }
    run->pool->cursors[member] = cursor;
    fpenv_leave(saved);
    __atomic_xor_fetch(&job->sink, sum, __ATOMIC_RELAXED);
    least = __atomic_load_n(&job->least, __ATOMIC_RELAXED);
    while (steps < least && !__atomic_compare_exchange_n(&job->least, &least, steps, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void begin(const struct run *run)
{
    for (uint32_t i = 0; run->variant && i < run->threads; i++)
        variant_begin(run->variant, run->what, &run->vectors[i]);
}

uint64_t run_calibrate(struct run *run, struct team *team, uint64_t for_ns)
{
    struct job job = {.run = run, .for_ns = for_ns, .least = UINT64_MAX};

    begin(run);
    team_run(team, work, &job);
    return job.least;
}

struct run_rate run_measure(struct run *run, struct team *team)
{
    struct job job = {.run = run, .least = UINT64_MAX};
    struct team_time time;

    begin(run);
    time = team_run(team, work, &job);
    return (struct run_rate){
        .steps_per_s = (double)run->steps * run->threads * 1e9 / (double)time.wall_ns,
        .imbalance = (double)time.wall_ns / (double)time.local_max_ns,
    };
}

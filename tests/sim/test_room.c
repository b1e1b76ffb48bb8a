/* Where the slots of a load will lie is known beforehand: fp9d's placement against an allocator of the test's own, over a life of models
 * that come and go between blocks of somebody else's. What does not fit in the pieces there are is refused, naming the largest, and
 * nothing is sent. test_buffer.py has the same with a real duck. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "proto/base/size.h"
#include "tests/sim/sim.h"

enum { MODELS = 6, LAYERS = 4, OTHERS = 12, NOBODY = 99, ROUNDS = 600 };

struct block {
    uint64_t begin, end;
    int owner; /* a model, or NOBODY */
};

struct space {
    uint64_t size;
    struct block blocks[MODELS * LAYERS + OTHERS]; /* by place */
    size_t count;
};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Free bytes before block i, or before the end. */
static uint64_t gap(const struct space *space, size_t i, uint64_t *ret_begin)
{
    *ret_begin = i ? space->blocks[i - 1].end : 0;
    return (i < space->count ? space->blocks[i].begin : space->size) - *ret_begin;
}

static void insert(struct space *space, size_t i, uint64_t begin, uint64_t bytes, int owner)
{
    assert_true(space->count < MODELS * LAYERS + OTHERS);
    memmove(&space->blocks[i + 1], &space->blocks[i], (space->count - i) * sizeof space->blocks[0]);
    space->blocks[i] = (struct block){begin, begin + bytes, owner};
    space->count++;
}

static bool first_fit(struct space *space, uint64_t bytes, int owner)
{
    for (size_t i = 0; i <= space->count; i++) {
        uint64_t begin;
        if (gap(space, i, &begin) < bytes)
            continue;
        insert(space, i, begin, bytes, owner);
        return true;
    }
    return false;
}

static void erase_owner(struct space *space, int owner)
{
    size_t kept = 0;
    for (size_t i = 0; i < space->count; i++)
        if (space->blocks[i].owner != owner)
            space->blocks[kept++] = space->blocks[i];
    space->count = kept;
}

/* Tells the core what is free, as a duck does; the number of pieces and the largest. */
static size_t tell_room(struct sim *sim, const struct space *space, uint64_t *ret_largest)
{
    uint64_t *ranges = calloc(space->count + 1, sizeof *ranges), begin;
    assert_non_null(ranges);
    size_t count = 0;
    *ret_largest = 0;
    for (size_t i = 0; i <= space->count; i++) {
        uint64_t bytes = gap(space, i, &begin);
        if (bytes)
            ranges[count++] = bytes;
        *ret_largest = bytes > *ret_largest ? bytes : *ret_largest;
    }
    core_duck_room(sim->core, 0, ranges, count);
    return count;
}

/* Weights of its own for each model. */
static const struct core_job *load(struct sim *sim, int model)
{
    char name[8];
    snprintf(name, sizeof name, "m%d", model);
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++)
        buf_release(&sim->records[i]);
    sim->salt = (uint32_t)model + 1;
    return sim_load(sim, name, 1, 64);
}

static void drop(struct sim *sim, int model)
{
    char name[8];
    uint64_t id;
    struct err err = {0};
    snprintf(name, sizeof name, "m%d", model);
    if (core_unload(sim->core, sim->now, "uid 0", name, true, &id, &err) < 0)
        fail_msg("%s", err.message);
    sim_run(sim, 5 * SIM_LATENCY);
}

/* What each layer takes: whole pages, a checksum of each expert behind its bytes. */
static void learn_sizes(struct sim *sim, uint64_t sizes[LAYERS])
{
    assert_int_equal(load(sim, 0)->state, CORE_JOB_DONE);
    const struct core_model *model = core_model_find(sim->core, "m0");
    assert_non_null(model);
    assert_int_equal(model->arch->layers, LAYERS);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct plan_rank *rank = &model->plan->ranks[0];
        bool moe = model->arch->layer_is_moe[layer];
        uint64_t bytes = moe ? rank->moe_slot_bytes : rank->dense_slot_bytes, sums = 8 * (moe ? model->arch->experts : 1);
        sizes[layer] = size_round_up(size_round_up(bytes, 8) + sums, 4096);
    }
    drop(sim, 0);
}

struct life {
    struct sim sim;
    struct space space;
    uint64_t sizes[LAYERS];
    bool loaded[MODELS];
    unsigned fitted, refused, in_gaps;
};

static void try_load(struct life *life, int model)
{
    struct space after = life->space;
    uint64_t largest;
    uint32_t stuck = 0;
    size_t pieces = tell_room(&life->sim, &life->space, &largest), slots = life->sim.ducks[0].slot_count;
    while (stuck < LAYERS && first_fit(&after, life->sizes[stuck], model))
        stuck++;
    const struct core_job *job = load(&life->sim, model);
    if (stuck == LAYERS) {
        if (job->state != CORE_JOB_DONE)
            fail_msg("it fits: %s", job->err.message);
        assert_int_equal(life->sim.ducks[0].slot_count, slots + LAYERS);
        life->in_gaps += after.blocks[after.count - 1].owner != model;
        life->space = after;
        life->loaded[model] = true;
        life->fitted++;
        return;
    }
    char words[160];
    assert_int_equal(job->state, CORE_JOB_FAILED);
    assert_int_equal(job->err.name, ERR_NO_MEMORY);
    snprintf(words, sizeof words, "layer %" PRIu32 " of rank 0 needs %" PRIu64 " bytes in one piece", stuck, life->sizes[stuck]);
    if (!strstr(job->err.message, words))
        fail_msg("\"%s\" does not hold \"%s\"", job->err.message, words);
    snprintf(words, sizeof words, "in %zu piece%s of at most %" PRIu64, pieces, pieces == 1 ? "" : "s", largest);
    if (!strstr(job->err.message, words))
        fail_msg("\"%s\" does not hold \"%s\"", job->err.message, words);
    if (largest >= life->sizes[stuck] && !strstr(job->err.message, " once the layers before it are placed: "))
        fail_msg("\"%s\": there is a piece that is large enough", job->err.message);
    assert_int_equal(job->sent_bytes, 0);
    assert_int_equal(life->sim.ducks[0].slot_count, slots);
    life->refused++;
}

/* Blocks that are no slots of anybody's: dropped ones that a step still reads, say. */
static void stir(struct life *life, uint64_t *random)
{
    size_t others = 0;
    for (size_t i = 0; i < life->space.count; i++)
        others += life->space.blocks[i].owner >= NOBODY;
    if (others == OTHERS || (others && next_random(random) % 2)) {
        size_t which = next_random(random) % others;
        for (size_t i = 0; i < life->space.count; i++) {
            if (life->space.blocks[i].owner < NOBODY || which--)
                continue;
            erase_owner(&life->space, life->space.blocks[i].owner);
            return;
        }
    }
    size_t at = next_random(random) % (life->space.count + 1);
    uint64_t begin, pages = gap(&life->space, at, &begin) / 4096;
    if (pages < 2)
        return;
    uint64_t first = next_random(random) % pages, bytes = 1 + next_random(random) % (pages - first);
    bytes = bytes < 40 ? bytes : 40;
    static int owner = NOBODY;
    insert(&life->space, at, begin + 4096 * first, 4096 * bytes, owner++);
}

static void test_pieces(void **state)
{
    (void)state;
    uint64_t random = getenv("FP9_SEED") ? strtoull(getenv("FP9_SEED"), NULL, 10) : (uint64_t)time(NULL);
    print_message("FP9_SEED=%" PRIu64 "\n", random);
    struct life *life = calloc(1, sizeof *life);
    assert_non_null(life);
    sim_start(&life->sim, 1, UINT64_C(1) << 40); /* room in sum: what decides is its pieces */
    learn_sizes(&life->sim, life->sizes);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        life->space.size += 7 * life->sizes[layer] / 2;
    for (int round = 0; round < ROUNDS; round++) {
        int model = (int)(next_random(&random) % MODELS);
        if (next_random(&random) % 3 == 0) {
            stir(life, &random);
        } else if (life->loaded[model]) {
            drop(&life->sim, model);
            erase_owner(&life->space, model);
            life->loaded[model] = false;
        } else {
            try_load(life, model);
        }
    }
    print_message("%u loads fitted, %u of them before others, %u were refused\n", life->fitted, life->in_gaps, life->refused);
    assert_true(life->fitted > 20 && life->refused > 20 && life->in_gaps > 5);
    sim_stop(&life->sim);
    free(life);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

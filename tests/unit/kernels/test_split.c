/* split.c by its properties, on random work: every unit in exactly one run, runs of equal cost within one unit, tiles, pieces and claims
 * within their bounds. Argument: a seed to try again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/split.h"

#define WORK_MAX 48
#define MEMBERS_MAX 64
#define ROUNDS 400

static uint64_t seed, state;

static uint32_t below(uint32_t n)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = (state ^ state >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ z >> 31) % n);
}

static void fail_with(const char *condition, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void fail_with(const char *condition, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fail_msg("seed %llu: %s: %s", (unsigned long long)seed, condition, text);
}

#define CHECK(condition, ...)                                                                                                              \
    do {                                                                                                                                   \
        if (!(condition))                                                                                                                  \
            fail_with(#condition, __VA_ARGS__);                                                                                            \
    } while (0)

struct work {
    struct split_work of[WORK_MAX];
    uint32_t count, tile, members;
};

/* Few experts or many, equal ones or a hot one, and a tile that nobody would choose. */
static struct work random_work(void)
{
    struct work work = {
        .count = below(4) == 0 ? below(3) : 1 + below(WORK_MAX),
        .tile = 1 + below(SPLIT_TILE_MAX),
        .members = 1 + below(below(2) ? 8 : MEMBERS_MAX),
    };
    uint32_t panels = 1 + below(24), skew = below(3);

    for (uint32_t i = 0; i < work.count; i++) {
        uint32_t tokens = 1 + below(skew == 1 && i == 0 ? 1500 : skew == 2 ? 4 : 60);

        work.of[i] = (struct split_work){.tokens = tokens, .panels = below(8) ? panels : 1 + below(24)};
    }
    return work;
}

/* Walks all units in their order, with the place that each should be in. */
static struct split_place next_place(const struct work *work, struct split_place at)
{
    uint32_t tiles = (work->of[at.work].tokens + work->tile - 1) / work->tile;

    if (++at.panel < work->of[at.work].panels)
        return at;
    at.panel = 0;
    if (++at.tile < tiles)
        return at;
    return (struct split_place){at.work + 1, 0, 0};
}

static uint64_t cost_at(const struct work *work, struct split_place at)
{
    uint32_t left = work->of[at.work].tokens - at.tile * work->tile;

    return split_cost(left < work->tile ? left : work->tile);
}

static void check_runs(const struct work *work)
{
    uint32_t begins[MEMBERS_MAX + 1], unit = 0, member = 0;
    uint64_t total = 0, most = 0, mine[MEMBERS_MAX] = {0};
    struct split_place at = {0, 0, 0};

    split_runs(work->of, work->count, work->tile, work->members, begins);
    CHECK(begins[0] == 0, "%u", begins[0]);
    for (uint32_t m = 0; m < work->members; m++)
        CHECK(begins[m] <= begins[m + 1], "member %u: %u, %u", m, begins[m], begins[m + 1]);
    for (; at.work < work->count; at = next_place(work, at), unit++) {
        struct split_place told = split_place_of(work->of, work->count, work->tile, unit);
        uint64_t cost = cost_at(work, at);

        CHECK(told.work == at.work && told.tile == at.tile && told.panel == at.panel, "unit %u", unit);
        while (member + 1 < work->members && unit >= begins[member + 1])
            member++;
        CHECK(unit >= begins[member] && unit < begins[member + 1], "unit %u is nobody's", unit);
        mine[member] += cost;
        total += cost;
        most = cost > most ? cost : most;
    }
    CHECK(begins[work->members] == unit, "%u of %u units", begins[work->members], unit);
    at = split_place_of(work->of, work->count, work->tile, unit);
    CHECK(at.work == work->count && at.tile == 0 && at.panel == 0, "the end");
    for (uint32_t m = 0; m < work->members; m++) {
        double mean = (double)total / work->members, off = (double)mine[m] - mean;

        /* And 1: targets are whole numbers. */
        CHECK(off <= (double)most + 1 && -off <= (double)most + 1, "member %u of %u has %llu of a mean of %.1f, a unit costs up to %llu", m,
              work->members, (unsigned long long)mine[m], mean, (unsigned long long)most);
    }
}

static void test_runs(void **unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        struct work work = random_work();

        check_runs(&work);
    }
}

/* A tile is in its bounds, no smaller than idle members ask for, and what is looked at is what the caller will cut by. */
static void test_tiles(void **unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        struct work work = random_work();
        uint64_t panel = UINT64_C(32) * (1 + below(8192)), budget = split_budget(UINT64_C(3) * 2048 * (1 + below(20000)), work.members);
        uint32_t tile = split_tile(work.of, work.count, work.members, budget, panel);
        uint32_t alone = split_tile(work.of, work.count, 1, budget, panel);

        CHECK(tile >= SPLIT_TILE_IDLE && tile <= SPLIT_TILE_MAX, "%u", tile);
        CHECK(alone >= SPLIT_TILE_LEAST && alone <= SPLIT_TILE_MAX, "%u", alone);
        CHECK(tile <= alone || work.members == 1, "%u, alone %u", tile, alone);
        CHECK((uint64_t)alone * panel <= budget || alone == SPLIT_TILE_LEAST, "tile %u", alone);
        work.tile = tile;
        check_runs(&work);
    }
}

static void test_pieces(void **unused)
{
    (void)unused;
    for (int i = 0; i < 100 * ROUNDS; i++) {
        uint64_t panel = 1 + below(1 << 20), budget = (uint64_t)below(UINT32_MAX) * (below(2) ? 1 : 1 + below(1000));
        uint32_t tokens = 1 + below(SPLIT_TILE_MAX), piece = split_piece(budget, panel, tokens);

        CHECK(piece >= 1, "%u", piece);
        CHECK(piece == 1 || piece * panel * tokens <= budget, "%u", piece);
        CHECK((piece + 1) * panel * tokens > budget || piece == UINT32_MAX, "%u", piece);
    }
}

/* Claim after claim a run ends, none of them empty or beyond the rest, and each but the last two even. */
static void test_claims(void **unused)
{
    (void)unused;
    for (int i = 0; i < 10 * ROUNDS; i++) {
        uint32_t left = below(10000), at_least = 1 + below(40), claims = 0;

        while (left) {
            uint32_t claim = split_claim(left, at_least);

            CHECK(claim >= 1 && claim <= left, "%u of %u", claim, left);
            CHECK(claim >= at_least || claim == left, "%u of %u", claim, left);
            CHECK(claim % 2 == 0 || claim == at_least || claim == left, "%u of %u", claim, left);
            left -= claim;
            CHECK(++claims < 10100, "no end");
        }
    }
}

static void test_even(void **unused)
{
    (void)unused;
    for (int i = 0; i < 10 * ROUNDS; i++) {
        uint32_t count = below(100000), members = 1 + below(MEMBERS_MAX), at = 0;

        for (uint32_t m = 0; m < members; m++) {
            uint32_t begin = split_even(count, members, m), end = split_even(count, members, m + 1);

            CHECK(begin == at && end >= begin, "member %u", m);
            CHECK(end - begin >= count / members && end - begin <= count / members + 1, "member %u", m);
            at = end;
        }
        CHECK(at == count, "%u of %u", at, count);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),   cmocka_unit_test(test_tiles), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_claims), cmocka_unit_test(test_even),
    };
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)now.tv_sec * 1000003 + (uint64_t)now.tv_nsec;
    state = seed;
    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

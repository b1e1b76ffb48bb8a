/* The team: every share once and in order, pauses, members that are lost. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/duck/team.h"
#include "proto/base/clock.h"

#define PHASES 6

static const _Atomic bool never = false;

static struct team_setup setup_of(uint32_t members, uint64_t spin_ns)
{
    return (struct team_setup){.members = members, .phase_spin_ns = spin_ns, .job_spin_ns = spin_ns, .stall_ns = 10 * CLOCK_NS_PER_S};
}

static struct team *team_of(const struct team_setup *setup)
{
    struct team *team;
    struct err err;
    if (team_new(setup, &team, &err) < 0)
        fail_msg("%s", err.message);
    assert_int_equal(team_enter(team, &err), 0);
    return team;
}

static void run(struct team *team, struct team_job *job)
{
    struct err err;
    if (team_run(team, job, &err) != 0)
        fail_msg("%s", err.message);
}

static void nap(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* ---- shares ------------------------------------------------------------------------------------- */

/* Plain words: the phases alone order what members do to them. */
struct sheet {
    uint32_t members;
    uint32_t calls[PHASES][TEAM_MEMBERS_MAX];
    uint32_t wrong; /* member 0's */
};

static bool count(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    (void)pause;
    struct sheet *sheet = arg;
    if (phase > 0)
        for (uint32_t i = 0; member == 0 && i < sheet->members; i++)
            sheet->wrong += sheet->calls[phase - 1][i] != sheet->calls[phase - 1][0];
    sheet->calls[phase][member]++;
    atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    return true;
}

static void test_every_share_once(void **state)
{
    (void)state;
    static const uint32_t members[] = {1, 2, 3, 5, 64};
    static const uint64_t spins[] = {0, 20 * CLOCK_NS_PER_US};
    for (size_t i = 0; i < ARRAY_LENGTH(members) * ARRAY_LENGTH(spins); i++) {
        struct team_setup setup = setup_of(members[i / 2], spins[i % 2]);
        struct sheet sheet = {.members = setup.members};
        _cleanup_(team_freep) struct team *team = team_of(&setup);
        assert_int_equal(team_members(team), setup.members);
        for (uint32_t jobs = 1; jobs <= 20; jobs++) {
            run(team, &(struct team_job){.phases = PHASES, .share = count, .arg = &sheet, .pause = &never});
            run(team, &(struct team_job){.phases = 0, .share = count, .arg = &sheet, .pause = &never});
            for (uint32_t share = 0; share < PHASES * setup.members; share++)
                assert_int_equal(sheet.calls[share / setup.members][share % setup.members], jobs);
            assert_int_equal(team_progress(team), jobs * PHASES * setup.members);
            if (jobs % 5 == 0)
                nap(2 * CLOCK_NS_PER_MS); /* all fall asleep */
        }
        assert_int_equal(sheet.wrong, 0);
    }
}

static bool where(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    (void)phase, (void)pause, (void)progress;
    cpu_set_t *sets = arg;
    return sched_getaffinity(0, sizeof sets[member], &sets[member]) == 0;
}

static void test_bound(void **state)
{
    (void)state;
    cpu_set_t mine, sets[TEAM_MEMBERS_MAX], all;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    uint32_t cpus = (uint32_t)CPU_COUNT(&mine) < TEAM_MEMBERS_MAX ? (uint32_t)CPU_COUNT(&mine) : TEAM_MEMBERS_MAX;
    struct team_setup setup = setup_of(cpus, CLOCK_NS_PER_MS);
    setup.bind = true;
    setup.cpus = mine;
    struct team *team = team_of(&setup);
    run(team, &(struct team_job){.phases = 1, .share = where, .arg = sets, .pause = &never});
    CPU_ZERO(&all);
    for (uint32_t i = 0; i < cpus; i++) {
        assert_int_equal(CPU_COUNT(&sets[i]), 1);
        CPU_OR(&all, &all, &sets[i]);
    }
    assert_int_equal(CPU_COUNT(&all), cpus);
    team_free(team);
    assert_int_equal(sched_setaffinity(0, sizeof mine, &mine), 0);

    struct err err;
    setup.members = cpus + 1;
    if (setup.members <= TEAM_MEMBERS_MAX) {
        assert_int_equal(team_new(&setup, &team, &err), -EINVAL);
        assert_non_null(strstr(err.message, "cannot have one of"));
    }
    setup.bind = false;
    for (setup.members = 0; setup.members <= 65; setup.members += 65)
        assert_int_equal(team_new(&setup, &team, &err), -EINVAL);
    assert_string_equal(err.message, "65 kernel threads, 1 to 64 are possible");
}

/* ---- pauses ------------------------------------------------------------------------------------- */

#define TILES 40

struct tiled {
    uint32_t tile[PHASES][TEAM_MEMBERS_MAX]; /* the next one */
    uint32_t over[PHASES][TEAM_MEMBERS_MAX]; /* calls after the last one */
    _Atomic bool pause;
    _Atomic uint32_t until_pause; /* tiles; 0: none */
};

static bool tiles(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    struct tiled *tiled = arg;
    uint32_t *tile = &tiled->tile[phase][member];
    tiled->over[phase][member] += *tile == TILES;
    while (*tile < TILES) {
        ++*tile;
        atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
        if (atomic_fetch_sub(&tiled->until_pause, 1) == 1)
            atomic_store(&tiled->pause, true);
        if (*tile < TILES && atomic_load(pause))
            return false;
    }
    return true;
}

/* A job is paused after every number of tiles; another runs in between; no tile is done twice, no share asked for again. */
static void test_pauses(void **state)
{
    (void)state;
    struct team_setup setup = setup_of(3, 50 * CLOCK_NS_PER_US);
    _cleanup_(team_freep) struct team *team = team_of(&setup);
    uint32_t pauses = 0;
    for (uint32_t every = 1; every < 3 * TILES; every++) {
        struct tiled tiled = {.until_pause = every};
        struct sheet sheet = {.members = setup.members};
        struct team_job job = {.phases = PHASES, .share = tiles, .arg = &tiled, .pause = &tiled.pause};
        struct err err;
        int r;
        while ((r = team_run(team, &job, &err)) == TEAM_PAUSED) {
            pauses++;
            assert_true(atomic_load(&tiled.pause));
            run(team, &(struct team_job){.phases = 2, .share = count, .arg = &sheet, .pause = &never});
            atomic_store(&tiled.pause, false);
            atomic_store(&tiled.until_pause, every);
        }
        assert_int_equal(r, 0);
        for (uint32_t share = 0; share < PHASES * setup.members; share++) {
            assert_int_equal(tiled.tile[share / setup.members][share % setup.members], TILES);
            assert_int_equal(tiled.over[share / setup.members][share % setup.members], 0);
        }
    }
    assert_true(pauses > 100);
}

/* ---- members that are lost ---------------------------------------------------------------------- */

#define STALL_NS (200 * CLOCK_NS_PER_MS)

struct fault {
    enum { LEAVE, STALL, SLOW } kind;
    uint32_t member, phase;
    _Atomic bool go_on;
    _Atomic uint32_t written; /* by the stalled member, when it came back */
};

static bool faulty(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    (void)pause;
    struct fault *fault = arg;
    if (member != fault->member || phase != fault->phase)
        return true;
    if (fault->kind == LEAVE)
        pthread_exit(NULL);
    for (int i = 0; fault->kind == SLOW && i < 60; i++) {
        nap(10 * CLOCK_NS_PER_MS);
        atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    }
    while (fault->kind == STALL && !atomic_load(&fault->go_on))
        nap(CLOCK_NS_PER_MS);
    atomic_fetch_add(&fault->written, 1);
    return true;
}

static struct team *left; /* so that what a broken team leaves behind is no leak to a leak checker */

/* The team loses fault->member; both later jobs are refused with the same sentence. */
static void lose(struct fault *fault, struct team_setup setup, const char *sentence)
{
    setup.stall_ns = STALL_NS;
    left = team_of(&setup);
    struct err err, again;
    struct team_job job = {.phases = 3, .share = faulty, .arg = fault, .pause = &never};
    assert_int_equal(team_run(left, &job, &err), -EIO);
    assert_int_equal(err.name, ERR_INTERNAL);
    assert_string_equal(err.message, sentence);
    job.phase = 0;
    assert_int_equal(team_run(left, &job, &again), -EIO);
    assert_string_equal(again.message, err.message);
}

static void test_gone(void **state)
{
    (void)state;
    struct fault fault = {.kind = LEAVE, .member = 1, .phase = 1};
    lose(&fault, setup_of(2, 0), "kernel thread 1 of 2 (bound to no CPU) is gone in phase 1");
    team_free(STEAL(left));
    fault = (struct fault){.kind = LEAVE, .member = 4, .phase = 0};
    lose(&fault, setup_of(5, 10 * CLOCK_NS_PER_US), "kernel thread 4 of 5 (bound to no CPU) is gone in phase 0");
    team_free(STEAL(left));
}

static void test_stalled(void **state)
{
    (void)state;
    static struct fault fault = {.kind = STALL, .member = 2, .phase = 2};
    lose(&fault, setup_of(4, 10 * CLOCK_NS_PER_US), "kernel thread 2 of 4 (bound to no CPU) made no progress for 200 ms in phase 2");
    /* Freed without waiting for it; it may still come back, to memory that is there. */
    team_free(left);
    assert_int_equal(atomic_load(&fault.written), 0);
    atomic_store(&fault.go_on, true);
    for (int i = 0; i < 10000 && atomic_load(&fault.written) == 0; i++)
        nap(CLOCK_NS_PER_MS);
    assert_int_equal(atomic_load(&fault.written), 1);
    nap(20 * CLOCK_NS_PER_MS); /* it ends */
}

static void test_stalled_on_its_cpu(void **state)
{
    (void)state;
    cpu_set_t mine;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    if (CPU_COUNT(&mine) < 2)
        skip();
    struct team_setup setup = setup_of(2, 10 * CLOCK_NS_PER_US);
    setup.bind = true;
    setup.cpus = mine;
    int cpu = 0;
    for (int seen = 0; seen < 2; cpu++)
        seen += CPU_ISSET(cpu, &mine) != 0;
    char sentence[128];
    snprintf(sentence, sizeof sentence, "kernel thread 1 of 2 (on CPU %d) made no progress for 200 ms in phase 0", cpu - 1);
    static struct fault fault = {.kind = STALL, .member = 1, .phase = 0};
    lose(&fault, setup, sentence);
    team_free(left);
    atomic_store(&fault.go_on, true);
    nap(20 * CLOCK_NS_PER_MS);
    assert_int_equal(sched_setaffinity(0, sizeof mine, &mine), 0);
}

/* Three times as long as a stall, but it moves. */
static void test_slow_is_not_stalled(void **state)
{
    (void)state;
    struct team_setup setup = setup_of(3, 0);
    setup.stall_ns = STALL_NS;
    _cleanup_(team_freep) struct team *team = team_of(&setup);
    struct fault fault = {.kind = SLOW, .member = 1, .phase = 0};
    run(team, &(struct team_job){.phases = 2, .share = faulty, .arg = &fault, .pause = &never});
    assert_int_equal(atomic_load(&fault.written), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_share_once),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_stalled),
        cmocka_unit_test(test_stalled_on_its_cpu),
        cmocka_unit_test(test_slow_is_not_stalled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

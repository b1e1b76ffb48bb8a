/* What a phase of the team costs beside the least that two threads of this machine need to say "go" and "done": ping-pong on one word
 * each, in turns in one run.
 *
 *   fp9-handoff [ROUNDS]
 *
 * Prints a line for each way of waiting: median time, and median of its ratio to the faster ping-pong of the same round. Needs two CPUs
 * that nobody else uses.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "proto/base/spin.h"
#include "daemon/duck/team.h"
#include "proto/base/size.h"
#include "tests/bench/pin.h"
#include "tests/bench/stats.h"

#define ROUNDS_DEFAULT 51
#define ROUNDS_MAX 1000
#define TURNS 20000 /* of a round */

struct ball {
    _Alignas(128) _Atomic uint32_t ping;
    _Alignas(128) _Atomic uint32_t pong;
    _Alignas(128) bool pausing;
    int cpu;
};

static void await(_Atomic uint32_t *word, uint32_t value, bool pausing)
{
    while (atomic_load_explicit(word, memory_order_acquire) != value)
        if (pausing)
            spin_pause();
}

static void *answer(void *user)
{
    struct ball *ball = user;
    pin(ball->cpu);
    for (uint32_t turn = 0; turn <= TURNS; turn++) {
        await(&ball->ping, turn, ball->pausing);
        atomic_store_explicit(&ball->pong, turn, memory_order_release);
    }
    return NULL;
}

/* Nanoseconds there and back. */
static double ping_pong(int other_cpu, bool pausing)
{
    static struct ball ball;
    ball.pausing = pausing;
    ball.cpu = other_cpu;
    atomic_store(&ball.ping, UINT32_MAX);
    atomic_store(&ball.pong, UINT32_MAX);
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer, &ball) != 0)
        exit(EXIT_FAILURE);
    uint64_t start = 0;
    for (uint32_t turn = 0; turn <= TURNS; turn++) {
        atomic_store_explicit(&ball.ping, turn, memory_order_release);
        await(&ball.pong, turn, pausing);
        if (turn == 0)
            start = clock_now_ns();
    }
    double ns = (double)(clock_now_ns() - start) / TURNS;
    pthread_join(thread, NULL);
    return ns;
}

static bool nothing(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    (void)arg, (void)phase, (void)member, (void)pause, (void)progress;
    return true;
}

static double phase(struct team *team, uint32_t phases, uint32_t jobs)
{
    static const _Atomic bool never = false;
    struct err err;
    uint64_t start = clock_now_ns();
    for (uint32_t i = 0; i < jobs; i++) {
        struct team_job job = {.phases = phases, .share = nothing, .pause = &never};
        if (team_run(team, &job, &err) != 0) {
            fprintf(stderr, "%s\n", err.message);
            exit(EXIT_FAILURE);
        }
    }
    return (double)(clock_now_ns() - start) / phases / jobs;
}

static struct team *team_of(const cpu_set_t *cpus, uint64_t spin_ns)
{
    struct team_setup setup = {.members = 2, .cpus = *cpus, .bind = true, .stall_ns = 10 * CLOCK_NS_PER_S};
    setup.phase_spin_ns = setup.job_spin_ns = spin_ns;
    struct team *team;
    struct err err;
    if (team_new(&setup, &team, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        exit(EXIT_FAILURE);
    }
    return team;
}

/* Sorts the values. */
static void print(const char *what, double *values, const double *base, size_t rounds)
{
    double ratios[ROUNDS_MAX];
    for (size_t i = 0; i < rounds; i++)
        ratios[i] = values[i] / base[i];
    double ratio = stats_median(ratios, rounds);
    printf("%-44s %8.0f ns  %6.2f x\n", what, stats_median(values, rounds), ratio);
}

int main(int argc, char **argv)
{
    uint64_t rounds = ROUNDS_DEFAULT;
    cpu_set_t mine, two;
    if (argc > 2 || (argc == 2 && !size_parse_u64(argv[1], 1, ROUNDS_MAX, &rounds))) {
        fprintf(stderr, "usage: fp9-handoff [ROUNDS]\n");
        return 2;
    }
    int cpus[2], found = 0;
    CPU_ZERO(&two);
    if (sched_getaffinity(0, sizeof mine, &mine) < 0)
        return EXIT_FAILURE;
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &mine)) {
            CPU_SET(cpu, &two);
            cpus[found++] = cpu;
        }
    if (found < 2) {
        fprintf(stderr, "fp9-handoff: two CPUs are needed\n");
        return 77; /* meson: skipped */
    }
    pin(cpus[0]);
    enum { TIGHT, PAUSING, MANY, SHORT, ASLEEP, WAYS };
    static const char *const names[] = {"ping-pong, there and back", "ping-pong with pause", "phase, jobs of 1000 phases",
                                        "phase, jobs of 3 phases", "phase, sleeping at once"};
    static double values[WAYS][ROUNDS_MAX], base[ROUNDS_MAX];
    for (size_t round = 0; round < rounds; round++) {
        values[TIGHT][round] = ping_pong(cpus[1], false);
        values[PAUSING][round] = ping_pong(cpus[1], true);
        /* A team in each round: its other member may not spin on the CPU that ping-pong needs. */
        struct team *spinning = team_of(&two, 50 * CLOCK_NS_PER_US);
        (void)phase(spinning, 1000, 1);
        values[MANY][round] = phase(spinning, 1000, TURNS / 1000);
        values[SHORT][round] = phase(spinning, 3, TURNS / 3);
        team_free(spinning);
        struct team *sleeping = team_of(&two, 0);
        values[ASLEEP][round] = phase(sleeping, 1000, 2);
        team_free(sleeping);
        base[round] = values[TIGHT][round] < values[PAUSING][round] ? values[TIGHT][round] : values[PAUSING][round];
    }
    for (int way = 0; way < WAYS; way++)
        print(names[way], values[way], base, rounds);
    return EXIT_SUCCESS;
}

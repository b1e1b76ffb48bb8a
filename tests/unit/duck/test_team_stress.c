/* Many phases with random stalls: every member finds what all others wrote in the phase before.
 *
 *   test-team-stress [--expect-violations] [PHASES]
 *
 * PHASES: 100,000 if not given, also by FP9_TEAM_STRESS. --expect-violations is for the mutated build of the team, which leaves out the
 * check that a phase is through: it must be found out, or the test would prove nothing.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "proto/base/spin.h"
#include "daemon/duck/team.h"
#include "proto/base/size.h"

#define PHASES_DEFAULT 100000
#define JOB_PHASES_MAX 24

/* xorshift64*: each member's own. */
struct random {
    _Alignas(128) uint64_t state;
};

static uint64_t next(struct random *random)
{
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return random->state * UINT64_C(0x2545f4914f6cdd1d);
}

static struct random randoms[TEAM_MEMBERS_MAX];

/* Mostly nothing; else a few pauses, the CPU given away, or sleep. */
static void stall(uint32_t member)
{
    uint64_t dice = next(&randoms[member]);
    if (dice % 4 == 0)
        for (uint64_t i = dice >> 16 & 0x3ff; i > 0; i--)
            spin_pause();
    else if (dice % 64 == 1)
        sched_yield();
    else if (dice % 1024 == 2)
        nanosleep(&(struct timespec){.tv_nsec = (long)(dice >> 16 & 0xffff)}, NULL);
}

/* The words of one chain of jobs. Plain: nothing but the phases orders the members. */
struct chain {
    uint32_t members;
    uint32_t first;                      /* number of the job's first phase, counted through all jobs */
    uint32_t cells[2][TEAM_MEMBERS_MAX]; /* [number % 2]: the phase in which it was written */
    _Atomic bool pause;                  /* set by members at random */
    _Atomic uint64_t violations, pauses;
};

static bool share(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    struct chain *chain = arg;
    uint32_t number = chain->first + phase;
    uint64_t wrong = chain->cells[number % 2][member] == number; /* asked for a share that is through */
    stall(member);
    for (uint32_t i = 0; i < chain->members; i++)
        wrong += chain->cells[(number - 1) % 2][i] != number - 1;
    if (wrong)
        atomic_fetch_add_explicit(&chain->violations, wrong, memory_order_relaxed);
    atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    if (next(&randoms[member]) % 64 == 0)
        atomic_store_explicit(&chain->pause, true, memory_order_relaxed);
    if (atomic_load_explicit(pause, memory_order_relaxed))
        return false;
    stall(member);
    chain->cells[number % 2][member] = number;
    return true;
}

/* One job of the chain, or what is left of it; pauses are ended by `between`. */
static bool run(struct team *team, struct chain *chain, uint32_t phases, void (*between)(struct team *team, void *user), void *user)
{
    static const _Atomic bool never = false;
    struct team_job job = {.phases = phases, .share = share, .arg = chain, .pause = between ? &chain->pause : &never};
    struct err err;
    int r;
    while ((r = team_run(team, &job, &err)) == TEAM_PAUSED) {
        atomic_fetch_add_explicit(&chain->pauses, 1, memory_order_relaxed);
        if (between)
            between(team, user);
        atomic_store_explicit(&chain->pause, false, memory_order_relaxed);
    }
    chain->first += phases;
    if (r < 0)
        fprintf(stderr, "%s\n", err.message);
    return r == 0;
}

static void interrupt(struct team *team, void *user)
{
    if (!run(team, user, 2, NULL, NULL))
        exit(EXIT_FAILURE);
}

/* The number of violations. */
static uint64_t stress(uint32_t members, uint64_t spin_us, uint64_t phases)
{
    struct team_setup setup = {
        .members = members,
        .phase_spin_ns = spin_us * CLOCK_NS_PER_US,
        .job_spin_ns = spin_us * CLOCK_NS_PER_US,
        .stall_ns = 60 * CLOCK_NS_PER_S,
    };
    static struct chain batch, interactive; /* outlive the team, whatever a mutated one does */
    batch = interactive = (struct chain){.members = members, .first = 1};
    struct err err;
    _cleanup_(team_freep) struct team *team = NULL;
    if (team_new(&setup, &team, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        exit(EXIT_FAILURE);
    }
    uint64_t start = clock_now_ns();
    while (batch.first <= phases)
        if (!run(team, &batch, 1 + (uint32_t)(next(&randoms[0]) % JOB_PHASES_MAX), interrupt, &interactive))
            exit(EXIT_FAILURE);
    uint64_t violations = atomic_load(&batch.violations) + atomic_load(&interactive.violations);
    printf("%u members, spinning %" PRIu64 " us: %u phases, %u interrupting, %" PRIu64 " pauses in %.2f s, violations %" PRIu64 "\n",
           members, spin_us, batch.first - 1, interactive.first - 1, atomic_load(&batch.pauses),
           (double)(clock_now_ns() - start) / CLOCK_NS_PER_S, violations);
    return violations;
}

int main(int argc, char **argv)
{
    bool expect = argc > 1 && strcmp(argv[1], "--expect-violations") == 0;
    const char *number = argc > 1 + expect ? argv[1 + expect] : getenv("FP9_TEAM_STRESS"), *seed_text = getenv("FP9_SEED");
    uint64_t phases = PHASES_DEFAULT, seed = clock_now_ns() | 1;
    if ((number && !size_parse_u64(number, 1, UINT32_MAX / 4, &phases)) ||
        (seed_text && !size_parse_u64(seed_text, 1, UINT64_MAX, &seed))) {
        fprintf(stderr, "usage: test-team-stress [--expect-violations] [PHASES]\n");
        return 2;
    }
    printf("FP9_SEED=%" PRIu64 "\n", seed);
    struct random first = {.state = seed};
    for (uint32_t i = 0; i < TEAM_MEMBERS_MAX; i++)
        randoms[i].state = next(&first) | 1;
    static const struct {
        uint32_t members, spin_us, part;
    } cases[] = {{2, 100, 60}, {2, 0, 10}, {3, 5, 10}, {4, 0, 19}, {64, 0, 1}};
    uint64_t violations = 0;
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        violations += stress(cases[i].members, cases[i].spin_us, (phases * cases[i].part + 99) / 100);
    if (expect && violations == 0)
        printf("the mutated team was not found out\n");
    return (violations > 0) == expect ? EXIT_SUCCESS : EXIT_FAILURE;
}

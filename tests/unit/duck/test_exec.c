/* The kernel thread: thousands of jobs of all kinds, interactive ones in the middle of batch ones, some abandoned in the middle with the
 * whole thread; each result is that of its own job.
 *
 *   test-duck-exec [--expect-violations] [JOBS]
 *
 * FP9_SEED: another seed. --expect-violations is for the mutated build, in which a job may meet what the one before has left: it must be
 * found out, or the test would prove nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "daemon/duck/exec.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "tests/unit/duck/model.h"

#define JOBS_DEFAULT 4000
#define KINDS 12
#define MODEL_SEED 99
#define WAIT_MS 20000

struct kind {
    struct msg_prepare_begin words;
    struct geometry geometry;
    uint8_t *data;
    struct model_input input;
    enum msg_dtype dtype;
    void *want;
    size_t bytes;
};

struct post {
    const struct kind *kind; /* NULL: none */
    uint8_t *partial;        /* owned */
    bool cancelled;
};

struct test {
    uint64_t random;
    struct kind kinds[KINDS];
    size_t room; /* of a partial */
    struct exec *exec;
    struct post posts[EXEC_PLACES];
    uint64_t jobs, violations, abandoned, mixed, cancelled;
};

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* Dense and MoE, 1 and 4 tokens; from the ninth on batch work, long enough to be met by others. */
static void make_kinds(struct test *test)
{
    static const uint32_t tokens[] = {1, 1, 4, 4, 2, 3, 1, 4, 40, 64, 150, 300};
    for (uint32_t i = 0; i < KINDS; i++) {
        struct kind *kind = &test->kinds[i];
        kind->words = model_words(i % 2 ? MSG_SLOT_MOE : MSG_SLOT_DENSE, i);
        kind->dtype = i % 3 ? MSG_F32 : MSG_BF16;
        must(geometry_init(&kind->words, &kind->geometry, NULL) == 0, "geometry");
        kind->data = model_pack(&kind->words, MODEL_SEED + i);
        kind->input = model_input(&kind->words, tokens[i], i % 2 ? 1 + i / 3 : 0, test->random + i);
        kind->want = model_answer(&kind->words, MODEL_SEED + i, &kind->input, kind->dtype, &kind->bytes);
        test->room = kind->bytes > test->room ? kind->bytes : test->room;
    }
}

static void start(struct test *test)
{
    uint32_t cpus = (uint32_t)get_nprocs() < 3 ? 2 : 3;
    struct team_setup setup = {.members = cpus, .phase_spin_ns = 2000, .job_spin_ns = 2000, .stall_ns = 30 * CLOCK_NS_PER_S};
    must(exec_new(-1, &setup, &test->exec, NULL) == 0, "exec_new");
}

static void post(struct test *test, enum exec_place place)
{
    const struct kind *kind = &test->kinds[place == EXEC_BATCH ? 8 + model_random(&test->random) % 4 : model_random(&test->random) % 8];
    struct post *post = &test->posts[place];
    post->kind = kind;
    post->cancelled = false;
    memset(post->partial, 0x5a, kind->bytes);
    struct exec_job job = {
        .compute =
            {
                .layer = geometry_layer(&kind->geometry, kind->data),
                .kind = kind->geometry.kind,
                .tokens = kind->input.tokens,
                .top_k = kind->input.top_k,
                .hidden = kind->input.hidden,
                .dtype = kind->dtype,
                .x = kind->input.x,
                .ids = kind->input.ids,
                .weights = kind->input.weights,
                .partial = post->partial,
            },
    };
    size_t scratch = compute_scratch_bytes(&job.compute.layer, job.compute.tokens, job.compute.top_k, exec_members(test->exec));
    must(exec_reserve(test->exec, place, scratch, NULL) == 0, "exec_reserve");
    exec_post(test->exec, place, &job);
    test->mixed += test->posts[EXEC_INTERACTIVE].kind && test->posts[EXEC_BATCH].kind;
}

static void take(struct test *test)
{
    struct pollfd wait = {.fd = exec_event_fd(test->exec), .events = POLLIN};
    must(poll(&wait, 1, WAIT_MS) == 1, "no result");
    enum exec_place place;
    struct exec_result result;
    while (exec_take(test->exec, &place, &result)) {
        struct post *post = &test->posts[place];
        must(post->kind != NULL, "a result of nothing");
        bool right = result.code == 0 && memcmp(post->partial, post->kind->want, post->kind->bytes) == 0 && result.cost.params > 0;
        bool cancelled = post->cancelled && result.code == -ECANCELED;
        test->violations += !right && !cancelled;
        test->cancelled += cancelled;
        test->jobs++;
        post->kind = NULL;
    }
}

static void cancel(struct test *test, enum exec_place place)
{
    exec_cancel(test->exec, place); /* of nothing, too */
    test->posts[place].cancelled = true;
}

/* As when a link ends with steps under way. */
static void abandon(struct test *test)
{
    for (int i = 0; i < EXEC_PLACES; i++) {
        test->abandoned += test->posts[i].kind != NULL;
        test->posts[i].kind = NULL;
    }
    exec_free(test->exec);
    start(test);
}

/* cancels: now and then a job, or a place without one. In the mutated build half of a job would be gone on with elsewhere, and crash. */
static void run(struct test *test, uint64_t jobs, bool cancels)
{
    while (test->jobs < jobs) {
        uint64_t dice = model_random(&test->random);
        if (dice % 256 == 0)
            abandon(test);
        enum exec_place place = dice >> 8 & 3 ? EXEC_INTERACTIVE : EXEC_BATCH;
        if (!exec_busy(test->exec, place))
            post(test, place);
        if (cancels && (dice >> 40) % 4 == 0)
            cancel(test, dice >> 42 & 1 ? EXEC_INTERACTIVE : EXEC_BATCH);
        if (dice >> 16 & 3)
            take(test);
        else if (dice >> 18 & 1)
            nanosleep(&(struct timespec){.tv_nsec = (long)(dice >> 20 & 0xffff)}, NULL);
    }
}

static void take_all(struct test *test)
{
    while (test->posts[EXEC_INTERACTIVE].kind || test->posts[EXEC_BATCH].kind)
        take(test);
}

int main(int argc, char **argv)
{
    bool expect = argc > 1 && strcmp(argv[1], "--expect-violations") == 0;
    uint64_t jobs = JOBS_DEFAULT, seed = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    if (argc > 1 + expect)
        must(size_parse_u64(argv[1 + expect], 1, 1000000000, &jobs), "JOBS");
    if (getenv("FP9_SEED"))
        must(size_parse_u64(getenv("FP9_SEED"), 0, UINT64_MAX, &seed), "FP9_SEED");
    printf("FP9_SEED=%" PRIu64 "\n", seed);
    static struct test test;
    test.random = seed | 1;
    make_kinds(&test);
    for (int i = 0; i < EXEC_PLACES; i++)
        test.posts[i].partial = aligned_alloc(64, size_round_up(test.room, 64));
    start(&test);
    run(&test, jobs, !expect);
    take_all(&test);
    exec_free(test.exec);
    for (int i = 0; i < EXEC_PLACES; i++)
        free(test.posts[i].partial);
    for (int i = 0; i < KINDS; i++) {
        model_input_free(&test.kinds[i].input);
        free(test.kinds[i].data);
        free(test.kinds[i].want);
    }
    printf("%" PRIu64 " jobs, %" PRIu64 " posted beside another, %" PRIu64 " abandoned, %" PRIu64 " cancelled, %" PRIu64 " wrong\n",
           test.jobs, test.mixed, test.abandoned, test.cancelled, test.violations);
    must(expect || test.cancelled > jobs / 200, "too few jobs were cancelled");
    must(test.mixed > jobs / 50, "too few jobs met each other");
    return expect == (test.violations > 0) ? EXIT_SUCCESS : EXIT_FAILURE;
}

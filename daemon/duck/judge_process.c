/* The kernel process: its whole life. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/duck/judge_job.h"
#include "proto/base/clock.h"
#include "proto/base/huge.h"

static void *aligned(size_t bytes)
{
    return aligned_alloc(64, size_round_up(bytes ? bytes : 1, 64));
}

struct process {
    struct judge_job *shared;
    struct phases phases;
};

/* Piece by piece, so that the parent sees the progress. */
static bool share(void *arg, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    static const _Atomic bool each = true;
    struct process *process = arg;
    (void)pause; /* nobody sets it */
    while (!phases_run(&process->phases, phase, member, &each, progress))
        atomic_fetch_add_explicit(&process->shared->progress, 1, memory_order_relaxed);
    return true;
}

static int run(struct judge_job *shared, const struct compute_job *job, struct err *err)
{
    static const _Atomic bool never = false;
    if (shared->setup.members == 0 || shared->setup.members > TEAM_MEMBERS_MAX)
        return err_set(err, -EINVAL, ERR_INTERNAL, "a team of %u members", shared->setup.members);
    size_t scratch_bytes = compute_scratch_bytes(&job->layer, job->tokens, job->top_k, shared->setup.members);
    void *scratch = aligned(scratch_bytes); /* it and the team go with the process */
    if (!scratch)
        return err_no_memory(err, "kernel process", scratch_bytes);
    struct team *team;
    int r = team_new(&shared->setup, &team, err);
    if (r == 0)
        r = team_enter(team, err);
    if (r < 0)
        return r;
    shared->team_ns = clock_now_ns();
    struct process process = {.shared = shared};
    compute_begin(&process.phases, job, shared->setup.members, scratch);
    struct team_job work = {.phases = phases_count(&process.phases), .share = share, .arg = &process, .pause = &never};
    r = team_run(team, &work, err);
    shared->cost = compute_cost_of(&process.phases);
    shared->ran_ns = clock_now_ns();
    return r;
}

static int map_and_run(struct judge_job *shared, int weights_fd, struct err *err)
{
    struct geometry geometry;
    int r = geometry_init(&shared->slot.words, &geometry, err);
    if (r < 0)
        return r;
    if (geometry.bytes != shared->slot.bytes)
        return err_set(err, -EINVAL, ERR_INTERNAL, "slot of %" PRIu64 " bytes, its geometry needs %" PRIu64, shared->slot.bytes,
                       geometry.bytes);
    r = kernels_select(shared->kernels, err);
    if (r < 0)
        return r;
    void *data = huge_map(weights_fd, shared->slot.offset, geometry.bytes, PROT_READ);
    if (data == MAP_FAILED)
        return err_errno(err, "weights: %" PRIu64 " bytes cannot be mapped", geometry.bytes);
    uint8_t *base = (uint8_t *)shared;
    struct compute_job job = {
        .layer = geometry_layer(&geometry, data),
        .kind = (enum msg_slot_kind)shared->kind,
        .tokens = shared->tokens,
        .top_k = shared->top_k,
        .hidden = shared->hidden,
        .dtype = (enum msg_dtype)shared->dtype,
        .x = (const uint16_t *)(const void *)(base + shared->x),
        .ids = (const int32_t *)(const void *)(base + shared->ids),
        .weights = (const float *)(const void *)(base + shared->weights),
        .partial = base + shared->partial,
    };
    shared->mapped_ns = clock_now_ns();
    return run(shared, &job, err);
}

/* The job's memory, when it is what the duck made. */
static struct judge_job *job_map(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || (size_t)st.st_size < sizeof(struct judge_job))
        return NULL;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    struct judge_job *job = map, expect = *job;
    judge_job_place(&expect);
    bool good = job->magic == JUDGE_JOB_MAGIC && job->size == (uint64_t)st.st_size && expect.size == job->size &&
                expect.partial == job->partial && memchr(job->kernels, '\0', sizeof job->kernels);
    return good ? job : NULL;
}

int judge_main(int argc, char **argv)
{
    uint64_t main_ns = clock_now_ns(), job_fd, weights_fd;
    if (argc != 3 || !size_parse_u64(argv[1], 0, INT32_MAX, &job_fd) || !size_parse_u64(argv[2], 0, INT32_MAX, &weights_fd)) {
        fprintf(stderr, "usage: " JUDGE_PROGRAM " JOB-FD WEIGHTS-FD\n" JUDGE_PROGRAM " is started by fp9-duck, for one step.\n");
        return 2;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, JUDGE_PROGRAM); /* it was started by descriptor, whose number would be its name */
    struct judge_job *job = job_map((int)job_fd);
    if (!job || getppid() != job->parent) /* it died before the prctl */
        return 2;
    job->main_ns = main_ns;
    struct err err = {0};
    if (map_and_run(job, (int)weights_fd, &err) < 0) {
        job->err = err;
        return 1;
    }
    atomic_store_explicit(&job->done, 1, memory_order_release);
    _exit(0); /* no member runs, and nothing is worth being taken down by hand */
}

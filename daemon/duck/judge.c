#include "daemon/duck/judge.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "proto/base/clock.h"
#include "proto/base/size.h"

#define JOB_MAGIC UINT64_C(0x656764756a397066)
#define POLL_MS 50

/* The front of the job's memfd; tensors follow at multiples of 64. */
struct judge_job {
    uint64_t magic;
    uint64_t size; /* of the memfd */
    struct judge_slot slot;
    struct team_setup setup;
    uint32_t kind, dtype;
    uint32_t tokens, top_k, hidden;
    uint64_t x, ids, weights, partial; /* offsets */
    _Atomic uint64_t progress;         /* moves while the kernels run */
    /* Written by the kernel process, `done` last. */
    struct judge_result result;
    struct err err;
    _Atomic uint32_t done; /* 1: the partial is whole */
};

struct job_map {
    int fd;
    struct judge_job *job; /* mapping, `size` bytes */
    size_t size;
};

static void job_map_release(struct job_map *map)
{
    if (map->job)
        munmap(map->job, map->size);
    closep(&map->fd);
}

static size_t dtype_bytes(enum msg_dtype dtype)
{
    return dtype == MSG_F32 ? 4 : 2;
}

/* Offsets of the tensors; every factor is under its wire limit, so sums fit. */
static void place(struct judge_job *job)
{
    uint64_t values = (uint64_t)job->tokens * job->hidden, slots = (uint64_t)job->tokens * job->top_k;
    job->x = size_round_up(sizeof *job, 64);
    job->ids = job->x + size_round_up(values * 2, 64);
    job->weights = job->ids + size_round_up(slots * 4, 64);
    job->partial = job->weights + size_round_up(slots * 4, 64);
    job->size = job->partial + size_round_up(values * dtype_bytes((enum msg_dtype)job->dtype), 64);
}

static int job_make(const struct compute_job *from, const struct judge_slot *slot, const struct team_setup *setup, struct job_map *ret_map,
                    struct err *err)
{
    struct judge_job job = {
        .magic = JOB_MAGIC,
        .slot = *slot,
        .setup = *setup,
        .kind = (uint32_t)from->kind,
        .dtype = (uint32_t)from->dtype,
        .tokens = from->tokens,
        .top_k = from->top_k,
        .hidden = from->hidden,
    };
    place(&job);
    _cleanup_(job_map_release) struct job_map map = {.fd = memfd_create("fp9-job", MFD_ALLOW_SEALING), .size = job.size};
    if (map.fd < 0)
        return err_errno(err, "one-shot job: memfd_create");
    if (ftruncate(map.fd, (off_t)map.size) < 0 || fallocate(map.fd, 0, 0, (off_t)map.size) < 0)
        return err_errno(err, "one-shot job of %zu bytes", map.size);
    if (fcntl(map.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return err_errno(err, "one-shot job: sealing");
    void *at = mmap(NULL, map.size, PROT_READ | PROT_WRITE, MAP_SHARED, map.fd, 0);
    if (at == MAP_FAILED)
        return err_errno(err, "one-shot job of %zu bytes: mmap", map.size);
    map.job = at;
    memcpy(map.job, &job, sizeof job);
    size_t slots = (size_t)job.tokens * job.top_k;
    if (job.tokens)
        memcpy((uint8_t *)at + job.x, from->x, (size_t)job.tokens * job.hidden * 2);
    if (slots) {
        memcpy((uint8_t *)at + job.ids, from->ids, slots * 4);
        memcpy((uint8_t *)at + job.weights, from->weights, slots * 4);
    }
    *ret_map = map;
    map = (struct job_map){.fd = -1};
    return 0;
}

static int spawn(int job_fd, int weights_fd, pid_t *ret_pid, struct err *err)
{
    char job_text[16], weights_text[16];
    snprintf(job_text, sizeof job_text, "%d", job_fd);
    snprintf(weights_text, sizeof weights_text, "%d", weights_fd);
    char *const argv[] = {(char[]){"fp9-duck"}, (char[]){JUDGE_OPTION}, job_text, weights_text, NULL};
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    int r = posix_spawnattr_init(&attr);
    if (r == 0) {
        posix_spawnattr_setsigmask(&attr, &none);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
        r = posix_spawn(ret_pid, "/proc/self/exe", NULL, &attr, argv, environ);
        posix_spawnattr_destroy(&attr);
    }
    if (r != 0) {
        errno = r;
        return err_errno(err, "one-shot: a kernel process cannot be started");
    }
    return 0;
}

/* Waits for the process, handing its progress on; kills it when cancelled. The wait status, or a negative errno. */
static int wait_for(pid_t pid, struct judge_job *job, _Atomic uint64_t *progress, const _Atomic bool *cancel)
{
    _cleanup_(closep) int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    uint64_t seen = 0;
    for (;;) {
        int status;
        pid_t r = waitpid(pid, &status, pidfd < 0 ? 0 : WNOHANG);
        uint64_t now = atomic_load_explicit(&job->progress, memory_order_relaxed);
        atomic_fetch_add_explicit(progress, now - seen, memory_order_relaxed);
        seen = now;
        if (r == pid)
            return status;
        if (r < 0 && errno != EINTR)
            return -errno;
        if (atomic_load_explicit(cancel, memory_order_relaxed))
            kill(pid, SIGKILL);
        struct pollfd wait = {.fd = pidfd, .events = POLLIN};
        (void)poll(&wait, 1, POLL_MS);
    }
}

int judge_run(const struct compute_job *job, const struct judge_slot *slot, const struct team_setup *setup, int weights_fd,
              _Atomic uint64_t *progress, const _Atomic bool *cancel, struct judge_result *ret_result, struct err *err)
{
    _cleanup_(job_map_release) struct job_map map = {.fd = -1};
    int r = job_make(job, slot, setup, &map, err);
    if (r < 0)
        return r;
    pid_t pid;
    r = spawn(map.fd, weights_fd, &pid, err);
    if (r < 0)
        return r;
    int status = wait_for(pid, map.job, progress, cancel);
    if (status < 0) {
        errno = -status;
        return err_errno(err, "one-shot: waiting for kernel process %d", (int)pid);
    }
    if (atomic_load(cancel))
        return err_set(err, -ECANCELED, ERR_CANCELLED, "one-shot: the duck is stopping");
    if (WIFSIGNALED(status)) {
        int number = WTERMSIG(status);
        const char *name = sigabbrev_np(number);
        err_set(err, -EIO, ERR_INTERNAL, "one-shot: kernel process %d was killed by signal %d (SIG%s)", (int)pid, number,
                name ? name : "?");
        err_value_int(err, "signal", number);
        return -EIO;
    }
    if (atomic_load_explicit(&map.job->done, memory_order_acquire) != 1) {
        if (map.job->err.code < 0) {
            struct err child = map.job->err;
            child.message[sizeof child.message - 1] = child.values[sizeof child.values - 1] = '\0';
            err_copy(err, &child);
            return err_prefix(err, "one-shot");
        }
        return err_set(err, -EIO, ERR_INTERNAL, "one-shot: kernel process %d ended with status %d and no result", (int)pid,
                       WEXITSTATUS(status));
    }
    size_t bytes = (size_t)job->tokens * job->hidden * dtype_bytes(job->dtype);
    if (bytes)
        memcpy(job->partial, (uint8_t *)map.job + map.job->partial, bytes);
    *ret_result = map.job->result;
    return 0;
}

/* ---- the kernel process ------------------------------------------------------------------------- */

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

static int process_job(struct judge_job *shared, const struct compute_job *job, struct err *err)
{
    static const _Atomic bool never = false;
    if (shared->setup.members == 0 || shared->setup.members > TEAM_MEMBERS_MAX)
        return err_set(err, -EINVAL, ERR_INTERNAL, "a team of %u members", shared->setup.members);
    size_t scratch_bytes = compute_scratch_bytes(&job->layer, job->tokens, job->top_k, shared->setup.members);
    _cleanup_(freep) void *scratch = aligned(scratch_bytes);
    if (!scratch)
        return err_no_memory(err, "kernel process", scratch_bytes);
    _cleanup_(team_freep) struct team *team = NULL;
    int r = team_new(&shared->setup, &team, err);
    if (r == 0)
        r = team_enter(team, err);
    if (r < 0)
        return r;
    struct process process = {.shared = shared};
    uint64_t start = clock_now_ns();
    compute_begin(&process.phases, job, shared->setup.members, scratch);
    struct team_job work = {.phases = phases_count(&process.phases), .share = share, .arg = &process, .pause = &never};
    r = team_run(team, &work, err);
    shared->result = (struct judge_result){.duck_time_ns = clock_now_ns() - start, .cost = compute_cost_of(&process.phases)};
    return r;
}

static int process_run(struct judge_job *shared, int weights_fd, struct err *err)
{
    struct geometry geometry;
    int r = geometry_init(&shared->slot.words, &geometry, err);
    if (r < 0)
        return r;
    if (geometry.bytes != shared->slot.bytes)
        return err_set(err, -EINVAL, ERR_INTERNAL, "slot of %" PRIu64 " bytes, its geometry needs %" PRIu64, shared->slot.bytes,
                       geometry.bytes);
    r = kernels_select(getenv("FP9_CPU"), err);
    if (r < 0)
        return r;
    void *data = mmap(NULL, geometry.bytes, PROT_READ, MAP_SHARED, weights_fd, (off_t)shared->slot.offset);
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
    return process_job(shared, &job, err);
}

int judge_main(int argc, char **argv)
{
    uint64_t job_fd, weights_fd;
    if (argc != 4 || !size_parse_u64(argv[2], 0, INT32_MAX, &job_fd) || !size_parse_u64(argv[3], 0, INT32_MAX, &weights_fd))
        return 2;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct stat st;
    if (fstat((int)job_fd, &st) < 0 || (size_t)st.st_size < sizeof(struct judge_job))
        return 2;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, (int)job_fd, 0);
    if (map == MAP_FAILED)
        return 2;
    struct judge_job *job = map, expect = *job;
    place(&expect);
    if (job->magic != JOB_MAGIC || job->size != (uint64_t)st.st_size || expect.size != job->size || expect.partial != job->partial)
        return 2;
    struct err err = {0};
    if (process_run(job, (int)weights_fd, &err) < 0) {
        job->err = err;
        return 1;
    }
    atomic_store_explicit(&job->done, 1, memory_order_release);
    return 0;
}

/* The duck's side of a kernel process: its job, its start, its end. */
#include "daemon/duck/judge.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/duck/judge_job.h"
#include "proto/base/clock.h"

#define POLL_MS 10 /* so late a cancel may be seen */

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

static int job_make(const struct compute_job *from, const struct judge_slot *slot, const struct team_setup *setup, struct job_map *ret_map,
                    struct err *err)
{
    struct judge_job job = {
        .magic = JUDGE_JOB_MAGIC,
        .parent = getpid(),
        .slot = *slot,
        .setup = *setup,
        .kind = (uint32_t)from->kind,
        .dtype = (uint32_t)from->dtype,
        .tokens = from->tokens,
        .top_k = from->top_k,
        .hidden = from->hidden,
    };
    snprintf(job.kernels, sizeof job.kernels, "%s", kernels_variant_name());
    judge_job_place(&job);
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

/* The folder of the running program, with no slash behind it. */
static int own_folder(char ret_folder[PATH_MAX], struct err *err)
{
    ssize_t n = readlink("/proc/self/exe", ret_folder, PATH_MAX - 1);
    if (n < 0)
        return err_errno(err, "/proc/self/exe");
    ret_folder[n] = '\0';
    char *slash = strrchr(ret_folder, '/');
    if (slash)
        *slash = '\0';
    return 0;
}

int judge_open_program(int *ret_fd, struct err *err)
{
    char folder[PATH_MAX], beside[PATH_MAX + sizeof "/" JUDGE_PROGRAM];
    int r = own_folder(folder, err);
    if (r < 0)
        return r;
    snprintf(beside, sizeof beside, "%s/" JUDGE_PROGRAM, folder);
    const char *const places[] = {beside, DUCK_LIBEXEC "/" JUDGE_PROGRAM};
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
        int fd = open(places[i], O_PATH | O_CLOEXEC);
        if (fd < 0)
            continue;
        *ret_fd = fd;
        return 0;
    }
    return err_set(err, -ENOENT, ERR_NO_SUCH, "one-shot: there is neither %s nor %s", places[0], places[1]);
}

static int spawn(int program_fd, int job_fd, int weights_fd, pid_t *ret_pid, struct err *err)
{
    char program[32], job_text[16], weights_text[16];
    snprintf(program, sizeof program, "/proc/self/fd/%d", program_fd);
    snprintf(job_text, sizeof job_text, "%d", job_fd);
    snprintf(weights_text, sizeof weights_text, "%d", weights_fd);
    char *const argv[] = {(char[]){JUDGE_PROGRAM}, job_text, weights_text, NULL};
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    int r = posix_spawnattr_init(&attr);
    if (r == 0) {
        posix_spawnattr_setsigmask(&attr, &none);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
        r = posix_spawn(ret_pid, program, NULL, &attr, argv, environ);
        posix_spawnattr_destroy(&attr);
    }
    if (r != 0) {
        errno = r;
        return err_errno(err, "one-shot: a kernel process cannot be started");
    }
    return 0;
}

/* Looks at a process a tenth of stall_ns apart. A duck that was stopped itself finds it silent once, however long that was. */
struct watch {
    uint64_t next_ns, every_ns, seen;
    uint32_t silent;
};

static bool stalled(struct watch *watch, uint64_t progress)
{
    uint64_t now = clock_now_ns();
    if (now < watch->next_ns)
        return false;
    watch->silent = progress == watch->seen ? watch->silent + 1 : 0;
    watch->seen = progress;
    watch->next_ns = now + watch->every_ns;
    return watch->silent >= JUDGE_STALL_LOOKS;
}

/* Waits for the process, handing its progress on; kills it when cancelled or stalled. The wait status, or a negative errno. */
static int wait_for(pid_t pid, struct judge_job *job, _Atomic uint64_t *progress, const _Atomic bool *cancel, bool *ret_stalled)
{
    _cleanup_(closep) int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    uint64_t every = job->setup.stall_ns / 10, seen = 0;
    struct watch watch = {.every_ns = every, .next_ns = clock_now_ns() + every, .seen = UINT64_MAX};
    for (;;) {
        int status;
        pid_t r = waitpid(pid, &status, WNOHANG);
        uint64_t now = atomic_load_explicit(&job->progress, memory_order_relaxed);
        atomic_fetch_add_explicit(progress, now - seen, memory_order_relaxed);
        seen = now;
        if (r == pid)
            return status;
        if (r < 0 && errno != EINTR)
            return -errno;
        *ret_stalled = *ret_stalled || stalled(&watch, now);
        if (*ret_stalled || atomic_load_explicit(cancel, memory_order_relaxed))
            kill(pid, SIGKILL);
        struct pollfd wait = {.fd = pidfd, .events = POLLIN};
        (void)poll(&wait, 1, pidfd < 0 ? 1 : POLL_MS);
    }
}

/* What a process that gave no result has come to. */
static int no_result(const struct judge_job *job, pid_t pid, int status, struct err *err)
{
    if (WIFSIGNALED(status)) {
        int number = WTERMSIG(status);
        const char *name = sigabbrev_np(number);
        err_set(err, -EIO, ERR_INTERNAL, "one-shot: kernel process %d was killed by signal %d (SIG%s)", (int)pid, number,
                name ? name : "?");
        err_value_int(err, "signal", number);
        return -EIO;
    }
    if (job->err.code < 0) {
        struct err child = job->err;
        child.message[sizeof child.message - 1] = child.values[sizeof child.values - 1] = '\0';
        err_copy(err, &child);
        return err_prefix(err, "one-shot");
    }
    return err_set(err, -EIO, ERR_INTERNAL, "one-shot: kernel process %d ended with status %d and no result", (int)pid,
                   WEXITSTATUS(status));
}

int judge_run(int program_fd, const struct compute_job *job, const struct judge_slot *slot, const struct team_setup *setup, int weights_fd,
              _Atomic uint64_t *progress, const _Atomic bool *cancel, struct judge_result *ret_result, struct err *err)
{
    uint64_t start_ns = clock_now_ns();
    _cleanup_(job_map_release) struct job_map map = {.fd = -1};
    int r = job_make(job, slot, setup, &map, err);
    if (r < 0)
        return r;
    pid_t pid;
    r = spawn(program_fd, map.fd, weights_fd, &pid, err);
    if (r < 0)
        return r;
    bool stall = false;
    int status = wait_for(pid, map.job, progress, cancel, &stall);
    if (status < 0) {
        errno = -status;
        return err_errno(err, "one-shot: waiting for kernel process %d", (int)pid);
    }
    if (atomic_load(cancel))
        return err_set(err, -ECANCELED, ERR_CANCELLED, "one-shot: the step was cancelled");
    /* It may have ended well between the look and the signal. */
    if (atomic_load_explicit(&map.job->done, memory_order_acquire) != 1 || WIFSIGNALED(status)) {
        if (stall)
            return err_set(err, -EIO, ERR_INTERNAL, "one-shot: kernel process %d made no progress for %llu ms and was killed", (int)pid,
                           (unsigned long long)(setup->stall_ns / 10 * JUDGE_STALL_LOOKS / CLOCK_NS_PER_MS));
        return no_result(map.job, pid, status, err);
    }
    size_t bytes = (size_t)job->tokens * job->hidden * judge_dtype_bytes(job->dtype);
    if (bytes)
        memcpy(job->partial, (uint8_t *)map.job + map.job->partial, bytes);
    *ret_result = (struct judge_result){
        .cost = map.job->cost,
        .parts =
            {
                .spawn_ns = map.job->main_ns - start_ns,
                .map_ns = map.job->mapped_ns - map.job->main_ns,
                .team_ns = map.job->team_ns - map.job->mapped_ns,
                .run_ns = map.job->ran_ns - map.job->team_ns,
                .exit_ns = clock_now_ns() - map.job->ran_ns,
            },
    };
    return 0;
}

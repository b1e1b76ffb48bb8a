#include "daemon/head/local.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"

/* Descriptors of the child, by number from FIRST_FD on; -1: it has none. */
#define FIRST_FD 3
enum { LINK_FD, WEIGHTS_FD, STAGE_FD, CHANNEL_FD, BELL_FD, FDS };

extern char **environ;

int local_find_program(char *ret_path, size_t size, struct err *err)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return err_errno(err, "fp9-duck: /proc/self/exe");
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    const char *const places[] = {"/fp9-duck", "/../duck/fp9-duck"};
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
        if ((size_t)snprintf(ret_path, size, "%s%s", self, places[i]) < size && access(ret_path, X_OK) == 0)
            return 0;
    }
    return err_set(err, -ENOENT, ERR_NO_SUCH, "fp9-duck: no program of that name beside fp9d in %s", self);
}

int local_make_buffer(const char *name, uint64_t bytes, int *ret_fd, struct err *err)
{
    char label[96];
    snprintf(label, sizeof label, "fp9-weights-%.64s", name);
    _cleanup_(closep) int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_errno(err, "duck %s: weight buffer: memfd_create", name);
    if (ftruncate(fd, (off_t)bytes) < 0)
        return err_errno(err, "duck %s: weight buffer of %" PRIu64 " bytes", name, bytes);
    *ret_fd = STEAL_FD(fd);
    return 0;
}

uint64_t local_buffer_size(int fd)
{
    struct stat info;
    return fstat(fd, &info) < 0 ? 0 : (uint64_t)info.st_size;
}

uint64_t local_default_memory(uint32_t ducks)
{
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t share = ram / 5 * 4 / (ducks ? ducks : 1);
    return share / 4096 * 4096;
}

/* "0-3,5" -> set. */
static int parse_cpu_list(const char *list, cpu_set_t *ret_set, struct err *err)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    char copy[1024];
    if ((size_t)snprintf(copy, sizeof copy, "%s", list) >= sizeof copy)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "CPU list \"%.60s...\" is too long", list);
    char *rest = copy;
    for (char *part; (part = strsep(&rest, ","));) {
        char *dash = strchr(part, '-');
        if (dash)
            *dash++ = '\0';
        uint64_t low, high;
        if (!size_parse_u64(part, 0, CPU_SETSIZE - 1, &low) || (dash ? !size_parse_u64(dash, low, CPU_SETSIZE - 1, &high) : 0))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "CPU list \"%s\": not of the form 0-3,5 with CPUs below %d", list, CPU_SETSIZE);
        for (uint64_t cpu = low; cpu <= (dash ? high : low); cpu++)
            CPU_SET(cpu, &set);
    }
    *ret_set = set;
    return 0;
}

int local_check_cores(const char *list, struct err *err)
{
    cpu_set_t set;
    return *list ? parse_cpu_list(list, &set, err) : 0;
}

int local_share_cores(const char *list, uint32_t index, uint32_t ducks, char *ret_list, size_t size, bool *ret_shared, struct err *err)
{
    cpu_set_t mine, wanted;
    if (sched_getaffinity(0, sizeof mine, &mine) < 0)
        return err_errno(err, "local ducks: sched_getaffinity");
    if (*list) {
        int r = parse_cpu_list(list, &wanted, err);
        if (r < 0)
            return err_prefix(err, "[fleet] local_cores");
        CPU_AND(&mine, &mine, &wanted);
        if (!CPU_EQUAL(&mine, &wanted))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "[fleet] local_cores: \"%s\" names CPUs that this machine or fp9d's cpuset lacks",
                           list);
    }
    uint32_t count = (uint32_t)CPU_COUNT(&mine), seen = 0;
    size_t at = 0;
    ret_list[0] = '\0';
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mine))
            continue;
        bool take = count < ducks || seen * (uint64_t)ducks / count == index;
        seen++;
        if (!take)
            continue;
        int n = snprintf(ret_list + at, size - at, "%s%d", at ? "," : "", cpu);
        if (n < 0 || (size_t)n >= size - at)
            return err_set(err, -E2BIG, ERR_BAD_REQUEST, "local ducks: list of CPUs is too long");
        at += (size_t)n;
    }
    *ret_shared = count < ducks;
    return 0;
}

int local_member_cpu(const char *list, uint32_t index)
{
    cpu_set_t cpus;
    if (parse_cpu_list(list, &cpus, NULL) < 0)
        return -1;
    uint32_t nth = index % (uint32_t)CPU_COUNT(&cpus);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus) && nth-- == 0)
            return cpu;
    return -1;
}

void local_spare_cpus(const char *list, uint32_t ducks, cpu_set_t *ret_spare)
{
    cpu_set_t mine, wanted;
    CPU_ZERO(ret_spare);
    if (sched_getaffinity(0, sizeof mine, &mine) < 0 || (*list && parse_cpu_list(list, &wanted, NULL) < 0))
        return;
    *ret_spare = mine;
    for (int cpu = 0; cpu < CPU_SETSIZE && ducks; cpu++)
        if (!*list || CPU_ISSET(cpu, &wanted))
            CPU_CLR(cpu, ret_spare);
}

/* The CPUs of the thread before local_bind; children get them back. */
static cpu_set_t before_bind;
static bool bound;

int local_bind(const cpu_set_t *cpus, struct err *err)
{
    if (sched_getaffinity(0, sizeof before_bind, &before_bind) < 0 || sched_setaffinity(0, sizeof *cpus, cpus) < 0)
        return err_errno(err, "event loop: CPUs");
    bound = true;
    return 0;
}

/* By the same thread as local_bind: for the moment of a spawn, since a child inherits the affinity. */
static void unbind_for_spawn(cpu_set_t *ret_now)
{
    if (bound && sched_getaffinity(0, sizeof *ret_now, ret_now) == 0)
        (void)sched_setaffinity(0, sizeof before_bind, &before_bind);
}

static void bind_again(const cpu_set_t *now)
{
    if (bound)
        (void)sched_setaffinity(0, sizeof *now, now);
}

static int spawn(const char *program, char *const argv[], const int fds[FDS], pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int r = posix_spawn_file_actions_init(&actions);
    if (r)
        return -r;
    r = posix_spawnattr_init(&attributes);
    if (r) {
        posix_spawn_file_actions_destroy(&actions);
        return -r;
    }
    /* Own process group: a Ctrl-C at fp9d's terminal is for fp9d alone. No signal stays blocked or ignored in the child. */
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    for (int i = 0; i < FDS; i++)
        if (fds[i] >= 0)
            posix_spawn_file_actions_adddup2(&actions, fds[i], FIRST_FD + i);
    cpu_set_t now;
    unbind_for_spawn(&now);
    r = posix_spawn(ret_pid, program, &actions, &attributes, argv, environ);
    bind_again(&now);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return -r;
}

/* The command line and descriptors of a child. */
struct command {
    const char *argv[2 * FDS + 11];
    char numbers[FDS][16], member_cpu[16];
    int fds[FDS]; /* owned; -1: none */
};

static void command_release(struct command *command)
{
    for (int i = 0; i < FDS; i++)
        closep(&command->fds[i]);
}

/* Only a setup that lacks a channel lacks descriptors. */
static int command_make(const struct local_setup *setup, int link, struct command *command)
{
    static const char *const options[FDS] = {"--link-fd", "--weights-fd", "--stage-fd", "--channel-fd", "--bell-fd"};
    const int given[FDS] = {link, setup->weights_fd, setup->stage_fd, setup->channel_fd, setup->channel_fd < 0 ? -1 : setup->bell_fd};
    size_t count = 0;
    *command = (struct command){.fds = {-1, -1, -1, -1, -1}};
    const char *const first[] = {"fp9-duck", "--name", setup->name, "--cores", setup->cores};
    for (size_t i = 0; i < ARRAY_LENGTH(first); i++)
        command->argv[count++] = first[i];
    for (int i = 0; i < FDS; i++) {
        if (given[i] < 0)
            continue;
        /* dup2 onto the same number would leave close-on-exec set: take numbers above the targets. */
        command->fds[i] = fcntl(given[i], F_DUPFD_CLOEXEC, 16);
        if (command->fds[i] < 0)
            return -errno;
        snprintf(command->numbers[i], sizeof command->numbers[i], "%d", FIRST_FD + i);
        command->argv[count++] = options[i];
        command->argv[count++] = command->numbers[i];
    }
    if (setup->prealloc)
        command->argv[count++] = "--prealloc";
    if (setup->shared) {
        command->argv[count++] = "--members";
        command->argv[count++] = "1";
        snprintf(command->member_cpu, sizeof command->member_cpu, "%d", setup->member_cpu);
        command->argv[count++] = "--member-cpu";
        command->argv[count++] = command->member_cpu;
    }
    return 0;
}

int local_start(const struct local_setup *setup, pid_t *ret_pid, int *ret_pidfd, int *ret_link, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_errno(err, "duck %s: socketpair", setup->name);
    _cleanup_(closep) int ours = pair[0];
    _cleanup_(closep) int theirs = pair[1];
    if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        return err_errno(err, "duck %s: link", setup->name);
    _cleanup_(command_release) struct command command;
    if (command_make(setup, theirs, &command) < 0)
        return err_errno(err, "duck %s: descriptors", setup->name);
    pid_t pid;
    int r = spawn(setup->program, (char *const *)command.argv, command.fds, &pid);
    if (r < 0)
        return err_set(err, r, ERR_INTERNAL, "%s cannot be started: %s", setup->program, strerror(-r));
    int pidfd = pidfd_open(pid, 0);
    if (pidfd < 0) {
        err_errno(err, "duck %s: pidfd_open", setup->name);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return err ? err->code : -EIO;
    }
    fcntl(pidfd, F_SETFD, FD_CLOEXEC);
    *ret_pid = pid;
    *ret_pidfd = pidfd;
    *ret_link = STEAL_FD(ours);
    return 0;
}

int local_reap(int pidfd, char *ret_how, size_t size)
{
    siginfo_t info = {0};
    if (waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG) < 0) {
        snprintf(ret_how, size, "is gone");
        return 1;
    }
    if (!info.si_pid)
        return 0;
    if (info.si_code == CLD_EXITED)
        snprintf(ret_how, size, "exited with status %d", info.si_status);
    else
        snprintf(ret_how, size, "was killed by signal %d (%s)", info.si_status, strsignal(info.si_status));
    return 1;
}

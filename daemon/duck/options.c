#include "daemon/duck/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "daemon/duck/cores.h"
#include "daemon/duck/team.h"
#include "daemon/duck/wbuf_format.h"
#include "proto/base/clock.h"
#include "proto/base/conf.h"
#include "proto/base/quota.h"
#include "proto/base/size.h"
#include "proto/wire/wire.h"

/* The next step of a token comes after some hundred microseconds of attention and network, which is too long to burn; the adaptive part
 * (spin.h) then gives up most of this. */
#define SPIN_AUTO_NS (50 * CLOCK_NS_PER_US)

static const char help[] = "Usage: fp9-duck [OPTION]...\n"
                           "Holds one rank's weights in memory and runs the MLP and expert layers for fp9d.\n"
                           "\n"
                           "      --config FILE       read FILE instead of " DUCK_CONFIG "\n"
                           "      --listen ADDR:PORT  serve fp9d on this address (TCP)\n"
                           "      --key-file FILE     pre-shared key of the TCP link; this version has no TLS and refuses it\n"
                           "      --memory BYTES      size of the weight buffer (K M G T), three quarters of RAM if not given\n"
                           "      --cores LIST        CPUs to use, such as 0-3,5; all that the process may use if not given\n"
                           "      --prealloc          take the buffer's memory from the system at once, and keep it\n"
                           "      --members N         kernel threads, 1 to 64; one for each CPU if not given\n"
                           "      --check-config      check options and configuration, and exit\n"
                           "      --version           print the version and exit\n"
                           "  -h, --help              print this and exit\n"
                           "\n"
                           "For ducks that fp9d starts on its own machine:\n"
                           "      --link-fd N         connected stream socket to fp9d; the duck ends when it is closed\n"
                           "      --weights-fd N      memfd of the weight buffer, kept by fp9d; its size is the buffer's\n"
                           "      --stage-fd N        memfd of fp9d's in which it shows rows that it has read\n"
                           "      --channel-fd N      memfd through which steps go, beside the link\n"
                           "      --bell-fd N         eventfd that wakes fp9d when an answer is in it; goes with --channel-fd\n"
                           "      --member-cpu N      CPU of the one kernel thread of --members 1, which other ducks use too\n"
                           "      --name NAME         name in the log and the greeting, the host's if not given\n"
                           "\n"
                           "Without --link-fd it serves TCP, in plaintext, for which the configuration must say plaintext = yes.\n"
                           "\n"
                           "Environment: FP9_CPU=ref|avx2|avx2:rm|avx2:rp|avx512 forces the kernels' instruction set.\n";

static const char *const huge_choices[] = {"auto", "yes", "no", NULL};

static const struct conf_key keys[] = {
    {.section = "duck", .name = "listen", .type = CONF_STRING, .offset = offsetof(struct options, listen), .low = 1, .high = 255},
    {.section = "duck", .name = "key_file", .type = CONF_STRING, .offset = offsetof(struct options, key_file), .high = 4095},
    {.section = "duck", .name = "plaintext", .type = CONF_BOOL, .offset = offsetof(struct options, plaintext)},
    {.section = "duck", .name = "memory", .type = CONF_SIZE, .offset = offsetof(struct options, memory)},
    {.section = "duck", .name = "cores", .type = CONF_STRING, .offset = offsetof(struct options, cores), .high = 4095},
    {.section = "duck", .name = "huge_pages", .type = CONF_CHOICE, .offset = offsetof(struct options, huge_pages), .choices = huge_choices},
    {.section = "duck", .name = "prealloc", .type = CONF_BOOL, .offset = offsetof(struct options, prealloc)},
    {.section = "duck", .name = "spin_us", .type = CONF_STRING, .offset = offsetof(struct options, spin_us), .low = 1, .high = 16},
    {.section = "duck", .name = "name", .type = CONF_STRING, .offset = offsetof(struct options, name), .high = WIRE_NAME_MAX - 1},
};

static const struct conf_table table = {.keys = keys, .count = ARRAY_LENGTH(keys)};

static int set(char **field, const char *value, struct err *err)
{
    char *copy = strdup(value);
    if (!copy)
        return err_no_memory(err, "options", strlen(value) + 1);
    free(*field);
    *field = copy;
    return 0;
}

void options_release(struct options *options)
{
    free(options->listen);
    free(options->key_file);
    free(options->cores);
    free(options->huge_pages);
    free(options->spin_us);
    free(options->name);
    *options = (struct options)OPTIONS_NONE;
}

uint64_t options_machine_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    uint64_t all = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : UINT64_C(4) << 30;
    uint64_t quota = quota_memory("/proc/self/cgroup", "/sys/fs/cgroup");
    return all < quota ? all : quota;
}

uint64_t options_default_memory(void)
{
    return options_machine_memory() / (4 * WBUF_SLOT_ALIGN) * 3 * WBUF_SLOT_ALIGN;
}

uint64_t options_spin_ns(const struct options *options)
{
    uint64_t spin_us; /* checked: neither fails nor overflows */
    return size_parse_u64(options->spin_us, 0, 1000000, &spin_us) ? spin_us * CLOCK_NS_PER_US : SPIN_AUTO_NS;
}

enum wbuf_huge options_huge(const struct options *options)
{
    return strcmp(options->huge_pages, "yes") == 0 ? WBUF_HUGE_YES : strcmp(options->huge_pages, "no") == 0 ? WBUF_HUGE_NO : WBUF_HUGE_AUTO;
}

static int defaults(struct options *options, struct err *err)
{
    *options = (struct options)OPTIONS_NONE;
    int r = set(&options->listen, "127.0.0.1:7909", err);
    if (r == 0)
        r = set(&options->key_file, "", err);
    if (r == 0)
        r = set(&options->cores, "", err);
    if (r == 0)
        r = set(&options->huge_pages, "auto", err);
    if (r == 0)
        r = set(&options->spin_us, "auto", err);
    if (r == 0)
        r = set(&options->name, "", err);
    return r;
}

/* ---- values ------------------------------------------------------------------------------------- */

static int check_listen(const char *text, struct err *err)
{
    const char *colon = strrchr(text, ':');
    uint64_t port;
    if (!colon || colon == text || !size_parse_u64(colon + 1, 1, 65535, &port))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "listen \"%.200s\" is not ADDR:PORT with a port from 1 to 65535", text);
    return 0;
}

static int check_name(const char *text, struct err *err)
{
    if (strlen(text) >= WIRE_NAME_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "name \"%.80s\" is longer than %d bytes", text, WIRE_NAME_MAX - 1);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p <= 0x20 || *p >= 0x7f)
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "name \"%.80s\" holds blanks or bytes that are no printable ASCII", text);
    return 0;
}

static int check_key_file(const char *path, struct err *err)
{
    if (*path && access(path, R_OK) < 0)
        return err_errno(err, "key_file %.500s", path);
    return 0;
}

static int check(const struct options *options, struct err *err)
{
    uint64_t spin;
    cpu_set_t cores;
    int r = check_listen(options->listen, err);
    if (r == 0 && *options->cores)
        r = cores_parse(options->cores, &cores, err);
    if (r == 0 && strcmp(options->spin_us, "auto") != 0 && !size_parse_u64(options->spin_us, 0, 1000000, &spin))
        r = err_set(err, -EINVAL, ERR_BAD_REQUEST, "spin_us \"%s\" is neither auto nor a number up to 1000000", options->spin_us);
    if (r == 0)
        r = check_name(options->name, err);
    if (r == 0)
        r = check_key_file(options->key_file, err);
    if (r == 0 && options->memory > INT64_MAX)
        r = err_set(err, -EINVAL, ERR_BAD_REQUEST, "memory is beyond 8 EiB");
    if (r == 0 && options->memory && options->memory < WBUF_BYTES_MIN)
        r = err_set(err, -EINVAL, ERR_BAD_REQUEST, "memory of %" PRIu64 " bytes: at least %" PRIu64 " are needed", options->memory,
                    WBUF_BYTES_MIN);
    return r;
}

static int default_name(struct options *options, struct err *err)
{
    struct utsname host;
    char name[WIRE_NAME_MAX] = "duck";
    if (uname(&host) == 0 && host.nodename[0] && check_name(host.nodename, NULL) == 0)
        snprintf(name, sizeof name, "%.63s", host.nodename);
    return set(&options->name, name, err);
}

/* ---- the command line --------------------------------------------------------------------------- */

enum {
    OPT_CONFIG = 256,
    OPT_LISTEN,
    OPT_KEY_FILE,
    OPT_MEMORY,
    OPT_CORES,
    OPT_MEMBERS,
    OPT_MEMBER_CPU,
    OPT_CHECK_CONFIG,
    OPT_VERSION,
    OPT_LINK_FD,
    OPT_WEIGHTS_FD,
    OPT_STAGE_FD,
    OPT_PREALLOC,
    OPT_CHANNEL_FD,
    OPT_BELL_FD,
    OPT_NAME,
};

static const struct option longs[] = {
    {"config", required_argument, NULL, OPT_CONFIG},
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"key-file", required_argument, NULL, OPT_KEY_FILE},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"cores", required_argument, NULL, OPT_CORES},
    {"check-config", no_argument, NULL, OPT_CHECK_CONFIG},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, 'h'},
    {"link-fd", required_argument, NULL, OPT_LINK_FD},
    {"weights-fd", required_argument, NULL, OPT_WEIGHTS_FD},
    {"stage-fd", required_argument, NULL, OPT_STAGE_FD},
    {"channel-fd", required_argument, NULL, OPT_CHANNEL_FD},
    {"bell-fd", required_argument, NULL, OPT_BELL_FD},
    {"prealloc", no_argument, NULL, OPT_PREALLOC},
    {"name", required_argument, NULL, OPT_NAME},
    {"members", required_argument, NULL, OPT_MEMBERS},
    {"member-cpu", required_argument, NULL, OPT_MEMBER_CPU},
    {0},
};

/* Flags and the file are needed before the file is read, values after it. */
struct line {
    const char *config, *listen, *key_file, *memory, *cores, *link_fd, *weights_fd, *stage_fd, *channel_fd, *bell_fd, *name;
    const char *members, *member_cpu;
    bool prealloc;
    bool check_config;
};

static int usage(const char *what, const char *value)
{
    if (what)
        fprintf(stderr, "fp9-duck: %s%s%s\n", what, value ? ": " : "", value ? value : "");
    fprintf(stderr, "Try 'fp9-duck --help'.\n");
    return OPTIONS_USAGE + 1;
}

static int parse(int argc, char **argv, struct line *line)
{
    int c;
    optind = 0;
    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        switch (c) {
        case OPT_CONFIG: line->config = optarg; break;
        case OPT_LISTEN: line->listen = optarg; break;
        case OPT_KEY_FILE: line->key_file = optarg; break;
        case OPT_MEMORY: line->memory = optarg; break;
        case OPT_CORES: line->cores = optarg; break;
        case OPT_LINK_FD: line->link_fd = optarg; break;
        case OPT_WEIGHTS_FD: line->weights_fd = optarg; break;
        case OPT_STAGE_FD: line->stage_fd = optarg; break;
        case OPT_CHANNEL_FD: line->channel_fd = optarg; break;
        case OPT_BELL_FD: line->bell_fd = optarg; break;
        case OPT_PREALLOC: line->prealloc = true; break;
        case OPT_NAME: line->name = optarg; break;
        case OPT_MEMBERS: line->members = optarg; break;
        case OPT_MEMBER_CPU: line->member_cpu = optarg; break;
        case OPT_CHECK_CONFIG: line->check_config = true; break;
        case OPT_VERSION: printf("fp9-duck %s\n", FP9_VERSION); return 1;
        case 'h': fputs(help, stdout); return 1;
        default: return usage(NULL, NULL);
        }
    }
    return optind < argc ? usage("unexpected argument", argv[optind]) : 0;
}

/* -1 when it is not given. */
static bool descriptor(const char *text, int *ret_fd)
{
    uint64_t fd;
    *ret_fd = -1;
    if (!text)
        return true;
    if (!size_parse_u64(text, 0, INT32_MAX, &fd))
        return false;
    *ret_fd = (int)fd;
    return true;
}

static int apply(const struct line *line, struct options *options, struct err *err)
{
    cpu_set_t cores;
    if (line->memory && (!size_parse(line->memory, &options->memory) || options->memory == 0))
        return usage("--memory is no size such as 512M or 8G", line->memory);
    if (!descriptor(line->link_fd, &options->link_fd))
        return usage("--link-fd is no descriptor", line->link_fd);
    if (!descriptor(line->weights_fd, &options->weights_fd))
        return usage("--weights-fd is no descriptor", line->weights_fd);
    if (!descriptor(line->stage_fd, &options->stage_fd))
        return usage("--stage-fd is no descriptor", line->stage_fd);
    if (!descriptor(line->channel_fd, &options->channel_fd))
        return usage("--channel-fd is no descriptor", line->channel_fd);
    if (!descriptor(line->bell_fd, &options->bell_fd))
        return usage("--bell-fd is no descriptor", line->bell_fd);
    options->prealloc |= line->prealloc;
    uint64_t members = 0;
    if (line->members && !size_parse_u64(line->members, 1, TEAM_MEMBERS_MAX, &members))
        return usage("--members is no number from 1 to 64", line->members);
    options->members = (uint32_t)members;
    uint64_t cpu;
    if (line->member_cpu && (members != 1 || !size_parse_u64(line->member_cpu, 0, CPU_SETSIZE - 1, &cpu)))
        return usage("--member-cpu is no number of a CPU, or goes without --members 1", line->member_cpu);
    if (line->member_cpu)
        options->member_cpu = (int)cpu;
    struct err why;
    if ((line->listen && check_listen(line->listen, &why) < 0) || (line->name && check_name(line->name, &why) < 0) ||
        (line->cores && cores_parse(line->cores, &cores, &why) < 0))
        return usage(why.message, NULL);
    int r = line->listen ? set(&options->listen, line->listen, err) : 0;
    if (r == 0 && line->key_file)
        r = set(&options->key_file, line->key_file, err);
    if (r == 0 && line->cores)
        r = set(&options->cores, line->cores, err);
    if (r == 0 && line->name)
        r = set(&options->name, line->name, err);
    return r;
}

int options_read(int argc, char **argv, struct options *ret_options, struct err *err)
{
    struct line line = {0};
    int r = parse(argc, argv, &line);
    if (r != 0)
        return r;
    _cleanup_(options_release) struct options options;
    r = defaults(&options, err);
    if (r < 0)
        return r;
    const char *file = line.config ? line.config : DUCK_CONFIG;
    if (line.config || (!line.link_fd && access(file, F_OK) == 0)) {
        r = conf_read(file, &table, &options, err);
        if (r < 0)
            return r;
        if (*options.key_file && *options.key_file != '/')
            r = err_set(err, -EINVAL, ERR_BAD_REQUEST, "key_file \"%.500s\" is no absolute path", options.key_file);
        if (r == 0)
            r = check(&options, err);
        if (r < 0)
            return err_prefix(err, "%s: [duck]", file);
    }
    r = apply(&line, &options, err);
    if (r == 0)
        r = check(&options, err);
    if (r == 0 && !*options.name)
        r = default_name(&options, err);
    if (r != 0)
        return r;
    options.check_config = line.check_config;
    *ret_options = options;
    options = (struct options)OPTIONS_NONE;
    return 0;
}

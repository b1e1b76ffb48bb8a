/* fp9d: argv, configuration, kernels, signals, run. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-journal.h>

#include "daemon/head/conf.h"
#include "daemon/head/core.h"
#include "daemon/head/head_run.h"
#include "daemon/head/local.h"
#include "daemon/head/metrics_http.h"
#include "kernels/kernels.h"
#include "proto/base/log.h"
#include "proto/base/size.h"

static const char usage[] = "Usage: fp9d [OPTION]...\n"
                            "Owns a fleet of ducks and serves the MLP and expert layers of FP8 models from it, over a control socket.\n"
                            "Stays in the foreground; see fp9d(8).\n"
                            "\n"
                            "      --config FILE      configuration file (default /etc/fp9/fp9d.conf, if it is there)\n"
                            "      --socket PATH      control socket (default /run/fp9d/control.sock)\n"
                            "      --state-dir DIR    where fp9d keeps its database (default /var/lib/fp9d)\n"
                            "      --local-ducks N    fp9-duck processes to run on this machine (default 0)\n"
                            "      --check-config     read and check the configuration, then exit\n"
                            "  -h, --help             this text\n"
                            "      --version          the version\n"
                            "\n"
                            "Environment: FP9_CPU=ref|avx2|avx512 forces a kernel tier (avx2:rm, avx2:rp a variant), "
                            "FP9_PERSISTENT_JUDGE=0 makes every session one-shot.\n"
                            "Exit status: 0 after SIGTERM or SIGINT, 1 when it cannot start or go on, 2 wrong usage.\n";

enum option_code {
    OPTION_CONFIG = 256,
    OPTION_SOCKET,
    OPTION_STATE_DIR,
    OPTION_LOCAL_DUCKS,
    OPTION_CHECK_CONFIG,
    OPTION_VERSION,
};

static const struct option options[] = {
    {"config", required_argument, NULL, OPTION_CONFIG},       {"socket", required_argument, NULL, OPTION_SOCKET},
    {"state-dir", required_argument, NULL, OPTION_STATE_DIR}, {"local-ducks", required_argument, NULL, OPTION_LOCAL_DUCKS},
    {"check-config", no_argument, NULL, OPTION_CHECK_CONFIG}, {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPTION_VERSION},           {0},
};

struct arguments {
    const char *config, *socket, *state_dir, *local_ducks;
    bool check_config;
};

/* 0 go on, 1 done, -EINVAL wrong usage (said on stderr). */
static int parse_arguments(int argc, char **argv, struct arguments *args)
{
    int code;
    while ((code = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (code) {
        case OPTION_CONFIG: args->config = optarg; break;
        case OPTION_SOCKET: args->socket = optarg; break;
        case OPTION_STATE_DIR: args->state_dir = optarg; break;
        case OPTION_LOCAL_DUCKS: args->local_ducks = optarg; break;
        case OPTION_CHECK_CONFIG: args->check_config = true; break;
        case 'h': fputs(usage, stdout); return 1;
        case OPTION_VERSION: puts("fp9d " FP9_VERSION); return 1;
        default: fputs("Try 'fp9d --help'.\n", stderr); return -EINVAL;
        }
    }
    uint64_t count;
    if (optind < argc) {
        fprintf(stderr, "fp9d: %s: no arguments are expected\nTry 'fp9d --help'.\n", argv[optind]);
        return -EINVAL;
    }
    if (args->local_ducks && !size_parse_u64(args->local_ducks, 0, CORE_DUCKS_MAX, &count)) {
        fprintf(stderr, "fp9d: --local-ducks %s: must be a whole number from 0 to %d\n", args->local_ducks, CORE_DUCKS_MAX);
        return -EINVAL;
    }
    return 0;
}

static int override(char **field, const char *value, struct err *err)
{
    if (!value)
        return 0;
    char *copy = strdup(value);
    if (!copy)
        return err_no_memory(err, "argument", strlen(value));
    free(*field);
    *field = copy;
    return 0;
}

static int read_configuration(const struct arguments *args, struct conf **ret_conf, struct err *err)
{
    _cleanup_(conf_freep) struct conf *conf = NULL;
    int r = conf_load(args->config, &conf, err);
    if (r == 0)
        r = override(&conf->socket, args->socket, err);
    if (r == 0)
        r = override(&conf->state_dir, args->state_dir, err);
    if (r < 0)
        return r;
    uint64_t count;
    if (args->local_ducks && size_parse_u64(args->local_ducks, 0, CORE_DUCKS_MAX, &count))
        conf->local_ducks = (uint32_t)count;
    const char *persistent = getenv("FP9_PERSISTENT_JUDGE");
    if (persistent && strcmp(persistent, "0") != 0 && strcmp(persistent, "1") != 0)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "FP9_PERSISTENT_JUDGE=%s: must be 0 or 1", persistent);
    if (persistent)
        conf->persistent_judge = persistent[0] == '1';
    r = conf_check(conf, err);
    if (r < 0)
        return r;
    *ret_conf = STEAL(conf);
    return 0;
}

static void journal_sink(enum log_level level, const char *subsystem, const char *text)
{
    static const int priorities[] = {3, 4, 6, 7}; /* syslog's error, warning, info, debug */
    sd_journal_send("MESSAGE=%s: %s", subsystem, text, "PRIORITY=%i", priorities[level], "FP9_SUBSYSTEM=%s", subsystem, NULL);
}

/* systemd says in JOURNAL_STREAM which device and inode its journal pipe is. */
static bool stderr_is_journal(void)
{
    const char *text = getenv("JOURNAL_STREAM");
    uint64_t device, inode;
    struct stat info;
    return text && sscanf(text, "%" SCNu64 ":%" SCNu64, &device, &inode) == 2 && fstat(STDERR_FILENO, &info) == 0 &&
           info.st_dev == device && info.st_ino == inode;
}

int main(int argc, char **argv)
{
    struct arguments args = {0};
    struct err err = {0};
    int r = parse_arguments(argc, argv, &args);
    if (r)
        return r > 0 ? 0 : 2;
    log_set_program("fp9d");
    for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;) { /* 0 to 2 are never anything else's */
        if (fd > STDERR_FILENO) {
            close(fd);
            break;
        }
    }
    umask(077); /* the state directory is nobody else's; the control socket sets its own */
    if (stderr_is_journal())
        log_set_sink(journal_sink);
    _cleanup_(conf_freep) struct conf *conf = NULL;
    r = read_configuration(&args, &conf, &err);
    if (r == 0)
        r = kernels_select(getenv("FP9_CPU"), &err);
    if (r == 0 && conf->local_ducks) {
        char cores[1024];
        bool shared;
        r = local_share_cores(conf->local_cores, 0, conf->local_ducks, cores, sizeof cores, &shared, &err);
    }
    if (r == 0 && args.check_config && *conf->metrics_listen)
        r = metrics_http_check(conf->metrics_listen, &err);
    if (r == 0 && args.check_config) {
        puts("fp9d: the configuration is good");
        return 0;
    }
    if (r == 0) {
        enum log_level level = LOG_LEVEL_INFO;
        log_level_parse(conf->log_level, &level);
        log_set_level(level);
        signal(SIGPIPE, SIG_IGN);
        r = head_run(conf, &err);
    }
    if (r < 0) {
        log_error("main", "%s", err.message);
        return 1;
    }
    return 0;
}

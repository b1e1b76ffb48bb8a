#include "daemon/duck/keep.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "proto/base/cleanup.h"
#include "proto/base/log.h"

#define KEEP_NAME "weights"
#define KEEP_WAIT_US 5000000

static void names_free(char **names)
{
    for (char **name = names; name && *name; name++)
        free(*name);
    free(names);
}
CLEANUP_DEFINE(char **, names_free);

/* A memfd and nothing else: only those can be sealed. */
static bool usable(int fd, uint64_t bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || fcntl(fd, F_GET_SEALS) < 0) {
        log_warning("duck", "systemd kept descriptor %d as the weight buffer, and it is no memfd: given up", fd);
        return false;
    }
    if (bytes && (uint64_t)st.st_size != bytes) {
        log_info("duck", "the weight buffer that was kept has %lld bytes, %" PRIu64 " are configured: given up", (long long)st.st_size,
                 bytes);
        return false;
    }
    return true;
}

int keep_take(uint64_t bytes)
{
    _cleanup_(names_freep) char **names = NULL;
    int count = sd_listen_fds_with_names(1, &names), taken = -1;
    for (int i = 0; i < count; i++) {
        int fd = SD_LISTEN_FDS_START + i;
        bool weights = strcmp(names[i], KEEP_NAME) == 0;
        if (weights && taken < 0 && usable(fd, bytes)) {
            taken = fd;
            continue;
        }
        close(fd);
        if (!weights)
            sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", names[i]);
    }
    if (taken < 0 && count > 0)
        sd_notify(0, "FDSTOREREMOVE=1\nFDNAME=" KEEP_NAME);
    return taken;
}

void keep_store(int fd)
{
    int r = sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDPOLL=0\nFDNAME=" KEEP_NAME, &fd, 1);
    if (r > 0)
        r = sd_notify_barrier(0, KEEP_WAIT_US); /* from here on a crash loses nothing */
    if (r > 0)
        log_info("duck", "systemd keeps the weight buffer across restarts");
    else if (r == 0)
        log_info("duck", "not a service of systemd: the weights end with this process");
    else
        log_warning("duck", "the weight buffer could not be handed to systemd: %s; the weights end with this process", strerror(-r));
}

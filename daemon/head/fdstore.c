#include "daemon/head/fdstore.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "proto/base/log.h"

#define BUFFER_PREFIX "weights-"
#define SETTLE_US 5000000

struct passed {
    int fd; /* owned; -1: taken */
    char *name;
};

struct fdstore {
    struct passed *passed; /* owned */
    int count;
    bool put; /* something is on its way to systemd */
};

int fdstore_new(struct fdstore **ret_store, struct err *err)
{
    _cleanup_(fdstore_freep) struct fdstore *store = calloc(1, sizeof *store);
    if (!store)
        return err_no_memory(err, "passed descriptors", sizeof *store);
    char **names = NULL;
    int count = sd_listen_fds_with_names(1, &names);
    if (count < 0)
        return err_set(err, count, ERR_BAD_REQUEST, "passed descriptors: LISTEN_FDS and LISTEN_FDNAMES do not fit together: %s",
                       strerror(-count));
    store->passed = calloc((size_t)count + 1, sizeof *store->passed);
    if (!store->passed)
        return err_no_memory(err, "passed descriptors", (size_t)count * sizeof *store->passed);
    for (; store->count < count; store->count++)
        store->passed[store->count] = (struct passed){.fd = SD_LISTEN_FDS_START + store->count, .name = names[store->count]};
    free(names);
    *ret_store = STEAL(store);
    return 0;
}

void fdstore_free(struct fdstore *store)
{
    if (!store)
        return;
    for (int i = 0; i < store->count; i++) {
        closep(&store->passed[i].fd);
        free(store->passed[i].name);
    }
    free(store->passed);
    free(store);
}

static bool is_buffer(const struct passed *passed)
{
    return strncmp(passed->name, BUFFER_PREFIX, strlen(BUFFER_PREFIX)) == 0;
}

int fdstore_take_socket(struct fdstore *store, int *ret_fd, struct err *err)
{
    struct passed *found = NULL;
    for (int i = 0; i < store->count; i++) {
        struct passed *passed = &store->passed[i];
        if (passed->fd < 0 || is_buffer(passed))
            continue;
        if (found || sd_is_socket_unix(passed->fd, SOCK_STREAM, 1, NULL, 0) <= 0)
            return err_set(err, -EINVAL, ERR_BAD_REQUEST,
                           "socket activation passed descriptor \"%s\"%s; expected one listening AF_UNIX stream socket", passed->name,
                           found ? " as well" : "");
        found = passed;
    }
    *ret_fd = found ? STEAL_FD(found->fd) : -1;
    return 0;
}

int fdstore_take_buffer(struct fdstore *store, const char *duck)
{
    for (int i = 0; i < store->count; i++) {
        struct passed *passed = &store->passed[i];
        struct stat info;
        if (passed->fd < 0 || !is_buffer(passed) || strcmp(passed->name + strlen(BUFFER_PREFIX), duck) != 0)
            continue;
        /* A memfd and nothing else: only those can be sealed. What it holds the duck judges by its header. */
        if (fstat(passed->fd, &info) == 0 && S_ISREG(info.st_mode) && fcntl(passed->fd, F_GET_SEALS) >= 0)
            return STEAL_FD(passed->fd);
        log_warning("fdstore", "descriptor \"%s\" that systemd kept is no memfd: given up", passed->name);
        return -1;
    }
    return -1;
}

void fdstore_put_buffer(struct fdstore *store, const char *duck, int fd)
{
    char state[160];
    snprintf(state, sizeof state, "FDSTORE=1\nFDPOLL=0\nFDNAME=" BUFFER_PREFIX "%s", duck);
    int r = sd_pid_notify_with_fds(0, 0, state, &fd, 1);
    if (r < 0)
        log_warning("fdstore", "the weight buffer of duck %s could not be handed to systemd: %s", duck, strerror(-r));
    store->put |= r > 0;
}

void fdstore_drop_buffer(const char *duck)
{
    sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=" BUFFER_PREFIX "%s", duck);
}

void fdstore_settle(struct fdstore *store)
{
    for (int i = 0; i < store->count; i++) {
        struct passed *passed = &store->passed[i];
        if (passed->fd < 0 || !is_buffer(passed))
            continue;
        log_info("fdstore", "\"%s\" is kept for a duck that there is no more: given up", passed->name);
        sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", passed->name);
        closep(&passed->fd);
    }
    int r = store->put ? sd_notify_barrier(0, SETTLE_US) : 0;
    if (r < 0)
        log_warning("fdstore", "systemd has not confirmed the weight buffers: %s; a crash may lose them", strerror(-r));
}

#include "daemon/head/control.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "daemon/head/client.h"
#include "daemon/head/metrics.h"
#include "daemon/head/rpc.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

#define CONTROL_CLIENTS_MAX 1024
#define CONTROL_BACKLOG 128
#define CONTROL_ACCEPT_PAUSE CLOCK_NS_PER_S /* after EMFILE and the like */
#define CONTROL_COMPLAIN_EVERY (60 * CLOCK_NS_PER_S)

struct control {
    struct head *head;
    int listen_fd, lock_fd;
    bool own_socket; /* bound here: removed at the end; a socket of systemd's stays */
    char path[108];
    struct loop_io *io;
    bool paused;
    uint64_t resume_ns, complained_ns, looked_ns;
    struct client *clients[CONTROL_CLIENTS_MAX];
    uint32_t client_count;
    uint64_t next_client;
};

static void accept_clients(void *user, bool readable, bool writable);

/* Only the holder of the lock may remove a socket, so two starting daemons cannot remove each other's. */
static int take_socket_lock(struct control *control, const char *path, struct err *err)
{
    char lock[sizeof control->path + 8];
    snprintf(lock, sizeof lock, "%s.lock", path);
    control->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (control->lock_fd < 0)
        return err_errno(err, "control socket %s: lock file %s", path, lock);
    if (flock(control->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, -EADDRINUSE, ERR_BUSY, "control socket %s: is served by a running fp9d", path);
    return 0;
}

static int remove_stale(const struct sockaddr_un *address, struct err *err)
{
    struct stat info;
    if (lstat(address->sun_path, &info) < 0)
        return errno == ENOENT ? 0 : err_errno(err, "control socket %s", address->sun_path);
    if (!S_ISSOCK(info.st_mode))
        return err_set(err, -EEXIST, ERR_BAD_REQUEST, "control socket %s: a file that is no socket is in its place", address->sun_path);
    _cleanup_(closep) int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return err_errno(err, "control socket %s", address->sun_path);
    if (connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 || errno != ECONNREFUSED)
        return err_set(err, -EADDRINUSE, ERR_BUSY, "control socket %s: is served by another process", address->sun_path);
    if (unlink(address->sun_path) < 0)
        return err_errno(err, "control socket %s: a stale one cannot be removed", address->sun_path);
    log_info("control", "%s: stale socket of a daemon that died was removed", address->sun_path);
    return 0;
}

static int bind_socket(struct control *control, const char *path, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int r = take_socket_lock(control, path, err);
    if (r == 0)
        r = remove_stale(&address, err);
    if (r < 0)
        return r;
    control->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (control->listen_fd < 0)
        return err_errno(err, "control socket %s", path);
    /* Before bind, so that there is no moment with wider permissions. */
    mode_t old = umask(0117);
    r = bind(control->listen_fd, (struct sockaddr *)&address, sizeof address);
    int number = errno;
    umask(old);
    errno = number;
    if (r < 0)
        return err_errno(err, "control socket %s: bind", path);
    control->own_socket = true;
    snprintf(control->path, sizeof control->path, "%s", path);
    if (listen(control->listen_fd, CONTROL_BACKLOG) < 0)
        return err_errno(err, "control socket %s: listen", path);
    return 0;
}

int control_new(struct head *head, const char *path, int passed_fd, struct control **ret_control, struct err *err)
{
    _cleanup_(control_freep) struct control *control = calloc(1, sizeof *control);
    if (!control)
        return err_no_memory(err, "control socket", sizeof *control);
    control->head = head;
    control->listen_fd = control->lock_fd = -1;
    control->next_client = 1;
    control->listen_fd = passed_fd;
    if (passed_fd >= 0 && fcntl(passed_fd, F_SETFL, O_NONBLOCK) < 0)
        return err_errno(err, "socket activation");
    int r = passed_fd < 0 ? bind_socket(control, path, err) : 0;
    if (r < 0)
        return r;
    r = loop_io_add(head->loop, control->listen_fd, accept_clients, control, &control->io, err);
    if (r < 0)
        return r;
    *ret_control = STEAL(control);
    return 0;
}

void control_free(struct control *control)
{
    if (!control)
        return;
    for (uint32_t i = 0; i < control->client_count; i++)
        client_free(control->clients[i]);
    loop_io_free(control->io);
    if (control->own_socket)
        unlink(control->path);
    closep(&control->listen_fd);
    closep(&control->lock_fd);
    free(control);
}

void control_stop(struct control *control)
{
    loop_io_want(control->io, false, false);
    control->paused = true;
    control->resume_ns = UINT64_MAX;
}

static struct client *find(const struct control *control, uint64_t id)
{
    for (uint32_t i = 0; i < control->client_count; i++)
        if (client_id(control->clients[i]) == id)
            return control->clients[i];
    return NULL;
}

static void client_closed(void *user, uint64_t id)
{
    struct control *control = user;
    for (uint32_t i = 0; i < control->client_count; i++) {
        if (client_id(control->clients[i]) != id)
            continue;
        client_free(control->clients[i]);
        control->clients[i] = control->clients[--control->client_count];
        break;
    }
    rpc_client_gone(control->head, id);
}

static void client_line(void *user, uint64_t id, const char *line, size_t length)
{
    struct control *control = user;
    client_asked(find(control, id));
    rpc_dispatch(control->head, id, line, length);
}

/* Out of descriptors: waiting connections would wake the loop for ever, so it looks away for a second. */
static void pause_accepting(struct control *control, const char *why)
{
    uint64_t now = clock_now_ns();
    if (!control->complained_ns || now - control->complained_ns >= CONTROL_COMPLAIN_EVERY) {
        log_warning("control", "no new clients for now: %s", why);
        control->complained_ns = now;
    }
    control->paused = true;
    control->resume_ns = now + CONTROL_ACCEPT_PAUSE;
    loop_io_want(control->io, false, false);
}

/* Says why, instead of letting the caller wait in the backlog. */
static void turn_away(int fd)
{
    struct err err = {0};
    err_set(&err, -EBUSY, ERR_BUSY, "%d clients are connected, which is the limit", CONTROL_CLIENTS_MAX);
    err_value_str(&err, "what", "clients");
    err_value_int(&err, "limit", CONTROL_CLIENTS_MAX);
    err_value_int(&err, "in_use", CONTROL_CLIENTS_MAX);
    size_t length;
    _cleanup_(freep) char *line = rpc_reply_error(json_null(), &err, &length);
    if (line && send(fd, line, length, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        log_debug("control", "a client that was turned away did not wait for the reason");
}

static void accept_clients(void *user, bool readable, bool writable)
{
    (void)readable;
    (void)writable;
    struct control *control = user;
    while (!control->paused) {
        _cleanup_(closep) int fd = accept4(control->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EAGAIN)
                return;
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                pause_accepting(control, strerror(errno));
            continue;
        }
        if (control->client_count == CONTROL_CLIENTS_MAX) {
            turn_away(fd);
            continue;
        }
        struct client_callbacks callbacks = {.user = control, .line = client_line, .closed = client_closed};
        struct client *client;
        struct err err = {0};
        if (client_new(control->head->loop, STEAL_FD(fd), control->next_client++, control->head->conf->admin_group, &callbacks, &client,
                       &err) < 0) {
            log_warning("control", "a client was turned away: %s", err.message);
            continue;
        }
        control->clients[control->client_count++] = client;
    }
}

void control_tick(struct control *control, uint64_t now)
{
    if (control->paused && now >= control->resume_ns) {
        control->paused = false;
        loop_io_want(control->io, true, false);
    }
    if (now - control->looked_ns < CLOCK_NS_PER_S)
        return;
    control->looked_ns = now;
    for (uint32_t i = control->client_count; i-- > 0;) /* backwards: the last one takes the place of one that goes */
        if (!client_tick(control->clients[i], now))
            client_closed(control, client_id(control->clients[i]));
}

bool control_client_is_admin(const struct control *control, uint64_t id)
{
    const struct client *client = find(control, id);
    return client && client_is_admin(client);
}

const char *control_client_who(const struct control *control, uint64_t id, char text[CONTROL_WHO_MAX])
{
    const struct client *client = find(control, id);
    if (client)
        snprintf(text, CONTROL_WHO_MAX, "uid %u", (unsigned)client_uid(client));
    else
        snprintf(text, CONTROL_WHO_MAX, "nobody");
    return text;
}

void control_client_asks(const struct control *control, uint64_t id, uint64_t job)
{
    const struct client *client = find(control, id);
    if (client)
        core_job_asked(control->head->core, job, client_uid(client), client_pid(client));
}

int control_take_fd(struct control *control, uint64_t id)
{
    struct client *client = find(control, id);
    return client ? client_take_fd(client) : -1;
}

uint32_t control_client_count(const struct control *control)
{
    return control->client_count;
}

uint32_t control_unanswered(const struct control *control, uint64_t id)
{
    const struct client *client = find(control, id);
    return client ? client_unanswered(client) : 0;
}

size_t control_waiting_bytes(const struct control *control, uint64_t id)
{
    const struct client *client = find(control, id);
    return client ? client_waiting_bytes(client) : 0;
}

static void answered(struct control *control, uint64_t id)
{
    struct client *client = find(control, id);
    if (client)
        client_answered(client);
}

static void send_line(struct control *control, uint64_t id, char *line, size_t length, const int *fds, size_t fd_count)
{
    struct client *client = find(control, id);
    if (client && line)
        client_send(client, line, length, fds, fd_count);
    else
        free(line);
}

void control_reply_fds(struct control *control, uint64_t client, const json_t *id, json_t *result, const int *fds, size_t fd_count)
{
    answered(control, client);
    size_t length;
    char *line = result ? rpc_reply_result(id, result, &length) : NULL;
    json_decref(result);
    if (!line) { /* never leave a request unanswered */
        struct err err = {0};
        err_set(&err, -EIO, ERR_INTERNAL, "the answer cannot be put into JSON");
        line = rpc_reply_error(id, &err, &length);
        fd_count = 0;
    }
    send_line(control, client, line, length, fds, fd_count);
}

void control_reply(struct control *control, uint64_t client, const json_t *id, json_t *result, int fd)
{
    control_reply_fds(control, client, id, result, &fd, fd >= 0);
}

void control_reply_error(struct control *control, uint64_t client, const json_t *id, const struct err *err)
{
    metrics_error(control->head, err);
    answered(control, client);
    size_t length;
    char *line = rpc_reply_error(id, err, &length);
    send_line(control, client, line, length, NULL, 0);
}

void control_notify(struct control *control, uint64_t client, const char *method, json_t *params)
{
    size_t length;
    char *line = rpc_notification(method, params, &length);
    json_decref(params);
    send_line(control, client, line, length, NULL, 0);
}

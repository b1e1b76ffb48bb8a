/* One connection to the control socket: lines in, lines (with descriptors) out. Loop thread only. */
#ifndef FP9_HEAD_CLIENT_H
#define FP9_HEAD_CLIENT_H

#include <stdbool.h>
#include <sys/types.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/head/loop.h"

struct client;

struct client_callbacks {
    void *user;
    void (*line)(void *user, uint64_t client, const char *line, size_t length); /* without the newline */
    void (*closed)(void *user, uint64_t client); /* from the loop, never from within client_send; must free the client */
};

/* Takes fd, also on failure. */
int client_new(struct loop *loop, int fd, uint64_t id, const char *admin_group, const struct client_callbacks *callbacks,
               struct client **ret_client, struct err *err);
void client_free(struct client *client);
CLEANUP_DEFINE(struct client *, client_free);

uint64_t client_id(const struct client *client);
/* root, fp9d's own user, or a member of admin_group, by SO_PEERCRED and SO_PEERGROUPS at connect time. */
bool client_is_admin(const struct client *client);
uid_t client_uid(const struct client *client);
pid_t client_pid(const struct client *client);

/* The oldest descriptor that came with the line being handled, or with a byte before it, and that was not taken; -1: none. The caller owns
 * it. Those nobody takes are closed after the line. Only an administrator's are kept that long. */
int client_take_fd(struct client *client);

#define CLIENT_SEND_FDS_MAX 2
/* Takes `line` (malloced). The descriptors are duplicated and go with the line's first byte. A client that does not read what it asked for
 * is asked for no more requests, and cut off when too much has gathered. */
void client_send(struct client *client, char *line, size_t length, const int *fds, size_t fd_count);
size_t client_waiting_bytes(const struct client *client); /* sent here and not yet taken by the socket */

/* Requests that were handed over and not answered. */
void client_asked(struct client *client);
void client_answered(struct client *client);
uint32_t client_unanswered(const struct client *client);
/* Now and then. False: the client is to be freed, since it has begun a line and does not end it. */
bool client_tick(struct client *client, uint64_t now);

#endif

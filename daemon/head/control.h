/* The control socket: listening, clients, lines in, replies out. What the methods do is in rpc_*.c. Loop thread only. */
#ifndef FP9_HEAD_CONTROL_H
#define FP9_HEAD_CONTROL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/head/head.h"

struct control;

/* passed_fd: the socket of a socket activation (taken), or -1: `path` is bound; a stale one is taken over, one that
 * is served is refused. */
int control_new(struct head *head, const char *path, int passed_fd, struct control **ret_control, struct err *err);
void control_free(struct control *control);
CLEANUP_DEFINE(struct control *, control_free);
void control_tick(struct control *control, uint64_t now);
/* No new clients and requests; what is queued still goes out. */
void control_stop(struct control *control);

/* A client is named by a number that is never used again, so that an answer that comes too late cannot reach another. */
bool control_client_is_admin(const struct control *control, uint64_t client);
/* "uid 1000": who is at the other end; "nobody" when it is gone. */
#define CONTROL_WHO_MAX 32
const char *control_client_who(const struct control *control, uint64_t client, char text[CONTROL_WHO_MAX]);
/* The job is this client's wish (core_job_asked). */
void control_client_asks(const struct control *control, uint64_t client, uint64_t job);
/* client_take_fd of the client whose line is being handled. */
int control_take_fd(struct control *control, uint64_t client);
uint32_t control_client_count(const struct control *control);
/* Requests of a client that were not answered yet, the one being handled counted; bytes that wait for it to read. */
uint32_t control_unanswered(const struct control *control, uint64_t client);
size_t control_waiting_bytes(const struct control *control, uint64_t client);

/* Answers a request. `result` is taken; fd >= 0 goes with the first byte and stays the caller's. A client that is gone is no error. */
void control_reply(struct control *control, uint64_t client, const json_t *id, json_t *result, int fd);
/* With several descriptors, in this order; CLIENT_SEND_FDS_MAX at most. */
void control_reply_fds(struct control *control, uint64_t client, const json_t *id, json_t *result, const int *fds, size_t fd_count);
void control_reply_error(struct control *control, uint64_t client, const json_t *id, const struct err *err);
/* `params` is taken. */
void control_notify(struct control *control, uint64_t client, const char *method, json_t *params);

#endif

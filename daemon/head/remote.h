/* The way to a duck on the network: its name is looked up on a worker, its addresses are tried one after another, nothing blocks the
 * loop. Loop thread only. */
#ifndef FP9_HEAD_REMOTE_H
#define FP9_HEAD_REMOTE_H

#include "daemon/head/worker.h"

struct remote;

/* fd: connected and nonblocking, the callee's; or -1 and why. Called from the loop, never from within remote_connect; the remote is gone
 * by then. */
typedef void (*remote_fn)(void *user, int fd, const char *why);

/* address: "HOST:PORT". Every error comes by way of done. */
struct remote *remote_connect(struct loop *loop, struct worker *names, const char *address, remote_fn done, void *user);
/* Gives it up: done is not called. NULL is fine. */
void remote_cancel(struct remote *remote);

#endif

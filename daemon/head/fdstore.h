/* Descriptors that outlive fp9d: what systemd passes at the start, by name, and what it is given to keep (FileDescriptorStoreMax= in the
 * unit). The weight buffers of local ducks are kept, so that a restart or a crash of fp9d, and its upgrade, lose no weights. A full stop
 * and a reboot end them.
 *
 * Main thread, before others start. */
#ifndef FP9_HEAD_FDSTORE_H
#define FP9_HEAD_FDSTORE_H

#include "proto/base/cleanup.h"
#include "proto/base/err.h"

struct fdstore;

/* Takes everything that was passed; once in a process. */
int fdstore_new(struct fdstore **ret_store, struct err *err);
/* Closes what nobody took. */
void fdstore_free(struct fdstore *store);
CLEANUP_DEFINE(struct fdstore *, fdstore_free);

/* The listening control socket, -1: none was passed. The caller's from here on. More than one is BAD_REQUEST. */
int fdstore_take_socket(struct fdstore *store, int *ret_fd, struct err *err);
/* The weight buffer of that local duck from an earlier run, -1: none. The caller's. */
int fdstore_take_buffer(struct fdstore *store, const char *duck);

/* Asks systemd to keep a duck's buffer, or to forget the one it has. Nothing happens when fp9d is no service. */
void fdstore_put_buffer(struct fdstore *store, const char *duck, int fd);
void fdstore_drop_buffer(const char *duck);
/* After all puts: waits until systemd has them, so that a crash from here on loses nothing. Then forgets what was passed and not taken. */
void fdstore_settle(struct fdstore *store);

#endif

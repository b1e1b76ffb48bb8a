/* The door of a fp9-duck that is a service: a listening TCP socket, one head inside at a time. One thread. */
#ifndef FP9_DUCK_LISTEN_H
#define FP9_DUCK_LISTEN_H

#include "proto/base/cleanup.h"
#include "proto/base/err.h"

#define LISTEN_PEER_MAX 80

struct listen;

/* address: "ADDR:PORT" as in transport_tcp.h; a name is looked up. */
int listen_open(const char *address, struct listen **ret_listen, struct err *err);
void listen_close(struct listen *listen);
CLEANUP_DEFINE(struct listen *, listen_close);
int listen_fd(const struct listen *listen); /* to poll for reading */

/* The next one who knocks: *ret_fd (the caller's) and "ADDRESS:PORT". -EAGAIN: nobody, and err is as it was. */
int listen_accept(struct listen *listen, int *ret_fd, char ret_peer[LISTEN_PEER_MAX], struct err *err);

/* Its answer is FAIL with `why`, and the link's end. Takes fd. */
void listen_send_away(struct listen *listen, int fd, const struct err *why);

/* Everybody who knocks now is told that the duck is busy, and with whom (link_peer). */
void listen_refuse(struct listen *listen, const char *duck, const char *holder);

#endif

/* Those who have connected to a fp9-duck and have not said who they are yet: none of them keeps another one waiting. One thread. */
#ifndef FP9_DUCK_DOOR_H
#define FP9_DUCK_DOOR_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/duck/listen.h"

#define DOOR_MAX 64

struct door_visitor {
    int fd; /* owned */
    char who[LISTEN_PEER_MAX];
    uint64_t by_ns; /* when its patience with it ends */
};

/* Zero-initialised is empty. */
struct door {
    struct door_visitor visitors[DOOR_MAX]; /* oldest first */
    size_t count;                           /* at most DOOR_MAX - 1 between door_add and the next */
};

/* Takes the visitor. False: it is full, so that door_first is to be called before the next one. */
bool door_add(struct door *door, const struct door_visitor *visitor);
/* Takes out the first who has sent a whole HELLO, or something that is none, or has closed; nothing of it is read. False: nobody. */
bool door_spoken(struct door *door, struct door_visitor *ret_visitor);
/* Takes out the first of all when it is overdue, or `always`. */
bool door_first(struct door *door, uint64_t now, bool always, struct door_visitor *ret_visitor);
/* What to poll, [door->count], and for how long: -1 when nobody is there. */
void door_polls(const struct door *door, struct pollfd *ret_polls);
int door_timeout_ms(const struct door *door, uint64_t now);

#endif

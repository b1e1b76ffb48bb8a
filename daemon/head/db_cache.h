/* What the database holds of the weight cache: the mirror of the ducks' headers, why slots are gone, what loads came to. The ducks'
 * headers are the truth; this is for saying what has changed. Threads as in db.h. */
#ifndef FP9_HEAD_DB_CACHE_H
#define FP9_HEAD_DB_CACHE_H

#include <stddef.h>

#include "daemon/head/db.h"
#include "proto/wire/msg_hello.h"
#include "proto/wire/msg_prepare.h"

#define DB_HISTORY_MAX 500 /* loads; older ones are forgotten */

/* One duck's row and slots, in place of those before. */
int db_save_duck(struct db *db, const char *name, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t count,
                 struct err *err);
/* A duck that was never saved: 1 and nothing. *ret_slots is malloced. */
int db_load_duck(struct db *db, const char *name, struct msg_hello_duck *ret_hello, struct msg_slot **ret_slots, size_t *ret_count,
                 struct err *err);

struct db_loss {
    uint8_t key[DIGEST_SIZE];
    char duck[64];   /* "": every one */
    long long layer; /* -1: every one */
    char text[192];
};
/* All of them, oldest first, in place of those before. */
int db_save_losses(struct db *db, const struct db_loss *losses, size_t count, struct err *err);
int db_each_loss(struct db *db, void (*each)(void *user, const struct db_loss *loss), void *user, struct err *err);

/* Drops that a duck has not heard of: `layer` is not used, a key of zeros means all. The same order and ownership. */
int db_save_revoked(struct db *db, const struct db_loss *revoked, size_t count, struct err *err);
int db_each_revoked(struct db *db, void (*each)(void *user, const struct db_loss *revoked), void *user, struct err *err);

struct db_history {
    long long time; /* seconds since 1970 */
    long long job;
    char kind[16], model[64], result[16], cache[16];
    char reason[1024]; /* or the error */
    unsigned long long bytes_read, bytes_sent;
    double seconds;
};
int db_add_history(struct db *db, const struct db_history *entry, struct err *err);
/* The last `most`, oldest of them first. */
int db_each_history(struct db *db, unsigned most, void (*each)(void *user, const struct db_history *entry), void *user, struct err *err);

#endif

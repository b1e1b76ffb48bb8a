/* Private to db*.c. */
#ifndef FP9_HEAD_DB_STATE_H
#define FP9_HEAD_DB_STATE_H

#include <limits.h>
#include <pthread.h>
#include <sqlite3.h>

#include "daemon/head/db.h"

struct db {
    sqlite3 *handle;
    int lock_fd; /* flock on DIR/lock: one fp9d a state directory */
    char path[PATH_MAX];
    pthread_mutex_t lock; /* guards the two below */
    uint64_t errors;
    char last_error[ERR_MESSAGE_MAX];
};

int db_err(struct db *db, const char *what, struct err *err);
int db_execute(struct db *db, const char *sql, const char *what, struct err *err);

#endif

/* What fp9d must remember across restarts, in sqlite: the registered models, and what the shards of checkpoints hold.
 *
 * Opened on the loop's thread before the loop runs, used on the disk worker afterwards; never by two threads at once. */
#ifndef FP9_HEAD_DB_H
#define FP9_HEAD_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/plan.h"
#include "proto/base/cleanup.h"
#include "proto/base/err.h"

struct db;

struct db_model {
    char name[64];
    char path[4096];
    uint32_t tp, multiple_of; /* as they were planned */
    bool mtp;                 /* with the layers for multi-token prediction */
    char strategy[PLAN_STRATEGY_TEXT];
    char model_key[65]; /* hex */
    uint32_t layout;    /* version of the slots' layout then */
    char unloaded[192]; /* why it is not to be loaded by itself; "": it is */
};

/* Opens DIR/fp9d.db, takes the directory's lock, brings the schema up to date. A file that is no database, or a damaged one, is set aside
 * as fp9d.db.damaged-N and a new one begun; *ret_set_aside (caller frees) names it then, else NULL. */
int db_open(const char *dir, struct db **ret_db, char **ret_set_aside, struct err *err);
void db_close(struct db *db);
CLEANUP_DEFINE(struct db *, db_close);

int db_save_model(struct db *db, const struct db_model *model, struct err *err);
int db_forget_model(struct db *db, const char *name, struct err *err);
/* Calls `each` for every model, by name. Stops at and returns its first negative result. */
int db_each_model(struct db *db, int (*each)(void *user, const struct db_model *model), void *user, struct err *err);

/* How many operations have failed so far, and the last one's sentence. Any thread. */
uint64_t db_errors(struct db *db, char ret_last[ERR_MESSAGE_MAX]);

/* Several writes as one. db_end gives the first error, also that of a write before it. */
int db_begin(struct db *db, struct err *err);
int db_end(struct db *db, bool good, struct err *err);

/* The digests of a shard (checkpoint_record_write), by directory and file name. Those not used for longest are forgotten beyond
 * DB_RECORDS_MAX. An unknown one is an empty record. */
#define DB_RECORDS_MAX 8192
struct buf;
/* What the weights of a model from memory were stands there too, as file "memory/MODEL": kept until the model is forgotten. */
int db_save_record(struct db *db, const char *dir, const char *file, const void *record, size_t length, struct err *err);
int db_load_record(struct db *db, const char *dir, const char *file, struct buf *ret_record, struct err *err);

#endif

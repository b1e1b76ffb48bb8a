#include "daemon/head/db.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "daemon/head/db_state.h"
#include "daemon/model/checkpoint.h"

#define DB_ASIDE_MAX 1000
#define DB_BUSY_MS 2000

/* Step i brings user_version i to i + 1. */
static const char *const migrations[] = {
    "CREATE TABLE model (name TEXT PRIMARY KEY, path TEXT NOT NULL, tp INTEGER NOT NULL, multiple_of INTEGER NOT NULL,"
    " strategy TEXT NOT NULL, model_key TEXT NOT NULL) STRICT;",
    "CREATE TABLE shard (dir TEXT NOT NULL, file TEXT NOT NULL, record BLOB NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (dir, file))"
    " STRICT;",
    "ALTER TABLE model ADD COLUMN layout INTEGER NOT NULL DEFAULT 1;"
    "CREATE TABLE duck (name TEXT PRIMARY KEY, boot_id TEXT NOT NULL, isa TEXT NOT NULL, cores INTEGER NOT NULL,"
    " capacity INTEGER NOT NULL) STRICT;"
    "CREATE TABLE slot (duck TEXT NOT NULL, model_key TEXT NOT NULL, layer INTEGER NOT NULL, tp INTEGER NOT NULL, rank INTEGER NOT NULL,"
    " multiple_of INTEGER NOT NULL, kind TEXT NOT NULL, bytes INTEGER NOT NULL, checksum TEXT NOT NULL, sources TEXT NOT NULL,"
    " PRIMARY KEY (duck, model_key, layer)) STRICT;"
    "CREATE TABLE loss (model_key TEXT NOT NULL, duck TEXT NOT NULL, layer INTEGER NOT NULL, text TEXT NOT NULL) STRICT;"
    "CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, job INTEGER NOT NULL, kind TEXT NOT NULL,"
    " model TEXT NOT NULL, result TEXT NOT NULL, cache TEXT NOT NULL, reason TEXT NOT NULL, bytes_read INTEGER NOT NULL,"
    " bytes_sent INTEGER NOT NULL, seconds REAL NOT NULL) STRICT;",
    "CREATE TABLE revoked (duck TEXT NOT NULL, model_key TEXT NOT NULL, text TEXT NOT NULL) STRICT;",
    "CREATE TABLE job (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, model TEXT NOT NULL, state TEXT NOT NULL, layer INTEGER NOT NULL,"
    " uid INTEGER NOT NULL, pid INTEGER NOT NULL, queued INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER NOT NULL,"
    " total_bytes INTEGER NOT NULL, read_bytes INTEGER NOT NULL, sent_bytes INTEGER NOT NULL, total_tokens INTEGER NOT NULL,"
    " done_tokens INTEGER NOT NULL, error_code INTEGER NOT NULL, error_name TEXT NOT NULL, error_message TEXT NOT NULL,"
    " error_values TEXT NOT NULL, result TEXT NOT NULL) STRICT;",
    "ALTER TABLE model ADD COLUMN mtp INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE model ADD COLUMN unloaded TEXT NOT NULL DEFAULT '';",
};

int db_err(struct db *db, const char *what, struct err *err)
{
    const char *why = db->handle ? sqlite3_errmsg(db->handle) : "cannot be opened";
    pthread_mutex_lock(&db->lock);
    db->errors++;
    snprintf(db->last_error, sizeof db->last_error, "%.512s: %.400s", what, why);
    pthread_mutex_unlock(&db->lock);
    return err_set(err, -EIO, ERR_INTERNAL, "%s: %s: %s", db->path, what, why);
}

uint64_t db_errors(struct db *db, char ret_last[ERR_MESSAGE_MAX])
{
    pthread_mutex_lock(&db->lock);
    uint64_t errors = db->errors;
    memcpy(ret_last, db->last_error, sizeof db->last_error);
    pthread_mutex_unlock(&db->lock);
    return errors;
}

void db_close(struct db *db)
{
    if (!db)
        return;
    sqlite3_close(db->handle);
    closep(&db->lock_fd);
    free(db);
}

static int take_lock(struct db *db, const char *dir, struct err *err)
{
    char path[PATH_MAX];
    struct stat info;
    if (stat(dir, &info) < 0 && errno == ENOENT)
        return err_set(err, -ENOENT, ERR_BAD_REQUEST,
                       "state directory %s: No such file or directory; make it, name another one with --state-dir, or start fp9d by its "
                       "unit, whose StateDirectory= makes it",
                       dir);
    if (stat(dir, &info) < 0)
        return err_errno(err, "state directory %s", dir);
    if (!S_ISDIR(info.st_mode))
        return err_set(err, -ENOTDIR, ERR_BAD_REQUEST, "state directory %s: is not a directory", dir);
    if ((size_t)snprintf(path, sizeof path, "%s/lock", dir) >= sizeof path)
        return err_set(err, -ENAMETOOLONG, ERR_BAD_REQUEST, "state directory %s: its name is too long", dir);
    db->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (db->lock_fd < 0)
        return err_errno(err, "state directory %s: cannot be written", dir);
    if (flock(db->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, -EBUSY, ERR_BUSY, "state directory %s: another fp9d uses it", dir);
    return 0;
}

int db_execute(struct db *db, const char *sql, const char *what, struct err *err)
{
    if (sqlite3_exec(db->handle, sql, NULL, NULL, NULL) != SQLITE_OK)
        return db_err(db, what, err);
    return 0;
}

/* One value of a one-row query as text. */
static int ask(struct db *db, const char *sql, char *ret_text, size_t size, struct err *err)
{
    sqlite3_stmt *statement = NULL;
    int r = -EIO;
    if (sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL) == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW) {
        const unsigned char *text = sqlite3_column_text(statement, 0);
        snprintf(ret_text, size, "%s", text ? (const char *)text : "");
        r = 0;
    } else {
        db_err(db, sql, err);
    }
    sqlite3_finalize(statement);
    return r;
}

static int migrate(struct db *db, struct err *err)
{
    char text[32];
    int r = ask(db, "PRAGMA user_version", text, sizeof text, err);
    if (r < 0)
        return r;
    long version = strtol(text, NULL, 10);
    if (version < 0)
        return err_set(err, -EBADMSG, ERR_INTERNAL, "%s: has the impossible version %ld", db->path, version);
    if ((size_t)version > ARRAY_LENGTH(migrations))
        return err_set(err, -EPROTO, ERR_INTERNAL, "%s: is of version %ld, this fp9d knows up to %zu; it was written by a newer one",
                       db->path, version, ARRAY_LENGTH(migrations));
    for (size_t i = (size_t)version; i < ARRAY_LENGTH(migrations); i++) {
        char sql[4096];
        snprintf(sql, sizeof sql, "BEGIN; %s PRAGMA user_version = %zu; COMMIT;", migrations[i], i + 1);
        if (db_execute(db, sql, "migration", err) < 0)
            return -EBADMSG; /* what is in it is not what its version says */
    }
    return db_execute(db, "SELECT name, path, tp, multiple_of, strategy, model_key, layout, mtp, unloaded FROM model LIMIT 0",
                      "table of models", err) < 0
               ? -EBADMSG
               : 0;
}

/* -EBADMSG when the file is not a sound database of ours. */
static int open_file(struct db *db, struct err *err)
{
    if (sqlite3_open_v2(db->path, &db->handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW, NULL) != SQLITE_OK)
        return db_err(db, "open", err);
    sqlite3_busy_timeout(db->handle, DB_BUSY_MS);
    char text[256];
    if (ask(db, "PRAGMA quick_check(1)", text, sizeof text, err) < 0) {
        int code = sqlite3_errcode(db->handle);
        return code == SQLITE_NOTADB || code == SQLITE_CORRUPT ? -EBADMSG : -EIO;
    }
    if (strcmp(text, "ok") != 0) {
        err_set(err, -EBADMSG, ERR_INTERNAL, "%s: damaged: %s", db->path, text);
        return -EBADMSG;
    }
    int r = db_execute(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;", "write-ahead log", err);
    return r < 0 ? r : migrate(db, err);
}

/* The database and its side files move away together: an old -wal beside a new database would be replayed into it. */
static int set_aside(struct db *db, char **ret_set_aside, struct err *err)
{
    sqlite3_close(db->handle);
    db->handle = NULL;
    char aside[PATH_MAX + 32], from[PATH_MAX + 8], to[PATH_MAX + 40];
    int number = 1;
    for (;; number++) {
        snprintf(aside, sizeof aside, "%s.damaged-%d", db->path, number);
        if (access(aside, F_OK) < 0)
            break;
        if (number == DB_ASIDE_MAX)
            return err_set(err, -EEXIST, ERR_INTERNAL, "%s: damaged, and %d damaged ones lie beside it already", db->path, number);
    }
    static const char *const sides[] = {"-wal", "-shm", ""};
    for (size_t i = 0; i < ARRAY_LENGTH(sides); i++) {
        snprintf(from, sizeof from, "%s%s", db->path, sides[i]);
        snprintf(to, sizeof to, "%s%s", aside, sides[i]);
        if (rename(from, to) < 0 && errno != ENOENT)
            return err_errno(err, "%s: damaged, and cannot be set aside", from);
    }
    *ret_set_aside = strdup(aside);
    return *ret_set_aside ? 0 : err_no_memory(err, "path", strlen(aside));
}

int db_open(const char *dir, struct db **ret_db, char **ret_set_aside, struct err *err)
{
    _cleanup_(db_closep) struct db *db = calloc(1, sizeof *db);
    if (!db)
        return err_no_memory(err, "database", sizeof *db);
    db->lock_fd = -1;
    pthread_mutex_init(&db->lock, NULL);
    if ((size_t)snprintf(db->path, sizeof db->path, "%s/fp9d.db", dir) >= sizeof db->path)
        return err_set(err, -ENAMETOOLONG, ERR_BAD_REQUEST, "state directory %s: its name is too long", dir);
    int r = take_lock(db, dir, err);
    if (r < 0)
        return r;
    *ret_set_aside = NULL;
    r = open_file(db, err);
    if (r == -EBADMSG) {
        r = set_aside(db, ret_set_aside, err);
        if (r == 0)
            r = open_file(db, err);
    }
    if (r < 0)
        return err ? err->code : r;
    *ret_db = STEAL(db);
    return 0;
}

int db_save_model(struct db *db, const struct db_model *model, struct err *err)
{
    sqlite3_stmt *statement = NULL;
    bool ok =
        sqlite3_prepare_v2(db->handle, "INSERT OR REPLACE INTO model VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", -1, &statement, NULL) ==
            SQLITE_OK &&
        sqlite3_bind_text(statement, 1, model->name, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_bind_text(statement, 2, model->path, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_bind_int64(statement, 3, model->tp) == SQLITE_OK && sqlite3_bind_int64(statement, 4, model->multiple_of) == SQLITE_OK &&
        sqlite3_bind_text(statement, 5, model->strategy, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_bind_text(statement, 6, model->model_key, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_bind_int64(statement, 7, model->layout) == SQLITE_OK && sqlite3_bind_int64(statement, 8, model->mtp) == SQLITE_OK &&
        sqlite3_bind_text(statement, 9, model->unloaded, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_DONE;
    int r = ok ? 0 : db_err(db, "save model", err);
    sqlite3_finalize(statement);
    return r;
}

static int delete_by_name(struct db *db, const char *sql, const char *name, struct err *err)
{
    sqlite3_stmt *statement = NULL;
    bool ok = sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL) == SQLITE_OK &&
              sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC) == SQLITE_OK && sqlite3_step(statement) == SQLITE_DONE;
    int r = ok ? 0 : db_err(db, "forget model", err);
    sqlite3_finalize(statement);
    return r;
}

int db_forget_model(struct db *db, const char *name, struct err *err)
{
    int r = delete_by_name(db, "DELETE FROM model WHERE name = ?", name, err);
    return r < 0 ? r : delete_by_name(db, "DELETE FROM shard WHERE file = 'memory/' || ?", name, err);
}

static void column(sqlite3_stmt *statement, int index, char *to, size_t size)
{
    const unsigned char *text = sqlite3_column_text(statement, index);
    snprintf(to, size, "%s", text ? (const char *)text : "");
}

int db_each_model(struct db *db, int (*each)(void *user, const struct db_model *model), void *user, struct err *err)
{
    sqlite3_stmt *statement = NULL;
    static const char sql[] = "SELECT name, path, tp, multiple_of, strategy, model_key, layout, mtp, unloaded FROM model ORDER BY name";
    if (sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL) != SQLITE_OK)
        return db_err(db, "list models", err);
    int r = 0, step = SQLITE_ROW;
    while (r == 0 && (step = sqlite3_step(statement)) == SQLITE_ROW) {
        struct db_model model = {0};
        column(statement, 0, model.name, sizeof model.name);
        column(statement, 1, model.path, sizeof model.path);
        model.tp = (uint32_t)sqlite3_column_int64(statement, 2);
        model.multiple_of = (uint32_t)sqlite3_column_int64(statement, 3);
        column(statement, 4, model.strategy, sizeof model.strategy);
        column(statement, 5, model.model_key, sizeof model.model_key);
        model.layout = (uint32_t)sqlite3_column_int64(statement, 6);
        model.mtp = sqlite3_column_int64(statement, 7) != 0;
        column(statement, 8, model.unloaded, sizeof model.unloaded);
        r = each(user, &model);
    }
    if (r == 0 && step != SQLITE_DONE)
        r = db_err(db, "list models", err);
    sqlite3_finalize(statement);
    return r;
}

int db_begin(struct db *db, struct err *err)
{
    return db_execute(db, "BEGIN", "begin", err);
}

int db_end(struct db *db, bool good, struct err *err)
{
    if (good)
        return db_execute(db, "COMMIT", "commit", err);
    sqlite3_exec(db->handle, "ROLLBACK", NULL, NULL, NULL);
    return err && err->code ? err->code : -EIO;
}

int db_save_record(struct db *db, const char *dir, const char *file, const void *record, size_t length, struct err *err)
{
    sqlite3_stmt *statement = NULL;
    bool ok =
        sqlite3_prepare_v2(db->handle, "INSERT OR REPLACE INTO shard VALUES (?, ?, ?, unixepoch())", -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_bind_text(statement, 1, dir, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_bind_text(statement, 2, file, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_bind_blob64(statement, 3, record, length, SQLITE_STATIC) == SQLITE_OK && sqlite3_step(statement) == SQLITE_DONE;
    int r = ok ? 0 : db_err(db, "save digests", err);
    sqlite3_finalize(statement);
    if (r < 0)
        return r;
    char sql[256];
    snprintf(sql, sizeof sql,
             "DELETE FROM shard WHERE (SELECT count(*) FROM shard) > %d AND rowid IN "
             "(SELECT rowid FROM shard WHERE file NOT LIKE 'memory/%%' ORDER BY used LIMIT 64)",
             DB_RECORDS_MAX);
    return db_execute(db, sql, "forget digests", err);
}

int db_load_record(struct db *db, const char *dir, const char *file, struct buf *ret_record, struct err *err)
{
    sqlite3_stmt *statement = NULL;
    int r = 0, step = SQLITE_ERROR;
    if (sqlite3_prepare_v2(db->handle, "SELECT record FROM shard WHERE dir = ? AND file = ?", -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_bind_text(statement, 1, dir, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_bind_text(statement, 2, file, -1, SQLITE_STATIC) == SQLITE_OK)
        step = sqlite3_step(statement);
    if (step == SQLITE_ROW) {
        size_t length = (size_t)sqlite3_column_bytes(statement, 0);
        if (length <= CHECKPOINT_RECORD_MAX && length)
            r = buf_append(ret_record, sqlite3_column_blob(statement, 0), length, CHECKPOINT_RECORD_MAX);
        if (r < 0)
            err_no_memory(err, "record of digests", length);
    } else if (step != SQLITE_DONE) {
        r = db_err(db, "read digests", err);
    }
    sqlite3_finalize(statement);
    return r;
}

#include "daemon/head/db_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/db_state.h"
#include "proto/wire/wire.h"

/* ---- statements ---- */

struct query {
    struct db *db;
    sqlite3_stmt *statement;
    const char *what;
    bool bad;
    int bound;
};

static struct query query_begin(struct db *db, const char *sql, const char *what)
{
    struct query query = {.db = db, .what = what};
    query.bad = sqlite3_prepare_v2(db->handle, sql, -1, &query.statement, NULL) != SQLITE_OK;
    return query;
}

static void bind_text(struct query *query, const char *text)
{
    query->bad = query->bad || sqlite3_bind_text(query->statement, ++query->bound, text, -1, SQLITE_TRANSIENT) != SQLITE_OK;
}

static void bind_int(struct query *query, long long value)
{
    query->bad = query->bad || sqlite3_bind_int64(query->statement, ++query->bound, value) != SQLITE_OK;
}

static void bind_real(struct query *query, double value)
{
    query->bad = query->bad || sqlite3_bind_double(query->statement, ++query->bound, value) != SQLITE_OK;
}

static void bind_hex(struct query *query, const uint8_t digest[DIGEST_SIZE])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(digest, hex);
    bind_text(query, hex);
}

/* True while there is a row. */
static bool query_step(struct query *query)
{
    if (query->bad)
        return false;
    int step = sqlite3_step(query->statement);
    query->bad = step != SQLITE_ROW && step != SQLITE_DONE;
    return step == SQLITE_ROW;
}

static int query_end(struct query *query, struct err *err)
{
    int r = query->bad ? db_err(query->db, query->what, err) : 0;
    sqlite3_finalize(query->statement);
    query->statement = NULL;
    return r;
}

/* A statement without rows, again with other values. */
static bool query_run(struct query *query)
{
    query_step(query);
    if (!query->bad)
        sqlite3_reset(query->statement);
    query->bound = 0;
    return !query->bad;
}

static void column_text(const struct query *query, int index, char *to, size_t size)
{
    const unsigned char *text = sqlite3_column_text(query->statement, index);
    snprintf(to, size, "%s", text ? (const char *)text : "");
}

static bool column_hex(const struct query *query, int index, uint8_t ret_digest[DIGEST_SIZE])
{
    char text[DIGEST_HEX_SIZE + 1];
    column_text(query, index, text, sizeof text);
    return digest_parse(text, ret_digest);
}

/* ---- ducks ---- */

static int save_slots(struct db *db, const char *name, const struct msg_slot *slots, size_t count, struct err *err)
{
    struct query query = query_begin(db, "INSERT OR REPLACE INTO slot VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", "save slots");
    for (size_t i = 0; i < count && !query.bad; i++) {
        const struct msg_slot *slot = &slots[i];
        char checksum[17];
        if (slot->state != MSG_SLOT_FINISHED)
            continue;
        snprintf(checksum, sizeof checksum, "%016" PRIx64, slot->checksum);
        bind_text(&query, name);
        bind_hex(&query, slot->model_key);
        bind_int(&query, slot->layer);
        bind_int(&query, slot->tp);
        bind_int(&query, slot->rank);
        bind_int(&query, slot->multiple_of);
        bind_text(&query, slot->kind == MSG_SLOT_MOE ? "moe" : "dense");
        bind_int(&query, (long long)slot->bytes);
        bind_text(&query, checksum);
        bind_hex(&query, slot->sources);
        query_run(&query);
    }
    return query_end(&query, err);
}

int db_save_duck(struct db *db, const char *name, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t count,
                 struct err *err)
{
    int r = db_begin(db, err);
    if (r < 0)
        return r;
    struct query query = query_begin(db, "INSERT OR REPLACE INTO duck VALUES (?, ?, ?, ?, ?)", "save duck");
    bind_text(&query, name);
    bind_text(&query, hello->boot_id);
    bind_text(&query, hello->isa);
    bind_int(&query, hello->cores);
    bind_int(&query, (long long)hello->capacity_bytes);
    query_run(&query);
    r = query_end(&query, err);
    if (r == 0) {
        query = query_begin(db, "DELETE FROM slot WHERE duck = ?", "save slots");
        bind_text(&query, name);
        query_run(&query);
        r = query_end(&query, err);
    }
    if (r == 0)
        r = save_slots(db, name, slots, count, err);
    return db_end(db, r == 0, err);
}

static int load_slots(struct db *db, const char *name, struct msg_slot *slots, size_t most, size_t *ret_count, struct err *err)
{
    struct query query = query_begin(
        db, "SELECT model_key, layer, tp, rank, multiple_of, kind, bytes, checksum, sources FROM slot WHERE duck = ?", "read slots");
    bind_text(&query, name);
    size_t count = 0;
    while (count < most && query_step(&query)) {
        struct msg_slot slot = {
            .layer = (uint32_t)sqlite3_column_int64(query.statement, 1),
            .tp = (uint32_t)sqlite3_column_int64(query.statement, 2),
            .rank = (uint32_t)sqlite3_column_int64(query.statement, 3),
            .multiple_of = (uint32_t)sqlite3_column_int64(query.statement, 4),
            .state = MSG_SLOT_FINISHED,
            .bytes = (uint64_t)sqlite3_column_int64(query.statement, 6),
        };
        char kind[8], checksum[20];
        column_text(&query, 5, kind, sizeof kind);
        column_text(&query, 7, checksum, sizeof checksum);
        slot.kind = strcmp(kind, "moe") == 0 ? MSG_SLOT_MOE : MSG_SLOT_DENSE;
        slot.checksum = strtoull(checksum, NULL, 16);
        if (column_hex(&query, 0, slot.model_key) && column_hex(&query, 8, slot.sources))
            slots[count++] = slot;
    }
    *ret_count = count;
    return query_end(&query, err);
}

int db_load_duck(struct db *db, const char *name, struct msg_hello_duck *ret_hello, struct msg_slot **ret_slots, size_t *ret_count,
                 struct err *err)
{
    struct query query = query_begin(db, "SELECT boot_id, isa, cores, capacity FROM duck WHERE name = ?", "read duck");
    bind_text(&query, name);
    bool there = query_step(&query);
    *ret_hello = (struct msg_hello_duck){0};
    if (there) {
        column_text(&query, 0, ret_hello->boot_id, sizeof ret_hello->boot_id);
        column_text(&query, 1, ret_hello->isa, sizeof ret_hello->isa);
        ret_hello->cores = (uint32_t)sqlite3_column_int64(query.statement, 2);
        ret_hello->capacity_bytes = (uint64_t)sqlite3_column_int64(query.statement, 3);
    }
    int r = query_end(&query, err);
    if (r < 0 || !there)
        return r < 0 ? r : 1;
    _cleanup_(freep) struct msg_slot *slots = calloc(WIRE_SLOTS_MAX, sizeof *slots);
    if (!slots)
        return err_no_memory(err, "list of slots", WIRE_SLOTS_MAX * sizeof *slots);
    r = load_slots(db, name, slots, WIRE_SLOTS_MAX, ret_count, err);
    if (r == 0)
        *ret_slots = STEAL(slots);
    return r;
}

/* ---- losses ---- */

int db_save_losses(struct db *db, const struct db_loss *losses, size_t count, struct err *err)
{
    int r = db_begin(db, err);
    if (r < 0)
        return r;
    r = db_execute(db, "DELETE FROM loss", "save losses", err);
    struct query query = query_begin(db, "INSERT INTO loss VALUES (?, ?, ?, ?)", "save losses");
    for (size_t i = 0; i < count && r == 0 && !query.bad; i++) {
        bind_hex(&query, losses[i].key);
        bind_text(&query, losses[i].duck);
        bind_int(&query, losses[i].layer);
        bind_text(&query, losses[i].text);
        query_run(&query);
    }
    int saved = query_end(&query, err);
    return db_end(db, r == 0 && saved == 0, err);
}

int db_each_loss(struct db *db, void (*each)(void *user, const struct db_loss *loss), void *user, struct err *err)
{
    struct query query = query_begin(db, "SELECT model_key, duck, layer, text FROM loss ORDER BY rowid", "read losses");
    while (query_step(&query)) {
        struct db_loss loss = {.layer = sqlite3_column_int64(query.statement, 2)};
        column_text(&query, 1, loss.duck, sizeof loss.duck);
        column_text(&query, 3, loss.text, sizeof loss.text);
        if (column_hex(&query, 0, loss.key))
            each(user, &loss);
    }
    return query_end(&query, err);
}

/* ---- revoked ---- */

int db_save_revoked(struct db *db, const struct db_loss *revoked, size_t count, struct err *err)
{
    int r = db_begin(db, err);
    if (r < 0)
        return r;
    r = db_execute(db, "DELETE FROM revoked", "save revoked keys", err);
    struct query query = query_begin(db, "INSERT INTO revoked VALUES (?, ?, ?)", "save revoked keys");
    for (size_t i = 0; i < count && r == 0 && !query.bad; i++) {
        bind_text(&query, revoked[i].duck);
        bind_hex(&query, revoked[i].key);
        bind_text(&query, revoked[i].text);
        query_run(&query);
    }
    int saved = query_end(&query, err);
    return db_end(db, r == 0 && saved == 0, err);
}

int db_each_revoked(struct db *db, void (*each)(void *user, const struct db_loss *revoked), void *user, struct err *err)
{
    struct query query = query_begin(db, "SELECT duck, model_key, text FROM revoked ORDER BY rowid", "read revoked keys");
    while (query_step(&query)) {
        struct db_loss revoked = {.layer = -1};
        column_text(&query, 0, revoked.duck, sizeof revoked.duck);
        column_text(&query, 2, revoked.text, sizeof revoked.text);
        if (column_hex(&query, 1, revoked.key))
            each(user, &revoked);
    }
    return query_end(&query, err);
}

/* ---- history ---- */

int db_add_history(struct db *db, const struct db_history *entry, struct err *err)
{
    struct query query = query_begin(db,
                                     "INSERT INTO history (time, job, kind, model, result, cache, reason, bytes_read, bytes_sent, seconds) "
                                     "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                                     "save history");
    bind_int(&query, entry->time);
    bind_int(&query, entry->job);
    bind_text(&query, entry->kind);
    bind_text(&query, entry->model);
    bind_text(&query, entry->result);
    bind_text(&query, entry->cache);
    bind_text(&query, entry->reason);
    bind_int(&query, (long long)entry->bytes_read);
    bind_int(&query, (long long)entry->bytes_sent);
    bind_real(&query, entry->seconds);
    query_run(&query);
    int r = query_end(&query, err);
    char sql[128];
    snprintf(sql, sizeof sql, "DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - %d", DB_HISTORY_MAX);
    return r < 0 ? r : db_execute(db, sql, "forget history", err);
}

int db_each_history(struct db *db, unsigned most, void (*each)(void *user, const struct db_history *entry), void *user, struct err *err)
{
    struct query query =
        query_begin(db,
                    "SELECT * FROM (SELECT id, time, job, kind, model, result, cache, reason, bytes_read, bytes_sent, seconds"
                    " FROM history ORDER BY id DESC LIMIT ?) ORDER BY id",
                    "read history");
    bind_int(&query, most);
    while (query_step(&query)) {
        struct db_history entry = {
            .time = sqlite3_column_int64(query.statement, 1),
            .job = sqlite3_column_int64(query.statement, 2),
            .bytes_read = (unsigned long long)sqlite3_column_int64(query.statement, 8),
            .bytes_sent = (unsigned long long)sqlite3_column_int64(query.statement, 9),
            .seconds = sqlite3_column_double(query.statement, 10),
        };
        column_text(&query, 3, entry.kind, sizeof entry.kind);
        column_text(&query, 4, entry.model, sizeof entry.model);
        column_text(&query, 5, entry.result, sizeof entry.result);
        column_text(&query, 6, entry.cache, sizeof entry.cache);
        column_text(&query, 7, entry.reason, sizeof entry.reason);
        each(user, &entry);
    }
    return query_end(&query, err);
}

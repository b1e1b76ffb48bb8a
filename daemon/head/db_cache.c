#include "daemon/head/db_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/db_query.h"
#include "proto/wire/wire.h"

/* ---- ducks ---- */

static int save_slots(struct db *db, const char *name, const struct msg_slot *slots, size_t count, struct err *err)
{
    struct db_query query = db_query_begin(db, "INSERT OR REPLACE INTO slot VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", "save slots");
    for (size_t i = 0; i < count && !query.bad; i++) {
        const struct msg_slot *slot = &slots[i];
        char checksum[17];
        if (slot->state != MSG_SLOT_FINISHED)
            continue;
        snprintf(checksum, sizeof checksum, "%016" PRIx64, slot->checksum);
        db_query_text(&query, name);
        db_query_hex(&query, slot->model_key);
        db_query_int(&query, slot->layer);
        db_query_int(&query, slot->tp);
        db_query_int(&query, slot->rank);
        db_query_int(&query, slot->multiple_of);
        db_query_text(&query, slot->kind == MSG_SLOT_MOE ? "moe" : "dense");
        db_query_int(&query, (long long)slot->bytes);
        db_query_text(&query, checksum);
        db_query_hex(&query, slot->sources);
        db_query_run(&query);
    }
    return db_query_end(&query, err);
}

int db_save_duck(struct db *db, const char *name, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t count,
                 struct err *err)
{
    int r = db_begin(db, err);
    if (r < 0)
        return r;
    struct db_query query = db_query_begin(db, "INSERT OR REPLACE INTO duck VALUES (?, ?, ?, ?, ?)", "save duck");
    db_query_text(&query, name);
    db_query_text(&query, hello->boot_id);
    db_query_text(&query, hello->isa);
    db_query_int(&query, hello->cores);
    db_query_int(&query, (long long)hello->capacity_bytes);
    db_query_run(&query);
    r = db_query_end(&query, err);
    if (r == 0) {
        query = db_query_begin(db, "DELETE FROM slot WHERE duck = ?", "save slots");
        db_query_text(&query, name);
        db_query_run(&query);
        r = db_query_end(&query, err);
    }
    if (r == 0)
        r = save_slots(db, name, slots, count, err);
    return db_end(db, r == 0, err);
}

static int load_slots(struct db *db, const char *name, struct msg_slot *slots, size_t most, size_t *ret_count, struct err *err)
{
    struct db_query query = db_query_begin(
        db, "SELECT model_key, layer, tp, rank, multiple_of, kind, bytes, checksum, sources FROM slot WHERE duck = ?", "read slots");
    db_query_text(&query, name);
    size_t count = 0;
    while (count < most && db_query_step(&query)) {
        struct msg_slot slot = {
            .layer = (uint32_t)sqlite3_column_int64(query.statement, 1),
            .tp = (uint32_t)sqlite3_column_int64(query.statement, 2),
            .rank = (uint32_t)sqlite3_column_int64(query.statement, 3),
            .multiple_of = (uint32_t)sqlite3_column_int64(query.statement, 4),
            .state = MSG_SLOT_FINISHED,
            .bytes = (uint64_t)sqlite3_column_int64(query.statement, 6),
        };
        char kind[8], checksum[20];
        db_query_column(&query, 5, kind, sizeof kind);
        db_query_column(&query, 7, checksum, sizeof checksum);
        slot.kind = strcmp(kind, "moe") == 0 ? MSG_SLOT_MOE : MSG_SLOT_DENSE;
        slot.checksum = strtoull(checksum, NULL, 16);
        if (db_query_column_hex(&query, 0, slot.model_key) && db_query_column_hex(&query, 8, slot.sources))
            slots[count++] = slot;
    }
    *ret_count = count;
    return db_query_end(&query, err);
}

int db_load_duck(struct db *db, const char *name, struct msg_hello_duck *ret_hello, struct msg_slot **ret_slots, size_t *ret_count,
                 struct err *err)
{
    struct db_query query = db_query_begin(db, "SELECT boot_id, isa, cores, capacity FROM duck WHERE name = ?", "read duck");
    db_query_text(&query, name);
    bool there = db_query_step(&query);
    *ret_hello = (struct msg_hello_duck){0};
    if (there) {
        db_query_column(&query, 0, ret_hello->boot_id, sizeof ret_hello->boot_id);
        db_query_column(&query, 1, ret_hello->isa, sizeof ret_hello->isa);
        ret_hello->cores = (uint32_t)sqlite3_column_int64(query.statement, 2);
        ret_hello->capacity_bytes = (uint64_t)sqlite3_column_int64(query.statement, 3);
    }
    int r = db_query_end(&query, err);
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
    struct db_query query = db_query_begin(db, "INSERT INTO loss VALUES (?, ?, ?, ?)", "save losses");
    for (size_t i = 0; i < count && r == 0 && !query.bad; i++) {
        db_query_hex(&query, losses[i].key);
        db_query_text(&query, losses[i].duck);
        db_query_int(&query, losses[i].layer);
        db_query_text(&query, losses[i].text);
        db_query_run(&query);
    }
    int saved = db_query_end(&query, err);
    return db_end(db, r == 0 && saved == 0, err);
}

int db_each_loss(struct db *db, void (*each)(void *user, const struct db_loss *loss), void *user, struct err *err)
{
    struct db_query query = db_query_begin(db, "SELECT model_key, duck, layer, text FROM loss ORDER BY rowid", "read losses");
    while (db_query_step(&query)) {
        struct db_loss loss = {.layer = sqlite3_column_int64(query.statement, 2)};
        db_query_column(&query, 1, loss.duck, sizeof loss.duck);
        db_query_column(&query, 3, loss.text, sizeof loss.text);
        if (db_query_column_hex(&query, 0, loss.key))
            each(user, &loss);
    }
    return db_query_end(&query, err);
}

/* ---- revoked ---- */

int db_save_revoked(struct db *db, const struct db_loss *revoked, size_t count, struct err *err)
{
    int r = db_begin(db, err);
    if (r < 0)
        return r;
    r = db_execute(db, "DELETE FROM revoked", "save revoked keys", err);
    struct db_query query = db_query_begin(db, "INSERT INTO revoked VALUES (?, ?, ?)", "save revoked keys");
    for (size_t i = 0; i < count && r == 0 && !query.bad; i++) {
        db_query_text(&query, revoked[i].duck);
        db_query_hex(&query, revoked[i].key);
        db_query_text(&query, revoked[i].text);
        db_query_run(&query);
    }
    int saved = db_query_end(&query, err);
    return db_end(db, r == 0 && saved == 0, err);
}

int db_each_revoked(struct db *db, void (*each)(void *user, const struct db_loss *revoked), void *user, struct err *err)
{
    struct db_query query = db_query_begin(db, "SELECT duck, model_key, text FROM revoked ORDER BY rowid", "read revoked keys");
    while (db_query_step(&query)) {
        struct db_loss revoked = {.layer = -1};
        db_query_column(&query, 0, revoked.duck, sizeof revoked.duck);
        db_query_column(&query, 2, revoked.text, sizeof revoked.text);
        if (db_query_column_hex(&query, 1, revoked.key))
            each(user, &revoked);
    }
    return db_query_end(&query, err);
}

/* ---- history ---- */

int db_add_history(struct db *db, const struct db_history *entry, struct err *err)
{
    struct db_query query = db_query_begin(db,
                                     "INSERT INTO history (time, job, kind, model, result, cache, reason, bytes_read, bytes_sent, seconds) "
                                     "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                                     "save history");
    db_query_int(&query, entry->time);
    db_query_int(&query, entry->job);
    db_query_text(&query, entry->kind);
    db_query_text(&query, entry->model);
    db_query_text(&query, entry->result);
    db_query_text(&query, entry->cache);
    db_query_text(&query, entry->reason);
    db_query_int(&query, (long long)entry->bytes_read);
    db_query_int(&query, (long long)entry->bytes_sent);
    db_query_real(&query, entry->seconds);
    db_query_run(&query);
    int r = db_query_end(&query, err);
    char sql[128];
    snprintf(sql, sizeof sql, "DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - %d", DB_HISTORY_MAX);
    return r < 0 ? r : db_execute(db, sql, "forget history", err);
}

int db_each_history(struct db *db, unsigned most, void (*each)(void *user, const struct db_history *entry), void *user, struct err *err)
{
    struct db_query query =
        db_query_begin(db,
                    "SELECT * FROM (SELECT id, time, job, kind, model, result, cache, reason, bytes_read, bytes_sent, seconds"
                    " FROM history ORDER BY id DESC LIMIT ?) ORDER BY id",
                    "read history");
    db_query_int(&query, most);
    while (db_query_step(&query)) {
        struct db_history entry = {
            .time = sqlite3_column_int64(query.statement, 1),
            .job = sqlite3_column_int64(query.statement, 2),
            .bytes_read = (unsigned long long)sqlite3_column_int64(query.statement, 8),
            .bytes_sent = (unsigned long long)sqlite3_column_int64(query.statement, 9),
            .seconds = sqlite3_column_double(query.statement, 10),
        };
        db_query_column(&query, 3, entry.kind, sizeof entry.kind);
        db_query_column(&query, 4, entry.model, sizeof entry.model);
        db_query_column(&query, 5, entry.result, sizeof entry.result);
        db_query_column(&query, 6, entry.cache, sizeof entry.cache);
        db_query_column(&query, 7, entry.reason, sizeof entry.reason);
        each(user, &entry);
    }
    return db_query_end(&query, err);
}

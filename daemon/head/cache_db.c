#include "daemon/head/cache_db.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/head/db_cache.h"
#include "daemon/head/rpc.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

struct cache_db {
    json_t *history; /* owned; array, oldest first */
};

/* ---- reading, before the loop runs ---- */

static void restore_duck(struct head *head, uint32_t index)
{
    struct msg_hello_duck hello;
    _cleanup_(freep) struct msg_slot *slots = NULL;
    size_t count = 0;
    struct err err = {0};
    const char *name = head->core->ducks[index].name;
    int r = db_load_duck(head->db, name, &hello, &slots, &count, &err);
    if (r < 0)
        log_warning("db", "duck %s: what was known of its slots cannot be read: %s", name, err.message);
    else if (r == 0)
        core_duck_was(head->core, index, &hello, slots, count);
}

static void restore_loss(void *user, const struct db_loss *saved)
{
    struct head *head = user;
    struct core_loss loss = {.duck = CORE_NONE, .layer = saved->layer < 0 ? CORE_NONE : (uint32_t)saved->layer};
    if (saved->duck[0]) {
        loss.duck = core_duck_find(head->core, saved->duck);
        if (loss.duck == CORE_NONE)
            return; /* that duck is no more */
    }
    memcpy(loss.key, saved->key, DIGEST_SIZE);
    memcpy(loss.text, saved->text, sizeof loss.text);
    core_loss_was(head->core, &loss);
}

static void restore_revoked(void *user, const struct db_loss *saved)
{
    struct head *head = user;
    static const uint8_t zeros[DIGEST_SIZE];
    struct core_revoked revoked = {.duck = core_duck_find(head->core, saved->duck), .all = memcmp(saved->key, zeros, DIGEST_SIZE) == 0};
    if (revoked.duck == CORE_NONE)
        return; /* that duck is no more */
    memcpy(revoked.key, saved->key, DIGEST_SIZE);
    snprintf(revoked.why, sizeof revoked.why, "%.127s", saved->text);
    core_revoked_was(head->core, &revoked);
}

static void add_history(struct cache_db *cache, const struct db_history *entry)
{
    char text[32];
    struct tm utc;
    time_t seconds = (time_t)entry->time;
    gmtime_r(&seconds, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *json =
        json_pack("{s:s, s:I, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:o}", "time", text, "job", (json_int_t)entry->job, "kind", entry->kind,
                  "model", entry->model, "result", entry->result, "cache", entry->cache, "reason", entry->reason, "bytes_read",
                  (json_int_t)entry->bytes_read, "bytes_sent", (json_int_t)entry->bytes_sent, "seconds", rpc_real(entry->seconds));
    if (!json)
        return; /* text that is no UTF-8: a file name in an error */
    json_array_append_new(cache->history, json);
    if (json_array_size(cache->history) > CACHE_DB_HISTORY_SHOWN)
        json_array_remove(cache->history, 0);
}

static void restore_history(void *user, const struct db_history *entry)
{
    add_history(user, entry);
}

struct cache_db *cache_db_begin(struct head *head)
{
    struct cache_db *cache = calloc(1, sizeof *cache);
    if (cache)
        cache->history = json_array();
    if (!cache || !cache->history)
        abort();
    for (uint32_t i = 0; i < head->core->duck_count; i++)
        restore_duck(head, i);
    struct err err = {0};
    if (db_each_loss(head->db, restore_loss, head, &err) < 0)
        log_warning("db", "why slots are gone is not known any more: %s", err.message);
    err = (struct err){0};
    if (db_each_revoked(head->db, restore_revoked, head, &err) < 0)
        log_error("db", "invalidations that ducks have not heard of are not known any more: %s", err.message);
    err = (struct err){0};
    if (db_each_history(head->db, CACHE_DB_HISTORY_SHOWN, restore_history, cache, &err) < 0)
        log_warning("db", "the history of loads cannot be read: %s", err.message);
    return cache;
}

void cache_db_free(struct cache_db *cache)
{
    if (!cache)
        return;
    json_decref(cache->history);
    free(cache);
}

/* ---- writing, on the disk worker ---- */

struct task {
    struct head *head;
    char name[CORE_NAME_MAX];
    struct msg_hello_duck hello;
    struct db_history history;
    struct msg_slot *slots; /* owned */
    struct db_loss *losses; /* owned */
    size_t count;
};

static struct task *task_new(struct head *head)
{
    struct task *task = calloc(1, sizeof *task);
    if (!task)
        abort();
    task->head = head;
    return task;
}

static void task_done(void *user)
{
    struct task *task = user;
    free(task->slots);
    free(task->losses);
    free(task);
}

static void save_duck_run(void *user)
{
    struct task *task = user;
    struct err err = {0};
    if (db_save_duck(task->head->db, task->name, &task->hello, task->slots, task->count, &err) < 0)
        log_error("db", "duck %s: its slots are not remembered: %s", task->name, err.message);
}

void cache_db_save_duck(struct head *head, uint32_t index)
{
    const struct core_duck *duck = &head->core->ducks[index];
    struct task *task = task_new(head);
    memcpy(task->name, duck->name, sizeof task->name);
    task->hello = duck->hello;
    task->slots = malloc((duck->slot_count + 1) * sizeof *task->slots);
    if (!task->slots)
        abort();
    if (duck->slot_count)
        memcpy(task->slots, duck->slots, duck->slot_count * sizeof *task->slots);
    task->count = duck->slot_count;
    worker_submit(head->disk, save_duck_run, task_done, task);
}

static void save_losses_run(void *user)
{
    struct task *task = user;
    struct err err = {0};
    if (db_save_losses(task->head->db, task->losses, task->count, &err) < 0)
        log_error("db", "why slots are gone is not remembered: %s", err.message);
}

static int by_number(const void *a, const void *b)
{
    const struct core_loss *const *x = a, *const *y = b;
    return ((*x)->number > (*y)->number) - ((*x)->number < (*y)->number);
}

/* In the order in which they happened. Returns their count. */
static size_t losses_in_order(const struct core *core, const struct core_loss **list)
{
    size_t count = 0;
    for (uint32_t i = 0; i < CORE_LOSSES_MAX; i++)
        if (core->losses[i].number)
            list[count++] = &core->losses[i];
    qsort(list, count, sizeof *list, by_number);
    return count;
}

void cache_db_save_losses(struct head *head)
{
    const struct core_loss *list[CORE_LOSSES_MAX];
    struct task *task = task_new(head);
    head->core->losses_dirty = false;
    task->count = losses_in_order(head->core, list);
    task->losses = calloc(task->count + 1, sizeof *task->losses);
    if (!task->losses)
        abort();
    for (size_t i = 0; i < task->count; i++) {
        struct db_loss *to = &task->losses[i];
        memcpy(to->key, list[i]->key, DIGEST_SIZE);
        memcpy(to->text, list[i]->text, sizeof to->text);
        to->layer = list[i]->layer == CORE_NONE ? -1 : (long long)list[i]->layer;
        if (list[i]->duck != CORE_NONE)
            memcpy(to->duck, head->core->ducks[list[i]->duck].name, sizeof to->duck);
    }
    worker_submit(head->disk, save_losses_run, task_done, task);
}

static void save_revoked_run(void *user)
{
    struct task *task = user;
    struct err err = {0};
    if (db_save_revoked(task->head->db, task->losses, task->count, &err) < 0)
        log_error("db", "invalidations for absent ducks are not remembered: %s", err.message);
}

void cache_db_save_revoked(struct head *head)
{
    struct task *task = task_new(head);
    task->losses = calloc(CORE_REVOKED_MAX, sizeof *task->losses);
    if (!task->losses)
        abort();
    for (uint32_t i = 0; i < CORE_REVOKED_MAX; i++) {
        const struct core_revoked *revoked = &head->core->revoked[i];
        if (!revoked->used)
            continue;
        struct db_loss *to = &task->losses[task->count++];
        memcpy(to->duck, head->core->ducks[revoked->duck].name, sizeof to->duck);
        memcpy(to->text, revoked->why, sizeof revoked->why);
        if (!revoked->all)
            memcpy(to->key, revoked->key, DIGEST_SIZE);
    }
    worker_submit(head->disk, save_revoked_run, task_done, task);
}

static void history_run(void *user)
{
    struct task *task = user;
    struct err err = {0};
    if (db_add_history(task->head->db, &task->history, &err) < 0)
        log_error("db", "job %lld is not remembered: %s", task->history.job, err.message);
}

void cache_db_job_over(struct head *head, const struct core_job *job)
{
    struct task *task = task_new(head);
    bool done = job->state == CORE_JOB_DONE;
    const struct core_model *model = &head->core->models[job->model];
    task->history = (struct db_history){
        .time = (long long)time(NULL),
        .job = (long long)job->id,
        .bytes_read = job->read_bytes,
        .bytes_sent = job->sent_bytes,
        .seconds = (double)(job->ended_ns - job->queued_ns) / 1e9,
    };
    snprintf(task->history.kind, sizeof task->history.kind, "%s", job->kind);
    snprintf(task->history.model, sizeof task->history.model, "%s", job->model_name);
    snprintf(task->history.result, sizeof task->history.result, "%s", core_job_state_text(job->state));
    snprintf(task->history.cache, sizeof task->history.cache, "%s", done ? model->cache : "");
    snprintf(task->history.reason, sizeof task->history.reason, "%s", done ? model->reason : job->err.message);
    add_history(head->cache_db, &task->history);
    worker_submit(head->disk, history_run, task_done, task);
}

/* ---- showing ---- */

json_t *cache_db_history_json(const struct head *head)
{
    return json_incref(head->cache_db->history);
}

json_t *cache_db_losses_json(const struct head *head)
{
    const struct core_loss *list[CORE_LOSSES_MAX];
    size_t count = losses_in_order(head->core, list);
    json_t *losses = json_array();
    for (size_t i = 0; i < count; i++) {
        char key[DIGEST_HEX_SIZE];
        digest_hex(list[i]->key, key);
        json_array_append_new(losses,
                              json_pack("{s:o, s:s, s:o, s:s}", "duck",
                                        list[i]->duck == CORE_NONE ? json_null() : json_string(head->core->ducks[list[i]->duck].name),
                                        "model_key", key, "layer", list[i]->layer == CORE_NONE ? json_null() : json_integer(list[i]->layer),
                                        "reason", list[i]->text));
    }
    return losses;
}

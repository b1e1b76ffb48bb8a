#include "daemon/head/cache_check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/load_expect.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/size.h"
#include "proto/wire/msg_cache.h"

#define CHECK_REQUEST_BIT (UINT64_C(1) << 62) /* below the loads' bit, above the core's numbers */
#define CHECK_REQUEST_SHIFT 24
#define CHECK_ITEMS_MAX (1u << CHECK_REQUEST_SHIFT)
#define CHECK_AHEAD 2 /* slots that a duck is asked for at once: it never waits for the next one, and little runs on after a cancel */

struct item {
    uint32_t duck, layer, rank, model; /* model: CORE_NONE when no loaded one uses it */
    uint8_t key[DIGEST_SIZE];
    uint64_t bytes;
    bool ready, compare; /* to be sent; with `expected` */
    uint64_t expected;
    bool sent, done;
};

/* One layer of one model on the bulk worker. */
struct full {
    uint32_t model, layer;
    char path[CORE_PATH_MAX];
    uint8_t key[DIGEST_SIZE];
    struct plan *plan; /* owned copy */
    bool mtp;
    struct arch *arch;             /* owned */
    struct checkpoint *checkpoint; /* owned; stays open from layer to layer */
    uint64_t *sums;                /* owned, [plan->tp] */
    bool bare; /* there is nothing to compare with */
    struct err err;
};

struct cache_check {
    struct head *head;
    uint64_t serial, client, job;
    json_t *id;    /* owned */
    bool given_up; /* answered, or nobody listens: it is freed when the bulk worker has let go */
    bool is_full;
    struct item *items; /* owned */
    size_t count, done, compared;
    uint64_t total_bytes, done_bytes;
    json_t *bad, *unreached, *uncompared; /* owned */
    uint64_t started_ns;
    struct {
        size_t first; /* no item of the duck before it is unsent */
        uint32_t asked;
    } ducks[CORE_DUCKS_MAX];
    struct full full;
    bool reading; /* full is on the bulk worker */
    _Atomic bool cancelled;
    _Atomic uint64_t read_bytes;
};

static void full_close(struct full *full)
{
    checkpoint_free(full->checkpoint);
    arch_free(full->arch);
    plan_free(full->plan);
    free(full->sums);
    *full = (struct full){0};
}

static void check_free(struct cache_check *check)
{
    full_close(&check->full);
    json_decref(check->id);
    json_decref(check->bad);
    json_decref(check->unreached);
    json_decref(check->uncompared);
    free(check->items);
    free(check);
}

void cache_check_free(struct head *head)
{
    if (head->cache_check)
        check_free(head->cache_check);
    head->cache_check = NULL;
}

/* ---- what the client hears ---- */

static void finish_if_done(struct cache_check *check)
{
    struct head *head = check->head;
    core_errand_progress(head->core, check->job, check->done_bytes, check->total_bytes);
    if (check->given_up && !check->reading)
        cache_check_free(head);
    if (!head->cache_check || check->done < check->count || check->reading)
        return;
    log_info("cache", "verified %zu slot%s, %" PRIu64 " bytes, %zu against the checkpoint: %zu bad", check->count,
             size_plural(check->count), check->done_bytes, check->compared, json_array_size(check->bad));
    json_t *result = json_pack("{s:I, s:O, s:O, s:O, s:I, s:I, s:o, s:I}", "checked", (json_int_t)(check->count), "bad", check->bad,
                               "unreached", check->unreached, "uncompared", check->uncompared, "bytes", (json_int_t)check->done_bytes,
                               "compared", (json_int_t)check->compared, "seconds",
                               rpc_real((double)(clock_now_ns() - check->started_ns) / 1e9), "job", (json_int_t)check->job);
    core_job_result(head->core, check->job, json_dumps(result, JSON_COMPACT | JSON_REAL_PRECISION(12)));
    core_errand_end(head->core, clock_now_ns(), check->job, NULL);
    act_run(head);
    waiters_reply_written(head, check->client, check->id, result); /* watchers hear the end before the answer, once history has it */
    cache_check_free(head);
}

/* No more slots are asked for; what ducks still answer is of one before. */
static void give_up(struct cache_check *check)
{
    check->given_up = true;
    atomic_store(&check->cancelled, true);
    finish_if_done(check);
}

void cache_check_cancel(struct head *head, uint64_t id)
{
    struct cache_check *check = head->cache_check;
    const struct core_job *job = core_job_find(head->core, id);
    if (!check || check->given_up || !job || check->job != id)
        return;
    control_reply_error(head->control, check->client, check->id, &job->err);
    give_up(check);
}

void cache_check_client_gone(struct head *head, uint64_t client)
{
    struct cache_check *check = head->cache_check;
    if (!check || check->given_up || check->client != client)
        return;
    struct err left = {0};
    err_set(&left, -ECANCELED, ERR_CANCELLED, "its client left after %zu of %zu slot%s", check->done, check->count,
            size_plural(check->count));
    core_errand_end(head->core, clock_now_ns(), check->job, &left);
    give_up(check);
}

static void add_bad(struct cache_check *check, const struct item *item, const struct msg_verified *found, const char *reason)
{
    const struct core *core = check->head->core;
    char key[DIGEST_HEX_SIZE], expert[24] = "";
    digest_hex(item->key, key);
    if (found && found->verdict == MSG_VERDICT_BAD && found->parts && found->expert >= 0)
        snprintf(expert, sizeof expert, "%d", found->expert);
    else if (found && found->verdict == MSG_VERDICT_BAD && found->parts && found->expert == -2)
        snprintf(expert, sizeof expert, "shared");
    const char *model = item->model != CORE_NONE && core->models[item->model].used ? core->models[item->model].name : NULL;
    log_error("cache", "%s: model %s (key %.12s), layer %u: %s", core->ducks[item->duck].name, model ? model : "none that is loaded", key,
              item->layer, reason);
    json_array_append_new(check->bad,
                          json_pack("{s:s, s:I, s:s, s:I, s:s, s:o, s:o}", "duck", core->ducks[item->duck].name, "layer",
                                    (json_int_t)item->layer, "reason", reason, "rank", (json_int_t)item->rank, "model_key", key, "model",
                                    model ? json_string(model) : json_null(), "expert", expert[0] ? json_string(expert) : json_null()));
}

/* ---- slots to ducks ---- */

static void item_over(struct cache_check *check, struct item *item)
{
    item->done = true;
    check->done++;
    check->done_bytes += item->bytes;
}

static void ask(struct cache_check *check, size_t index)
{
    struct item *item = &check->items[index];
    struct msg_verify msg = {.layer = item->layer, .expected_given = item->compare, .expected = item->expected};
    memcpy(msg.model_key, item->key, DIGEST_SIZE);
    struct outgoing *out = outgoing_new();
    if (msg_verify_encode(&out->buf, CHECK_REQUEST_BIT | (check->serial & 0xffff) << CHECK_REQUEST_SHIFT | index, &msg) < 0)
        abort(); /* a hundred bytes */
    peer_send(check->head->peers[item->duck], out, true);
    outgoing_unref(out);
    item->sent = true;
    check->ducks[item->duck].asked++;
    check->compared += item->compare;
}

static void pump(struct cache_check *check, uint32_t duck)
{
    size_t *first = &check->ducks[duck].first;
    while (*first < check->count && (check->items[*first].duck != duck || check->items[*first].sent))
        ++*first;
    for (size_t i = *first; i < check->count && check->ducks[duck].asked < CHECK_AHEAD; i++)
        if (check->items[i].duck == duck && check->items[i].ready && !check->items[i].sent)
            ask(check, i);
}

static void send_item(struct cache_check *check, size_t index, const uint64_t *expected)
{
    struct item *item = &check->items[index];
    if (item->ready || item->done)
        return;
    item->ready = true;
    item->compare = expected != NULL;
    item->expected = expected ? *expected : 0;
    if (check->head->core->ducks[item->duck].state == CORE_DUCK_UP) {
        pump(check, item->duck);
        return;
    }
    item->sent = true;
    item_over(check, item);
}

bool cache_check_is_request(uint64_t request)
{
    return (request & (CHECK_REQUEST_BIT << 1 | CHECK_REQUEST_BIT)) == CHECK_REQUEST_BIT;
}

static void judge(struct cache_check *check, struct item *item, const struct msg_verified *found)
{
    char reason[256], part[48] = "no part of it alone";
    struct head *head = check->head;
    switch (found->verdict) {
    case MSG_VERDICT_GOOD: return;
    case MSG_VERDICT_ABSENT:
        if (!core_slot_gone(head->core, clock_now_ns(), item->duck, item->key, item->layer, "cache verify"))
            return; /* dropped meanwhile by somebody who wanted that */
        snprintf(reason, sizeof reason, "%s", CORE_SLOT_GONE);
        break;
    case MSG_VERDICT_DIFFERS: snprintf(reason, sizeof reason, "not what the checkpoint gives now (load --force prepares it anew)"); break;
    case MSG_VERDICT_BAD:
        if (found->expert >= 0)
            snprintf(part, sizeof part, "expert %d", found->expert);
        else if (found->parts)
            snprintf(part, sizeof part, "%s", found->expert == -2 ? "the shared expert" : "the dense MLP");
        if (found->bytes)
            snprintf(reason, sizeof reason, "slot checksum wrong: %s%s", part, found->parts > 1 ? " and others" : "");
        else
            snprintf(reason, sizeof reason, "its description in the weight buffer is wrong");
        core_slot_bad(head->core, clock_now_ns(), item->duck, item->key, item->layer, reason);
        break;
    }
    add_bad(check, item, found, reason);
}

int cache_check_frame(struct head *head, uint32_t duck, const struct frame *frame, struct err *err)
{
    struct cache_check *check = head->cache_check;
    struct msg_verified found = {.verdict = MSG_VERDICT_ABSENT};
    struct err theirs = {0};
    int r = frame->type == WIRE_FAIL ? msg_fail_decode(frame, &theirs, err) : msg_verified_decode(frame, &found, err);
    if (r < 0)
        return r;
    size_t index = frame->request & (CHECK_ITEMS_MAX - 1);
    bool stale = !check || check->given_up || (frame->request & ~CHECK_REQUEST_BIT) >> CHECK_REQUEST_SHIFT != (check->serial & 0xffff);
    if (stale || index >= check->count)
        return 0; /* of one before */
    struct item *item = &check->items[index];
    if (item->done || item->duck != duck)
        return 0;
    if (theirs.code)
        add_bad(check, item, NULL, theirs.message);
    else
        judge(check, item, &found);
    item_over(check, item);
    check->ducks[duck].asked--;
    pump(check, duck);
    finish_if_done(check);
    return 0;
}

static void not_reached(struct cache_check *check, uint32_t duck)
{
    const char *name = check->head->core->ducks[duck].name;
    for (size_t i = 0; i < json_array_size(check->unreached); i++)
        if (strcmp(json_string_value(json_array_get(check->unreached, i)), name) == 0)
            return;
    json_array_append_new(check->unreached, json_string(name));
}

void cache_check_duck_lost(struct head *head, uint32_t duck)
{
    struct cache_check *check = head->cache_check;
    if (!check || check->given_up)
        return;
    check->ducks[duck].asked = 0;
    for (size_t i = 0; i < check->count; i++) {
        if (check->items[i].duck != duck || check->items[i].done)
            continue;
        check->items[i].ready = check->items[i].sent = true;
        item_over(check, &check->items[i]);
        not_reached(check, duck);
    }
    finish_if_done(check);
}

/* ---- against the checkpoint ---- */

static void next_layer(struct cache_check *check);

/* Bulk worker. */
static void full_run(void *user)
{
    struct cache_check *check = user;
    struct full *full = &check->full;
    int r = 0;
    worker_background();
    full->bare = !full->checkpoint && checkpoint_dir_is_bare(full->path);
    if (full->bare)
        return;
    if (!full->checkpoint) {
        arch_free(full->arch);
        full->arch = NULL;
        r = arch_read(full->path, &full->arch, &full->err);
        if (r == 0 && full->mtp)
            r = arch_add_mtp(full->arch, full->path, &full->err);
        if (r == 0)
            r = checkpoint_open(full->path, full->arch, &full->checkpoint, &full->err);
    }
    const struct load_expect what = {.arch = full->arch,
                                     .plan = full->plan,
                                     .checkpoint = full->checkpoint,
                                     .cancelled = &check->cancelled,
                                     .read_bytes = &check->read_bytes};
    if (r == 0 && full->layer >= full->arch->layers)
        r = err_set(&full->err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: has %u layer%s now", full->path, full->arch->layers,
                    size_plural(full->arch->layers));
    if (r == 0)
        load_expect_layer(&what, full->layer, full->sums, &full->err);
}

/* No fault of its slots: their checksums are looked at all the same. */
static void not_compared(struct cache_check *check, uint32_t model, const char *why)
{
    const char *name = check->head->core->models[model].name;
    for (size_t i = 0; i < json_array_size(check->uncompared); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(check->uncompared, i), "model")), name) == 0)
            return;
    char reason[ERR_MESSAGE_MAX + 64];
    snprintf(reason, sizeof reason, "%s; only checksums were verified", why);
    json_array_append_new(check->uncompared, json_pack("{s:s, s:s}", "model", name, "reason", reason));
}

static void full_done(void *user)
{
    struct cache_check *check = user;
    struct full *full = &check->full;
    check->reading = false;
    for (size_t i = 0; i < (check->given_up ? 0 : check->count); i++) {
        struct item *item = &check->items[i];
        if (item->model != full->model || item->layer != full->layer || memcmp(item->key, full->key, DIGEST_SIZE) != 0)
            continue;
        if (full->bare)
            not_compared(check, full->model, "its weights came from memory: there is no checkpoint to compare with");
        else if (full->err.code)
            not_compared(check, full->model, full->err.message);
        send_item(check, i, full->err.code || full->bare ? NULL : &full->sums[item->rank]);
    }
    full->err = (struct err){0};
    if (!check->head->stopping && !check->given_up)
        next_layer(check);
    finish_if_done(check);
}

static struct plan *copy_plan(const struct plan *plan)
{
    struct plan *copy = malloc(sizeof *copy);
    if (!copy)
        abort();
    *copy = *plan;
    copy->ranks = malloc(plan->tp * sizeof *copy->ranks);
    if (!copy->ranks)
        abort();
    memcpy(copy->ranks, plan->ranks, plan->tp * sizeof *copy->ranks);
    return copy;
}

/* The next layer that has slots to compare; slots of no loaded model are sent at once, without. */
static void next_layer(struct cache_check *check)
{
    const struct core *core = check->head->core;
    struct full *full = &check->full;
    for (size_t i = 0; i < check->count; i++) {
        struct item *item = &check->items[i];
        if (item->ready)
            continue;
        const struct core_model *model = item->model == CORE_NONE ? NULL : &core->models[item->model];
        if (!check->is_full || !model || !model->used || !model->plan || memcmp(model->key, item->key, DIGEST_SIZE) != 0) {
            send_item(check, i, NULL);
            continue;
        }
        if (full->model != item->model || !full->plan || memcmp(full->key, item->key, DIGEST_SIZE) != 0) {
            full_close(full);
            full->plan = copy_plan(model->plan);
            full->sums = calloc(model->plan->tp, sizeof *full->sums);
            if (!full->sums)
                abort();
            full->model = item->model;
            memcpy(full->path, model->path, sizeof full->path);
            full->mtp = model->arch->mtp;
            memcpy(full->key, item->key, DIGEST_SIZE);
        }
        full->layer = item->layer;
        check->reading = true;
        worker_submit(check->head->bulk, full_run, full_done, check);
        return;
    }
}

void cache_check_stop(struct head *head)
{
    if (head->cache_check)
        atomic_store(&head->cache_check->cancelled, true);
}

/* ---- the beginning ---- */

static uint32_t model_of(const struct core *core, const uint8_t key[DIGEST_SIZE])
{
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (core->models[i].used && core->models[i].plan && memcmp(core->models[i].key, key, DIGEST_SIZE) == 0)
            return i;
    return CORE_NONE;
}

static void list_slots(struct cache_check *check, const uint8_t *key)
{
    const struct core *core = check->head->core;
    size_t room = 0;
    for (uint32_t d = 0; d < core->duck_count; d++)
        room += core->ducks[d].slot_count;
    if (room > CHECK_ITEMS_MAX)
        room = CHECK_ITEMS_MAX;
    check->items = calloc(room + 1, sizeof *check->items);
    if (!check->items)
        abort();
    for (uint32_t d = 0; d < core->duck_count; d++) {
        const struct core_duck *duck = &core->ducks[d];
        for (size_t s = 0; s < duck->slot_count && check->count < room; s++) {
            const struct msg_slot *slot = &duck->slots[s];
            if (slot->state != MSG_SLOT_FINISHED || (key && memcmp(slot->model_key, key, DIGEST_SIZE) != 0))
                continue;
            if (duck->state != CORE_DUCK_UP) {
                not_reached(check, d);
                continue;
            }
            struct item *item = &check->items[check->count++];
            *item = (struct item){
                .duck = d, .layer = slot->layer, .rank = slot->rank, .model = model_of(core, slot->model_key), .bytes = slot->bytes};
            memcpy(item->key, slot->model_key, DIGEST_SIZE);
            check->total_bytes += slot->bytes;
        }
    }
}

int cache_check_start(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)ret_result;
    static uint64_t serial;
    struct head *head = call->head;
    const char *name = rpc_param_string(call->params, "model", NULL);
    uint8_t key[DIGEST_SIZE];
    if (name) {
        int r = core_key_find(head->core, name, key, err);
        if (r < 0)
            return r;
    }
    if (head->cache_check && atomic_load(&head->cache_check->cancelled))
        return err_set(err, -EBUSY, ERR_BUSY, "a cache verify that was cancelled still reads a layer; ask again when it is through");
    if (head->cache_check)
        return err_set(err, -EBUSY, ERR_BUSY, "a cache verify is under way; one at a time");
    uint64_t job;
    int r = core_errand_begin(head->core, clock_now_ns(), "verify", name ? name : "*", CORE_NONE, &job, err);
    if (r < 0)
        return r;
    control_client_asks(head->control, call->client, job);
    waiters_add(head->waiters, call->client, call->id, WAITERS_WATCH, job);
    struct cache_check *check = calloc(1, sizeof *check);
    if (!check)
        abort();
    *check = (struct cache_check){.head = head, .serial = ++serial, .client = call->client, .job = job, .started_ns = clock_now_ns()};
    check->id = json_incref((json_t *)call->id);
    check->is_full = rpc_param_bool(call->params, "full", false);
    check->bad = json_array();
    check->unreached = json_array();
    check->uncompared = json_array();
    head->cache_check = check;
    list_slots(check, name ? key : NULL);
    next_layer(check);
    finish_if_done(check);
    return RPC_LATER;
}

#include "daemon/head/events.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "daemon/head/db.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

#define EVENTS_MESSAGE_MAX (ERR_MESSAGE_MAX + 256)
#define EVENTS_DISK_EVERY (30 * CLOCK_NS_PER_S)
#define EVENTS_DISK_LOW (64u * 1024 * 1024) /* bytes left in the state directory's file system */

struct subscriber {
    struct subscriber *next;
    uint64_t client;
    uint64_t lost; /* events since the last one that was sent */
};

enum told { TOLD_NOTHING, TOLD_UP, TOLD_LOST };

struct events {
    struct subscriber *first;
    /* what was told last */
    enum told ducks[CORE_DUCKS_MAX];
    struct {
        char name[CORE_NAME_MAX]; /* "": no model */
        enum core_model_state state;
    } models[CORE_MODELS_MAX];
    const char *state;
    uint64_t loss; /* number of the last one */
    uint64_t db_errors;
    bool disk_low;
    /* the look at the disk, on the disk worker */
    struct head *head;
    bool looking;
    uint64_t looked_ns;
    uint64_t disk_free; /* bytes */
    int disk_error;
};

struct events *events_new(void)
{
    struct events *events = calloc(1, sizeof *events);
    if (!events)
        abort();
    events->state = "starting";
    return events;
}

void events_begin(struct head *head)
{
    for (uint32_t i = 0; i < CORE_LOSSES_MAX; i++)
        if (head->core->losses[i].number > head->events->loss)
            head->events->loss = head->core->losses[i].number;
}

void events_free(struct events *events)
{
    if (!events)
        return;
    while (events->first) {
        struct subscriber *next = events->first->next;
        free(events->first);
        events->first = next;
    }
    free(events);
}

/* ---- telling ---- */

/* What an event is about; NULL and 0: not about one. */
struct about {
    const char *duck, *model;
    uint64_t job;
};

static json_t *event_json(const char *kind, const struct about *about, const char *message)
{
    struct timespec now;
    struct tm utc;
    char date[32], text[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03ldZ", date, now.tv_nsec / 1000000);
    json_t *sentence = json_string(message); /* NULL: a file name in it is no UTF-8 */
    json_t *json =
        json_pack("{s:s, s:s, s:o}", "time", text, "kind", kind, "message", sentence ? sentence : json_string("(no UTF-8, see the log)"));
    if (about && about->duck)
        json_object_set_new(json, "duck", json_string(about->duck));
    if (about && about->model)
        json_object_set_new(json, "model", json_string(about->model));
    if (about && about->job)
        json_object_set_new(json, "job", json_integer((json_int_t)about->job));
    return json;
}

/* False: it has not read what it has. */
static bool catch_up(struct head *head, struct subscriber *subscriber)
{
    if (control_waiting_bytes(head->control, subscriber->client) > EVENTS_UNREAD_MAX)
        return false;
    if (!subscriber->lost)
        return true;
    char message[96];
    snprintf(message, sizeof message, "%" PRIu64 " events were lost because they were not read", subscriber->lost);
    json_t *json = event_json("events.lost", NULL, message);
    json_object_set_new(json, "lost", json_integer((json_int_t)subscriber->lost));
    subscriber->lost = 0;
    control_notify(head->control, subscriber->client, "event", json);
    return true;
}

static void tell(struct head *head, const char *kind, const struct about *about, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void tell(struct head *head, const char *kind, const struct about *about, const char *format, ...)
{
    if (!head->events->first)
        return;
    char message[EVENTS_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    json_t *json = event_json(kind, about, message);
    for (struct subscriber *subscriber = head->events->first; subscriber; subscriber = subscriber->next) {
        if (catch_up(head, subscriber))
            control_notify(head->control, subscriber->client, "event", json_incref(json));
        else
            subscriber->lost++;
    }
    json_decref(json);
}

/* ---- subscribers ---- */

int events_subscribe(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)err;
    struct events *events = call->head->events;
    struct subscriber *subscriber = events->first;
    while (subscriber && subscriber->client != call->client)
        subscriber = subscriber->next;
    if (!subscriber) {
        subscriber = calloc(1, sizeof *subscriber);
        if (!subscriber)
            abort();
        *subscriber = (struct subscriber){.next = events->first, .client = call->client};
        events->first = subscriber;
    }
    *ret_result = json_pack("{s:s}", "state", core_state_text(call->head->core));
    return 0;
}

void events_client_gone(struct head *head, uint64_t client)
{
    for (struct subscriber **at = &head->events->first; *at; at = &(*at)->next) {
        struct subscriber *subscriber = *at;
        if (subscriber->client != client)
            continue;
        *at = subscriber->next;
        free(subscriber);
        return;
    }
}

/* ---- what has changed ---- */

static void look_at_duck(struct head *head, uint32_t index)
{
    enum told *told = &head->events->ducks[index];
    const struct core_duck *duck = &head->core->ducks[index];
    const struct about about = {.duck = duck->name};
    if (duck->state == CORE_DUCK_UP && *told != TOLD_UP) {
        *told = TOLD_UP;
        tell(head, "duck.up", &about, "duck %s is up: %s, %u core%s, %zu slot%s", duck->name, duck->hello.isa, duck->hello.cores,
             duck->hello.cores == 1 ? "" : "s", duck->slot_count, duck->slot_count == 1 ? "" : "s");
    } else if (duck->state == CORE_DUCK_LOST && *told != TOLD_LOST && duck->lost_reason[0]) {
        *told = TOLD_LOST;
        tell(head, "duck.lost", &about, "duck %s is lost: %s", duck->name, duck->lost_reason);
    }
}

/* Its error without "model NAME: " in front, which the event's sentence has said. */
static const char *error_text(const struct core_model *model)
{
    char named[CORE_NAME_MAX + 16];
    snprintf(named, sizeof named, "model %s: ", model->name);
    size_t length = strlen(named);
    return model->error.message + (strncmp(model->error.message, named, length) == 0 ? length : 0);
}

static void look_at_model(struct head *head, uint32_t index)
{
    const struct core_model *model = &head->core->models[index];
    char *name = head->events->models[index].name;
    enum core_model_state *state = &head->events->models[index].state;
    if (!model->used && !name[0])
        return;
    bool same = model->used && strcmp(model->name, name) == 0;
    if (same && *state == model->state)
        return;
    if (name[0] && !same) /* one that is unloaded while it loads has its job cancelled, and so its first load failed too */
        tell(head, "model.gone", &(struct about){.model = name}, "model %s is %s", name,
             *state == CORE_MODEL_LOADING ? "gone: its load failed" : "unloaded");
    name[0] = '\0';
    if (!model->used)
        return;
    memcpy(name, model->name, CORE_NAME_MAX);
    *state = model->state;
    char kind[32];
    snprintf(kind, sizeof kind, "model.%s", core_model_state_text(model->state));
    tell(head, kind, &(struct about){.model = name}, "model %s is %s%s%s", name, core_model_state_text(model->state),
         model->error.code ? ": " : "", model->error.code ? error_text(model) : "");
}

void events_look(struct head *head)
{
    for (uint32_t i = 0; i < head->core->duck_count; i++)
        look_at_duck(head, i);
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        look_at_model(head, i);
    const char *state = core_state_text(head->core);
    if (strcmp(state, head->events->state) == 0)
        return;
    char kind[32];
    snprintf(kind, sizeof kind, "state.%s", state);
    tell(head, kind, NULL, "the fleet is %s; it was %s", state, head->events->state);
    head->events->state = state;
}

void events_job(struct head *head, const struct core_job *job, bool starts)
{
    const char *state = starts || job->state == CORE_JOB_RUNNING ? "started" : core_job_state_text(job->state);
    char kind[32];
    snprintf(kind, sizeof kind, "job.%s", state);
    const struct about about = {.model = strcmp(job->model_name, "*") == 0 ? NULL : job->model_name, .job = job->id};
    tell(head, kind, &about, "job %" PRIu64 " (%s of %s) %s%s%s", job->id, job->kind, job->model_name, state, job->err.code ? ": " : "",
         job->err.code ? job->err.message : "");
}

#define EVENTS_OF_MAX (CORE_NAME_MAX + 32)

/* "model m", or when none has them "key 0123456789ab". */
static const char *model_text(const struct core *core, const uint8_t key[DIGEST_SIZE], char text[EVENTS_OF_MAX])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(key, hex);
    snprintf(text, EVENTS_OF_MAX, "key %.12s", hex);
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (core->models[i].used && core->models[i].plan && memcmp(core->models[i].key, key, DIGEST_SIZE) == 0)
            snprintf(text, EVENTS_OF_MAX, "model %s", core->models[i].name);
    return text;
}

/* What every load notes beforehand, in case that fp9d ends with it, is none: its job's end tells that. */
void events_losses(struct head *head)
{
    struct events *events = head->events;
    uint64_t last = events->loss;
    for (uint32_t i = 0; i < CORE_LOSSES_MAX; i++) {
        const struct core_loss *loss = &head->core->losses[i];
        if (loss->number <= last)
            continue;
        events->loss = loss->number > events->loss ? loss->number : events->loss;
        if (strncmp(loss->text, "unfinished:", strlen("unfinished:")) == 0)
            continue;
        const struct about about = {.duck = loss->duck == CORE_NONE ? NULL : head->core->ducks[loss->duck].name};
        char of[EVENTS_OF_MAX];
        tell(head, "cache.lost", &about, "slots of %s are lost%s%s: %s", model_text(head->core, loss->key, of),
             about.duck ? " on duck " : "", about.duck ? about.duck : "", loss->text);
    }
}

void events_revoked(struct head *head, const struct core_drop *drop)
{
    const struct about about = {.duck = drop->only == CORE_NONE ? NULL : head->core->ducks[drop->only].name};
    char of[EVENTS_OF_MAX];
    tell(head, "cache.revoked", &about, "%s%s%s%s: %s", drop->all ? "every slot" : "the slots of ",
         drop->all ? "" : model_text(head->core, drop->key, of), about.duck ? " on duck " : "", about.duck ? about.duck : "", drop->why);
}

/* ---- database and disk ---- */

/* Disk worker: a file system may take its time. */
static void disk_run(void *user)
{
    struct events *events = user;
    struct statvfs info;
    events->disk_error = statvfs(events->head->conf->state_dir, &info) < 0 ? errno : 0;
    events->disk_free = events->disk_error ? 0 : (uint64_t)info.f_bavail * info.f_frsize;
}

static void disk_done(void *user)
{
    struct events *events = user;
    struct head *head = events->head;
    events->looking = false;
    bool low = !events->disk_error && events->disk_free < EVENTS_DISK_LOW;
    if (low == events->disk_low || events->disk_error)
        return;
    events->disk_low = low;
    if (low)
        log_warning("db", "%s: %" PRIu64 " bytes are left in its file system", head->conf->state_dir, events->disk_free);
    tell(head, low ? "disk.low" : "disk.ok", NULL, "state directory %s: %" PRIu64 " bytes are left in its file system",
         head->conf->state_dir, events->disk_free);
}

void events_tick(struct head *head, uint64_t now)
{
    struct events *events = head->events;
    events_look(head);
    char why[ERR_MESSAGE_MAX];
    uint64_t errors = db_errors(head->db, why);
    if (errors > events->db_errors)
        tell(head, "db.error", NULL, "the database: %s%s", why, errors > events->db_errors + 1 ? " (and others)" : "");
    events->db_errors = errors;
    for (struct subscriber *subscriber = events->first; subscriber; subscriber = subscriber->next)
        catch_up(head, subscriber);
    if (events->looking || head->stopping || (events->looked_ns && now - events->looked_ns < EVENTS_DISK_EVERY))
        return;
    events->head = head;
    events->looking = true;
    events->looked_ns = now;
    worker_submit(head->disk, disk_run, disk_done, events);
}

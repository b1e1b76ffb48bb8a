#include "daemon/head/waiters.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/head/jobs.h"
#include "daemon/head/remember.h"
#include "daemon/head/rpc.h"
#include "proto/base/clock.h"

#define WAITERS_NOTIFY_EVERY (200 * CLOCK_NS_PER_MS)
#define WAITERS_UNREAD_MAX 65536 /* bytes: a client that has not read so much yet is not told how far jobs are */

struct waiter {
    struct waiter *next;
    uint64_t client, thing;
    enum waiters_kind kind;
    json_t *id; /* owned; of the request to answer */
    uint64_t notified_ns;
    const char *phase; /* told last; NULL: none */
};

struct waiters {
    struct waiter *first;
};

struct waiters *waiters_new(void)
{
    struct waiters *waiters = calloc(1, sizeof *waiters);
    if (!waiters)
        abort();
    return waiters;
}

static struct waiter *unlink_at(struct waiter **at)
{
    struct waiter *waiter = *at;
    *at = waiter->next;
    return waiter;
}

static void waiter_free(struct waiter *waiter)
{
    json_decref(waiter->id);
    free(waiter);
}

void waiters_free(struct waiters *waiters)
{
    if (!waiters)
        return;
    while (waiters->first)
        waiter_free(unlink_at(&waiters->first));
    free(waiters);
}

void waiters_add(struct waiters *waiters, uint64_t client, const json_t *id, enum waiters_kind kind, uint64_t thing)
{
    struct waiter *waiter = calloc(1, sizeof *waiter);
    if (!waiter)
        abort();
    *waiter = (struct waiter){.next = waiters->first, .client = client, .kind = kind, .thing = thing, .id = json_incref((json_t *)id)};
    waiters->first = waiter;
}

void waiters_watch(struct waiters *waiters, uint64_t client, const json_t *id, uint64_t job)
{
    for (const struct waiter *waiter = waiters->first; waiter; waiter = waiter->next)
        if (waiter->kind == WAITERS_WATCH && waiter->client == client && waiter->thing == job)
            return;
    waiters_add(waiters, client, id, WAITERS_WATCH, job);
}

void waiters_client_gone(struct waiters *waiters, uint64_t client)
{
    for (struct waiter **at = &waiters->first; *at;) {
        if ((*at)->client == client)
            waiter_free(unlink_at(at));
        else
            at = &(*at)->next;
    }
}

/* What was asked for is done; that a restart of fp9d may not know of it is said. */
static void warn_unwritten(json_t *result, const char *why)
{
    if (why)
        json_object_set_new(
            result, "warning",
            json_sprintf("not written down: %s; this is tried again, and a restart of fp9d before would not know of it", why));
}

static void answer(struct head *head, const struct waiter *waiter, const struct core_job *job)
{
    if (job->state == CORE_JOB_DONE) {
        json_t *result = job->result ? json_loads(job->result, 0, NULL) : NULL;
        if (!result)
            result = json_object();
        if (job->model != CORE_NONE)
            warn_unwritten(result, remember_failing(head, job->model_name));
        control_reply(head->control, waiter->client, waiter->id, result, -1);
        return;
    }
    struct err err = {0};
    err_copy(&err, &job->err);
    err_value_int(&err, "job", (long long)job->id);
    control_reply_error(head->control, waiter->client, waiter->id, &err);
}

/* A new phase is told at once, bytes now and then. */
static void notify(struct head *head, struct waiter *waiter, const struct core_job *job, uint64_t now)
{
    const char *phase = core_job_phase_text(job);
    if (waiter->phase == phase && now - waiter->notified_ns < WAITERS_NOTIFY_EVERY)
        return;
    if (control_waiting_bytes(head->control, waiter->client) > WAITERS_UNREAD_MAX)
        return;
    waiter->notified_ns = now;
    waiter->phase = phase;
    uint64_t since = job->opened_ns ? job->opened_ns : job->started_ns;
    double seconds = since && now > since ? (double)(now - since) / 1e9 : 0;
    bool tokens = job->total_tokens;
    uint64_t done = tokens ? job->done_tokens : job->read_bytes, total = tokens ? job->total_tokens : job->total_bytes;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    uint64_t left = total > done ? total - done : 0;
    json_t *params = json_pack("{s:I, s:s, s:I, s:I, s:o, s:o}", "job", (json_int_t)job->id, "phase", phase, "done_bytes",
                               (json_int_t)job->read_bytes, "total_bytes", (json_int_t)job->total_bytes, "rate", rpc_real(rate), "eta_s",
                               rate > 0 ? rpc_real((double)left / rate) : json_null());
    if (tokens) {
        json_object_set_new(params, "done_tokens", json_integer((json_int_t)done));
        json_object_set_new(params, "total_tokens", json_integer((json_int_t)total));
    }
    control_notify(head->control, waiter->client, "job.progress", params);
}

static void tell(struct head *head, const struct core_job *job, bool watchers, uint64_t now)
{
    bool over = core_job_over(job);
    for (struct waiter **at = &head->waiters->first; *at;) {
        struct waiter *waiter = *at;
        bool watches = waiter->kind == WAITERS_WATCH;
        if (waiter->kind == WAITERS_DROP || waiter->thing != job->id || watches != watchers || (!over && !watches)) {
            at = &waiter->next;
            continue;
        }
        if (watches)
            notify(head, waiter, job, now);
        else
            answer(head, waiter, job);
        if (over)
            waiter_free(unlink_at(at));
        else
            at = &waiter->next;
    }
}

/* Who watches hears the end before the answer of job.wait: after that answer a client listens no more. The answer comes when all of it is
 * written down, and this is called again. */
void waiters_job_changed(struct head *head, const struct core_job *job)
{
    uint64_t now = clock_now_ns();
    bool done = job->state == CORE_JOB_DONE;
    tell(head, job, true, now);
    if (!core_job_over(job) || !(jobs_pending(head, job->id) || (done && remember_pending(head, job->model_name))))
        tell(head, job, false, now);
}

void waiters_tick(struct head *head, uint64_t now)
{
    for (struct waiter *waiter = head->waiters->first; waiter; waiter = waiter->next) {
        const struct core_job *job = waiter->kind == WAITERS_WATCH ? core_job_find(head->core, waiter->thing) : NULL;
        if (job && job->state == CORE_JOB_RUNNING)
            notify(head, waiter, job, now);
    }
}

/* ---- answers that wait for the database ---- */

struct written {
    struct head *head;
    uint64_t client;
    json_t *id, *result; /* owned */
};

/* Disk worker, whose order is all that is wanted of it. */
static void written_run(void *user)
{
    (void)user;
}

static void written_done(void *user)
{
    struct written *written = user;
    warn_unwritten(written->result, remember_failing(written->head, NULL));
    control_reply(written->head->control, written->client, written->id, written->result, -1);
    json_decref(written->id);
    free(written);
}

void waiters_reply_written(struct head *head, uint64_t client, const json_t *id, json_t *result)
{
    struct written *written = calloc(1, sizeof *written);
    if (!written)
        abort();
    *written = (struct written){.head = head, .client = client, .id = json_incref((json_t *)id), .result = result};
    worker_submit(head->disk, written_run, written_done, written);
}

void waiters_drop_done(struct head *head, const struct core_drop *drop)
{
    for (struct waiter **at = &head->waiters->first; *at;) {
        struct waiter *waiter = *at;
        if (waiter->kind != WAITERS_DROP || waiter->thing != drop->id) {
            at = &waiter->next;
            continue;
        }
        json_t *pending = json_array();
        for (uint32_t i = 0; i < head->core->duck_count; i++)
            if (drop->unreached[i])
                json_array_append_new(pending, json_string(head->core->ducks[i].name));
        waiters_reply_written(head, waiter->client, waiter->id,
                              json_pack("{s:I, s:o}", "freed_bytes", (json_int_t)drop->freed_bytes, "pending", pending));
        waiter_free(unlink_at(at));
    }
}

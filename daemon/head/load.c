/* The life of a load between the core's actions and the worker threads; what is read and sent is in load_stream.c. */
#include "daemon/head/load_state.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/load_digest.h"
#include "daemon/head/revoked.h"
#include "proto/base/clock.h"
#include "proto/wire/msg_cache.h"

#define LOAD_SAVE_EVERY (1 * CLOCK_NS_PER_S)

struct load *load_find(struct head *head, uint64_t job)
{
    for (struct load *load = head->loads; load; load = load->next)
        if (load->job == job)
            return load;
    return NULL;
}

static void load_free(struct load *load)
{
    arch_free(load->arch);
    checkpoint_free(load->checkpoint);
    load_stream_free(load->stream);
    closep(&load->memory_fd);
    free(load);
}

void load_forget(struct head *head, uint64_t job)
{
    for (struct load **at = &head->loads; *at; at = &(*at)->next) {
        struct load *load = *at;
        if (load->job != job || load->opening || load->digesting || load->streaming || load->saving)
            continue;
        if (load_records_finish(load))
            return; /* and is forgotten when that is done */
        *at = load->next;
        load_free(load);
        load_turn_next(head);
        return;
    }
}

/* ---- opening ---- */

/* Disk worker. */
static void open_run(void *user)
{
    load_files_open(user);
}

/* What the core made of it. A job that has to wait for another one begins anew: until then it needs no checkpoint. */
static void after(struct head *head, uint64_t id)
{
    const struct core_job *job = core_job_find(head->core, id);
    struct load *load = load_find(head, id);
    if (load && !load->digesting && !load->streaming && load->turn)
        load_turn_end(load);
    if (!job || core_job_over(job)) {
        load_forget(head, id);
    } else if (job->state == CORE_JOB_QUEUED && load && !load->opening && !load->saving) {
        checkpoint_free(load->checkpoint);
        load->checkpoint = NULL;
    }
}

static void open_done(void *user)
{
    struct load *load = user;
    struct head *head = load->head;
    uint64_t job = load->job, now = clock_now_ns();
    load->opening = false;
    if (load->err.code)
        core_load_open_failed(head->core, now, job, &load->err);
    else
        core_load_opened(head->core, now, job, STEAL(load->arch), load->checkpoint);
    act_run(head);
    after(head, job);
}

static struct load *load_new(struct head *head, uint64_t job)
{
    struct load *load = calloc(1, sizeof *load);
    if (!load)
        abort();
    load->head = head;
    load->job = job;
    load->memory_fd = -1;
    load->next = head->loads;
    head->loads = load;
    return load;
}

void load_memory(struct head *head, uint64_t job, int fd)
{
    load_new(head, job)->memory_fd = fd;
}

void load_open(struct head *head, uint64_t job)
{
    const struct core_job *known = core_job_find(head->core, job);
    struct load *load = load_find(head, job);
    if (!load)
        load = load_new(head, job);
    load->opening = true;
    load->force = known->force;
    load->mtp = core_job_mtp(known, &head->core->models[known->model]);
    load->whole = known->whole || known->force || load->memory_fd >= 0;
    load->layer = known->layer;
    memcpy(load->path, head->core->models[known->model].path, sizeof load->path);
    memcpy(load->model, head->core->models[known->model].name, sizeof load->model);
    worker_submit(head->disk, open_run, open_done, load);
}

/* ---- digesting ---- */

/* Bulk worker. */
static void digest_run(void *user)
{
    struct load *load = user;
    worker_background();
    const struct load_digest what = {
        .arch = &load->shape, .layers = load->layers, .cancelled = &load->cancelled, .read_bytes = &load->digest_bytes};
    if (load_digest_run(&what, load->checkpoint, &load->err) == 0)
        checkpoint_memory_check(load->checkpoint, &load->err);
}

static void digest_done(void *user)
{
    struct load *load = user;
    struct head *head = load->head;
    uint64_t job = load->job;
    load->digesting = false;
    load_records_save(load);
    core_stream_progress(head->core, job, load->digest_bytes, 0);
    core_load_digested(head->core, clock_now_ns(), job, load->checkpoint, load->err.code ? &load->err : NULL);
    act_run(head);
    after(head, job);
}

void load_digest(struct head *head, uint64_t job)
{
    struct load *load = load_find(head, job);
    const struct core_job *known = core_job_find(head->core, job);
    load->shape = *known->arch;
    memcpy(load->layers, known->digest, known->arch->layers * sizeof *load->layers);
    load->digesting = true;
    load_turn_ask(load, digest_run, digest_done);
}

/* ---- streaming ---- */

/* Bulk worker. */
static void stream_run(void *user)
{
    struct load *load = user;
    worker_background();
    if (load->force)
        checkpoint_digests_forget(load->checkpoint);
    load_stream_run(load->stream, load->checkpoint, &load->err);
}

static void stream_done(void *user)
{
    struct load *load = user;
    struct head *head = load->head;
    uint64_t job = load->job, read_bytes, sent_bytes;
    load->streaming = false;
    if (load->force)
        load->saved_known = UINT64_MAX; /* as many may be known as before, but not the same ones */
    load_records_save(load);
    load_turn_end(load);
    load_stream_progress(load->stream, &read_bytes, &sent_bytes);
    core_stream_progress(head->core, job, load->digest_bytes + read_bytes, sent_bytes);
    core_stream_ended(head->core, clock_now_ns(), job, load->checkpoint, load->err.code ? &load->err : NULL);
    const struct core_job *known = core_job_find(head->core, job);
    if (!known || core_job_over(known))
        load_forget(head, job);
    act_run(head);
}

void load_stream(struct head *head, uint64_t job)
{
    struct load *load = load_find(head, job);
    const struct core_job *known = core_job_find(head->core, job);
    for (uint32_t rank = 0; rank < head->core->models[known->model].plan->tp; rank++)
        revoked_send_stamp(head, head->core->models[known->model].duck_of_rank[rank]);
    load->stream = load_stream_new(head, known, &head->core->models[known->model]);
    load->streaming = true;
    load_turn_ask(load, stream_run, stream_done);
}

void load_cancel(struct head *head, uint64_t job)
{
    struct load *load = load_find(head, job);
    if (!load)
        return;
    atomic_store(&load->cancelled, true);
    if (load->stream)
        load_stream_cancel(load->stream);
    load_turn_cancel(load);
}

void load_send_rekeys(struct head *head, uint32_t duck, uint64_t id)
{
    const struct core_job *job = core_job_find(head->core, id);
    const struct core_model *model = &head->core->models[job->model];
    if (core_job_over(job))
        return;
    revoked_send_stamp(head, duck);
    for (size_t i = 0; i < job->rekey_count; i++) {
        const struct core_rekey *rekey = &job->rekeys[i];
        if (rekey->done || model->duck_of_rank[rekey->rank] != duck)
            continue;
        struct msg_rekey msg = {.layer = rekey->layer, .replace = job->force};
        memcpy(msg.from, rekey->from, DIGEST_SIZE);
        memcpy(msg.to, model->key, DIGEST_SIZE);
        memcpy(msg.sources, rekey->sources, DIGEST_SIZE);
        struct outgoing *out = outgoing_new();
        if (msg_rekey_encode(&out->buf, load_stream_request(id, i), &msg) < 0)
            abort(); /* a hundred bytes */
        peer_send(head->peers[duck], out, true);
        outgoing_unref(out);
    }
}

void load_tick(struct head *head)
{
    for (struct load *load = head->loads; load; load = load->next) {
        uint64_t read_bytes = 0, sent_bytes = 0;
        if (load->streaming)
            load_stream_progress(load->stream, &read_bytes, &sent_bytes);
        if (load->streaming || load->digesting)
            core_stream_progress(head->core, load->job, load->digest_bytes + read_bytes, sent_bytes);
        /* Now and then, so that a load that is cut does not digest again what it has digested. */
        if (load->streaming && !load->waits && !load->rests && !load->saving && clock_now_ns() - load->saved_ns > LOAD_SAVE_EVERY)
            load_records_save(load);
    }
}

void load_free_all(struct head *head)
{
    while (head->loads) {
        struct load *next = head->loads->next;
        load_free(head->loads);
        head->loads = next;
    }
}

/* The life of a load between the core's actions and the worker threads; what is read and sent is in load_stream.c. */
#include "daemon/head/load.h"

#include <errno.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/db.h"
#include "daemon/head/load_digest.h"
#include "daemon/head/load_glance.h"
#include "daemon/head/load_stream.h"
#include "daemon/head/revoked.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/wire/msg_cache.h"

#define LOAD_SAVE_EVERY (1 * CLOCK_NS_PER_S)

struct load {
    struct load *next;
    struct head *head;
    uint64_t job;
    /* opening */
    char path[CORE_PATH_MAX];
    char model[CORE_NAME_MAX];
    int memory_fd;    /* owned; a client's memory, -1: none */
    uint32_t layer;   /* of a job about one, else CORE_NONE */
    bool from_memory; /* the model has no weights on disk: what they were is to be remembered */
    bool sources_saved;
    bool whole;                    /* a glance is not enough */
    struct checkpoint_stamp stamp; /* of the directory, before anything in it was read */
    struct arch *arch;             /* owned until the core takes it */
    struct checkpoint *checkpoint; /* owned */
    struct err err;
    bool opening, digesting, streaming;
    bool mtp;                   /* its MTP layers too */
    bool force;                 /* no record is trusted when it streams */
    struct load_stream *stream; /* owned; set while and after streaming */
    /* digesting */
    struct arch shape;
    bool layers[ARCH_LAYERS_MAX];
    _Atomic bool cancelled;
    _Atomic uint64_t digest_bytes;
    /* records of digests */
    uint64_t saved_known; /* digests that the database has */
    bool scales_saved;    /* it has the scales */
    uint64_t saved_ns;
    unsigned saving; /* tasks on the disk worker that point here */
};

static struct load *load_find(struct head *head, uint64_t job)
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

static bool save_sources(struct load *load);
static bool save_scales(struct load *load);

void load_forget(struct head *head, uint64_t job)
{
    for (struct load **at = &head->loads; *at; at = &(*at)->next) {
        struct load *load = *at;
        if (load->job != job || load->opening || load->digesting || load->streaming || load->saving)
            continue;
        if (save_sources(load) || save_scales(load))
            return; /* and is forgotten when that is done */
        *at = load->next;
        load_free(load);
        return;
    }
}

/* "No such file" is a poor answer when the file is there and only the unit hides it (PrivateTmp), or the service's user may not see it. */
static void explain_hidden(const char *path, struct err *err)
{
    bool tmp = strncmp(path, "/tmp/", 5) == 0 || strncmp(path, "/var/tmp/", 9) == 0;
    if (!getenv("INVOCATION_ID")) /* set by systemd for its services */
        return;
    if (err->code == -ENOENT && tmp)
        err_prefix(err, "fp9d's service has a /tmp of its own (PrivateTmp), so keep checkpoints elsewhere");
    else if (err->code == -EACCES)
        err_prefix(err, "fp9d's service runs as user %u", (unsigned)geteuid());
}

/* ---- records of digests ---- */

/* Disk worker. A record that cannot be read is one that is not there: its shard is digested again. */
static void read_records(struct load *load)
{
    for (uint32_t shard = 0; shard < checkpoint_shard_count(load->checkpoint); shard++) {
        struct buf record = {0};
        struct err err = {0};
        const char *file = checkpoint_shard_name(load->checkpoint, shard);
        int r = db_load_record(load->head->db, load->path, file, &record, &err);
        if (r < 0)
            log_warning("db", "%s/%s: its digests are not known: %s", load->path, file, err.message);
        else if (record.length)
            checkpoint_record_read(load->checkpoint, shard, record.data, record.length);
        buf_release(&record);
    }
    load->saved_known = checkpoint_digests_known(load->checkpoint);
}

/* Disk worker. */
static void save_run(void *user)
{
    struct load *load = user;
    uint32_t count = checkpoint_shard_count(load->checkpoint);
    struct err err = {0};
    int r = db_begin(load->head->db, &err);
    for (uint32_t shard = 0; r == 0 && shard < count; shard++) {
        struct buf record = {0};
        r = checkpoint_record_write(load->checkpoint, shard, &record);
        if (r < 0)
            err_no_memory(&err, "record of digests", 0);
        else
            r = db_save_record(load->head->db, load->path, checkpoint_shard_name(load->checkpoint, shard), record.data, record.length,
                               &err);
        buf_release(&record);
    }
    if (r == 0)
        r = load_glance_save(load->head->db, load->path, &load->stamp, load->checkpoint, &err);
    r = db_end(load->head->db, r == 0, &err);
    if (r < 0)
        log_error("db", "%s: the digests of its weights are not remembered: %s", load->path, err.message);
}

static void save_done(void *user)
{
    struct load *load = user;
    struct head *head = load->head;
    load->saving--;
    const struct core_job *job = core_job_find(head->core, load->job);
    if (!job || core_job_over(job))
        load_forget(head, load->job);
}

/* The disk worker's order makes sure that a load that is opened later finds them. */
static void save_records(struct load *load)
{
    uint64_t known = checkpoint_digests_known(load->checkpoint);
    if (known == load->saved_known || load->from_memory || load->memory_fd >= 0)
        return; /* memory is gone when the job is over: what is remembered of it is in save_sources */
    load->saved_known = known;
    load->scales_saved = true;
    load->saved_ns = clock_now_ns();
    load->saving++;
    worker_submit(load->head->disk, save_run, save_done, load);
}

/* Other scales with the same weights: no digest becomes known by them, yet the next load must not find them changed once more. */
static bool save_scales(struct load *load)
{
    const struct core_job *job = core_job_find(load->head->core, load->job);
    if (load->scales_saved || !load->checkpoint || !job || job->state != CORE_JOB_DONE || !checkpoint_scales_changed(load->checkpoint))
        return false;
    load->saved_known = UINT64_MAX; /* whatever the number says */
    save_records(load);
    return load->saving > 0;
}

/* ---- models whose weights were in a client's memory ---- */

static void memory_file(const struct load *load, char text[CORE_NAME_MAX + 8])
{
    snprintf(text, CORE_NAME_MAX + 8, "memory/%s", load->model); /* no file of a checkpoint has a slash */
}

/* Disk worker. */
static void save_sources_run(void *user)
{
    struct load *load = user;
    char file[CORE_NAME_MAX + 8];
    struct buf record = {0};
    struct err err = {0};
    memory_file(load, file);
    int r = checkpoint_sources_write(load->checkpoint, &record);
    if (r < 0)
        err_no_memory(&err, "record of digests", 0);
    else
        r = db_save_record(load->head->db, load->path, file, record.data, record.length, &err);
    buf_release(&record);
    if (r < 0)
        log_error("db", "model %s: what its weights were is not remembered, they must be given again after a restart: %s", load->model,
                  err.message);
}

static void save_done(void *user);

/* Once the job is done: before, the model is still what it was. */
static bool save_sources(struct load *load)
{
    const struct core_job *job = core_job_find(load->head->core, load->job);
    if (!load->from_memory || load->sources_saved || !load->checkpoint || !job || job->state != CORE_JOB_DONE)
        return false;
    load->sources_saved = true;
    load->saving++;
    worker_submit(load->head->disk, save_sources_run, save_done, load);
    return true;
}

/* Disk worker. What is known of the layers without their weights: of a directory that has them, what they are; else what is remembered. */
static int open_memory(struct load *load)
{
    uint32_t layers = load->arch->layers;
    _cleanup_(freep) uint8_t(*sources)[DIGEST_SIZE] = calloc(layers, sizeof *sources);
    _cleanup_(freep) bool *known = calloc(layers, sizeof *known);
    if (!sources || !known)
        return err_no_memory(&load->err, "list of layers", layers * sizeof *sources);
    if (load->checkpoint) {
        for (uint32_t layer = 0; layer < layers; layer++)
            known[layer] = checkpoint_layer_sources(load->checkpoint, layer, sources[layer]);
        checkpoint_free(load->checkpoint);
        load->checkpoint = NULL;
    } else {
        char file[CORE_NAME_MAX + 8];
        struct buf record = {0};
        struct err err = {0};
        memory_file(load, file);
        int r = db_load_record(load->head->db, load->path, file, &record, &err);
        bool sound = r == 0 && record.length && checkpoint_sources_read(record.data, record.length, layers, sources, known);
        buf_release(&record);
        if (r < 0)
            log_warning("db", "model %s: what its weights were is not known: %s", load->model, err.message);
        if (!sound && load->memory_fd < 0) {
            err_set(&load->err, -ENOENT, ERR_BAD_CHECKPOINT,
                    "%s: neither an index nor any *.safetensors file: incomplete download? (weights from memory come by prepare)",
                    load->path);
            return -ENOENT;
        }
    }
    const struct checkpoint_memory memory = {.fd = load->memory_fd,
                                             .model = load->model,
                                             .sources = (const uint8_t(*)[DIGEST_SIZE])sources,
                                             .known = known,
                                             .layer = load->layer == CORE_NONE ? CHECKPOINT_LAYERS_ALL : load->layer,
                                             .binding = !load->from_memory};
    return checkpoint_open_memory(load->path, load->arch, &memory, &load->checkpoint, &load->err);
}

/* ---- opening ---- */

/* Disk worker. */
static void open_run(void *user)
{
    struct load *load = user;
    checkpoint_stamp_take(load->path, &load->stamp);
    if (arch_read(load->path, &load->arch, &load->err) < 0 || (load->mtp && arch_add_mtp(load->arch, load->path, &load->err) < 0)) {
        explain_hidden(load->path, &load->err);
        return;
    }
    load->from_memory = checkpoint_dir_is_bare(load->path);
    if (load->from_memory) {
        open_memory(load);
        return;
    }
    if (!load->whole && load_glance_open(load->head->db, load->path, load->model, load->arch, &load->checkpoint))
        return;
    if (checkpoint_open(load->path, load->arch, &load->checkpoint, &load->err) < 0)
        return;
    const char *ignored = checkpoint_ignored(load->checkpoint);
    if (*ignored)
        log_info("load", "%s: ignored, not in the index: %s", load->path, ignored);
    read_records(load);
    struct err err = {0};
    if (!load->force && load_glance_save(load->head->db, load->path, &load->stamp, load->checkpoint, &err) < 0)
        log_warning("db", "%s: what it is is not remembered: %s", load->path, err.message);
    if (load->memory_fd >= 0)
        open_memory(load);
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
    const struct core_job *known = core_job_find(head->core, job);
    if (!known || core_job_over(known))
        load_forget(head, job);
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
    checkpoint_free(load->checkpoint); /* a job that waited for another is opened anew: the files may have changed */
    load->checkpoint = NULL;
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
    save_records(load);
    core_stream_progress(head->core, job, load->digest_bytes, 0);
    core_load_digested(head->core, clock_now_ns(), job, load->checkpoint, load->err.code ? &load->err : NULL);
    act_run(head);
    const struct core_job *known = core_job_find(head->core, job);
    if (!known || core_job_over(known))
        load_forget(head, job);
}

void load_digest(struct head *head, uint64_t job)
{
    struct load *load = load_find(head, job);
    const struct core_job *known = core_job_find(head->core, job);
    load->shape = *known->arch;
    memcpy(load->layers, known->digest, known->arch->layers * sizeof *load->layers);
    load->digesting = true;
    worker_submit(head->bulk, digest_run, digest_done, load);
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
    save_records(load);
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
    worker_submit(head->bulk, stream_run, stream_done, load);
}

void load_cancel(struct head *head, uint64_t job)
{
    struct load *load = load_find(head, job);
    if (!load)
        return;
    atomic_store(&load->cancelled, true);
    if (load->stream)
        load_stream_cancel(load->stream);
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
        if (load->streaming && !load->saving && clock_now_ns() - load->saved_ns > LOAD_SAVE_EVERY)
            save_records(load);
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

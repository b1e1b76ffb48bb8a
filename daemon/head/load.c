/* The life of a load between the core's actions and the worker threads; what is read and sent is in load_stream.c. */
#include "daemon/head/load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/load_stream.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

struct load {
    struct load *next;
    struct head *head;
    uint64_t job;
    /* opening */
    char path[CORE_PATH_MAX];
    struct arch *arch;             /* owned until the core takes it */
    struct checkpoint *checkpoint; /* owned */
    struct err err;
    bool opening, streaming;
    struct load_stream *stream; /* owned; set while and after streaming */
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
    free(load);
}

void load_forget(struct head *head, uint64_t job)
{
    for (struct load **at = &head->loads; *at; at = &(*at)->next) {
        struct load *load = *at;
        if (load->job != job || load->opening || load->streaming)
            continue;
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

/* Disk worker. */
static void open_run(void *user)
{
    struct load *load = user;
    if (arch_read(load->path, &load->arch, &load->err) < 0) {
        explain_hidden(load->path, &load->err);
        return;
    }
    if (checkpoint_open(load->path, load->arch, &load->checkpoint, &load->err) < 0)
        return;
    const char *ignored = checkpoint_ignored(load->checkpoint);
    if (*ignored)
        log_info("load", "%s: ignored, not in the index: %s", load->path, ignored);
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

void load_open(struct head *head, uint64_t job)
{
    const struct core_job *known = core_job_find(head->core, job);
    struct load *load = calloc(1, sizeof *load);
    if (!load)
        abort();
    load->head = head;
    load->job = job;
    load->opening = true;
    memcpy(load->path, head->core->models[known->model].path, sizeof load->path);
    load->next = head->loads;
    head->loads = load;
    worker_submit(head->disk, open_run, open_done, load);
}

/* Bulk worker. */
static void stream_run(void *user)
{
    struct load *load = user;
    load_stream_run(load->stream, load->checkpoint, &load->err);
}

static void stream_done(void *user)
{
    struct load *load = user;
    struct head *head = load->head;
    uint64_t job = load->job, read_bytes, sent_bytes;
    load->streaming = false;
    load_stream_progress(load->stream, &read_bytes, &sent_bytes);
    core_stream_progress(head->core, job, read_bytes, sent_bytes);
    core_stream_ended(head->core, clock_now_ns(), job, load->err.code ? &load->err : NULL);
    load_forget(head, job);
    act_run(head);
}

void load_stream(struct head *head, uint64_t job)
{
    struct load *load = load_find(head, job);
    const struct core_job *known = core_job_find(head->core, job);
    load->stream = load_stream_new(head, known, &head->core->models[known->model]);
    load->streaming = true;
    worker_submit(head->bulk, stream_run, stream_done, load);
}

void load_cancel(struct head *head, uint64_t job)
{
    struct load *load = load_find(head, job);
    if (load && load->stream)
        load_stream_cancel(load->stream);
}

void load_tick(struct head *head)
{
    for (struct load *load = head->loads; load; load = load->next) {
        if (!load->streaming)
            continue;
        uint64_t read_bytes, sent_bytes;
        load_stream_progress(load->stream, &read_bytes, &sent_bytes);
        core_stream_progress(head->core, load->job, read_bytes, sent_bytes);
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

/* What is remembered of weights: the digests of a checkpoint's, and what those were that came from memory. */
#include "daemon/head/load_state.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/head/db.h"
#include "daemon/head/load_glance.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

/* ---- records of digests ---- */

/* Disk worker. A record that cannot be read is one that is not there: its shard is digested again. */
void load_records_read(struct load *load)
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
    load_turn_rest(load);
    const struct core_job *job = core_job_find(head->core, load->job);
    if (!job || core_job_over(job))
        load_forget(head, load->job);
}

/* The disk worker's order makes sure that a load that is opened later finds them. */
void load_records_save(struct load *load)
{
    uint64_t known = load->checkpoint ? checkpoint_digests_known(load->checkpoint) : load->saved_known;
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
    load_records_save(load);
    return load->saving > 0;
}

/* ---- models whose weights were in a client's memory ---- */

void load_memory_file(const struct load *load, char text[LOAD_MEMORY_FILE_MAX])
{
    snprintf(text, LOAD_MEMORY_FILE_MAX, "memory/%s", load->model); /* no file of a checkpoint has a slash */
}

/* Disk worker. */
static void save_sources_run(void *user)
{
    struct load *load = user;
    char file[LOAD_MEMORY_FILE_MAX];
    struct buf record = {0};
    struct err err = {0};
    load_memory_file(load, file);
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

bool load_records_finish(struct load *load)
{
    return save_sources(load) || save_scales(load);
}

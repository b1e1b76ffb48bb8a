#include "daemon/head/load_glance.h"

#include <errno.h>
#include <string.h>

#include "proto/base/log.h"

#define GLANCE_FILE "sources/" /* no file of a checkpoint has a slash */

bool load_glance_open(struct db *db, const char *dir, const char *model, const struct arch *arch, struct checkpoint **ret_checkpoint)
{
    struct buf record = {0};
    struct err err = {0};
    _cleanup_(freep) uint8_t(*sources)[DIGEST_SIZE] = calloc(arch->layers, sizeof *sources);
    _cleanup_(freep) bool *known = malloc(arch->layers * sizeof *known);
    if (!sources || !known)
        return false;
    memset(known, true, arch->layers * sizeof *known);
    if (db_load_record(db, dir, GLANCE_FILE, &record, &err) < 0)
        log_warning("db", "%s: what it was is not known: %s", dir, err.message);
    bool same = record.length && checkpoint_glance_read(dir, record.data, record.length, arch->layers, sources);
    buf_release(&record);
    if (!same)
        return false;
    const struct checkpoint_memory memory = {.fd = -1,
                                             .model = model,
                                             .sources = (const uint8_t(*)[DIGEST_SIZE])sources,
                                             .known = known,
                                             .layer = CHECKPOINT_LAYERS_ALL,
                                             .glance = true};
    return checkpoint_open_memory(dir, arch, &memory, ret_checkpoint, &err) == 0;
}

/* A write costs a sync of the disk, and mostly there is nothing new. */
static bool is_there(struct db *db, const char *dir, const struct buf *record)
{
    struct buf old = {0};
    bool same = db_load_record(db, dir, GLANCE_FILE, &old, NULL) == 0 && old.length == record->length &&
                (!old.length || memcmp(old.data, record->data, old.length) == 0);
    buf_release(&old);
    return same;
}

int load_glance_save(struct db *db, const char *dir, const struct checkpoint_stamp *stamp, const struct checkpoint *checkpoint,
                     struct err *err)
{
    struct buf record = {0};
    int r = checkpoint_glance_write(checkpoint, stamp, &record);
    if (r == -EAGAIN)
        record.length = r = 0;
    if (r < 0)
        err_no_memory(err, "record of sources", 0);
    else if (!is_there(db, dir, &record))
        r = db_save_record(db, dir, GLANCE_FILE, record.length ? (const void *)record.data : "", record.length, err);
    buf_release(&record);
    return r;
}

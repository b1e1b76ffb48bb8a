/* A look at a checkpoint that was open before. When config.json, the index and every shard are still the files that they were (device,
 * inode, size, mtime, ctime, by stat alone), the sources of all layers are known from a record: enough to tell that every slot is there, in
 * a time that does not grow with the model. Whoever needs more opens the checkpoint whole.
 *
 * Threads: none of its own. */
#ifndef FP9_MODEL_CHECKPOINT_GLANCE_H
#define FP9_MODEL_CHECKPOINT_GLANCE_H

#include "daemon/model/checkpoint.h"

struct checkpoint_file_id {
    bool there;
    uint64_t device, inode, size;
    int64_t mtime_ns, ctime_ns;
};

/* What a whole opening is about to read, taken before it: a change in between then shows as one. */
struct checkpoint_stamp {
    struct checkpoint_file_id config, index;
};

void checkpoint_stamp_take(const char *dir, struct checkpoint_stamp *ret_stamp);
/* Appends the record of a checkpoint of files that was opened after `stamp` was taken. -EAGAIN, and nothing, while a digest is unknown. */
int checkpoint_glance_write(const struct checkpoint *checkpoint, const struct checkpoint_stamp *stamp, struct buf *record);
/* The sources of all layers, [layers]; false when a file is not what it was, or the record makes no sense. */
bool checkpoint_glance_read(const char *dir, const uint8_t *record, size_t length, uint32_t layers, uint8_t (*ret_sources)[DIGEST_SIZE]);

#endif

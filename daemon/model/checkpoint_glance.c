#include "daemon/model/checkpoint_glance.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/model/checkpoint_state.h"
#include "proto/base/bytes.h"

#define GLANCE_MAGIC UINT32_C(0x31677066) /* "fpg1" */
#define FILE_ID_SIZE (1 + 5 * 8)
#define NAME_ROOM (2 + CHECKPOINT_FILE_NAME_MAX)

static int64_t nanoseconds(struct timespec time)
{
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static struct checkpoint_file_id id_of(const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path || stat(path, &st) < 0)
        return (struct checkpoint_file_id){0};
    return (struct checkpoint_file_id){.there = true,
                                       .device = st.st_dev,
                                       .inode = st.st_ino,
                                       .size = (uint64_t)st.st_size,
                                       .mtime_ns = nanoseconds(st.st_mtim),
                                       .ctime_ns = nanoseconds(st.st_ctim)};
}

void checkpoint_stamp_take(const char *dir, struct checkpoint_stamp *ret_stamp)
{
    ret_stamp->config = id_of(dir, "config.json");
    ret_stamp->index = id_of(dir, CHECKPOINT_INDEX_FILE);
}

static void write_id(struct bytes_writer *w, const struct checkpoint_file_id *id)
{
    bytes_write_u8(w, id->there);
    bytes_write_u64(w, id->device);
    bytes_write_u64(w, id->inode);
    bytes_write_u64(w, id->size);
    bytes_write_u64(w, (uint64_t)id->mtime_ns);
    bytes_write_u64(w, (uint64_t)id->ctime_ns);
}

/* The record says the same of a file as stat does now. */
static bool same_id(struct bytes_reader *r, const struct checkpoint_file_id *now)
{
    bool same = bytes_read_u8(r) == now->there;
    same &= bytes_read_u64(r) == now->device;
    same &= bytes_read_u64(r) == now->inode;
    same &= bytes_read_u64(r) == now->size;
    same &= bytes_read_u64(r) == (uint64_t)now->mtime_ns;
    same &= bytes_read_u64(r) == (uint64_t)now->ctime_ns;
    return same && !r->failed;
}

/* magic, layers, shards, config, index; by shard name and id; by layer its sources. */
int checkpoint_glance_write(const struct checkpoint *checkpoint, const struct checkpoint_stamp *stamp, struct buf *record)
{
    uint32_t shards = checkpoint_shard_count(checkpoint);
    size_t size = 3 * 4 + 2 * FILE_ID_SIZE + (size_t)shards * (NAME_ROOM + FILE_ID_SIZE) + (size_t)checkpoint->layers * DIGEST_SIZE;
    int r = buf_reserve(record, size, CHECKPOINT_RECORD_MAX);
    if (r < 0)
        return r;
    struct bytes_writer w = bytes_writer_init(record->data + record->length, size);
    bytes_write_u32(&w, GLANCE_MAGIC);
    bytes_write_u32(&w, checkpoint->layers);
    bytes_write_u32(&w, shards);
    write_id(&w, &stamp->config);
    write_id(&w, &stamp->index);
    for (uint32_t shard = 0; shard < shards; shard++) {
        const struct safetensors_identity *identity = safetensors_identity(checkpoint->shards[shard].file);
        const struct checkpoint_file_id id = {.there = true,
                                              .device = identity->device,
                                              .inode = identity->inode,
                                              .size = identity->size,
                                              .mtime_ns = identity->mtime_ns,
                                              .ctime_ns = identity->ctime_ns};
        bytes_write_string(&w, checkpoint->shards[shard].name);
        write_id(&w, &id);
    }
    for (uint32_t layer = 0; layer < checkpoint->layers; layer++) {
        uint8_t sources[DIGEST_SIZE];
        if (!checkpoint_layer_sources(checkpoint, layer, sources))
            return -EAGAIN;
        bytes_write_copy(&w, sources, DIGEST_SIZE);
    }
    if (w.failed)
        return -EMSGSIZE;
    record->length = (size_t)(w.at - record->data);
    return 0;
}

bool checkpoint_glance_read(const char *dir, const uint8_t *record, size_t length, uint32_t layers, uint8_t (*ret_sources)[DIGEST_SIZE])
{
    struct bytes_reader r = bytes_reader_init(record, length);
    struct checkpoint_stamp now;
    if (bytes_read_u32(&r) != GLANCE_MAGIC || bytes_read_u32(&r) != layers)
        return false;
    uint32_t shards = bytes_read_u32(&r);
    checkpoint_stamp_take(dir, &now);
    if (!same_id(&r, &now.config) || !same_id(&r, &now.index))
        return false;
    /* Without an index all files of the directory count: those of the record must be all. */
    if (!now.index.there && checkpoint_dir_files(dir) != shards)
        return false;
    for (uint32_t shard = 0; shard < shards; shard++) {
        char name[CHECKPOINT_FILE_NAME_MAX + 1];
        bytes_read_string(&r, name, sizeof name);
        if (r.failed)
            return false;
        const struct checkpoint_file_id id = id_of(dir, name);
        if (!same_id(&r, &id))
            return false;
    }
    for (uint32_t layer = 0; layer < layers; layer++)
        bytes_read_copy(&r, ret_sources[layer], DIGEST_SIZE);
    return bytes_reader_done(&r);
}

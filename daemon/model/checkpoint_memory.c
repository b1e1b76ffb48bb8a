/* What a checkpoint of memory is held against, and what is remembered of it. */
#include <errno.h>
#include <string.h>

#include "daemon/model/checkpoint_state.h"
#include "proto/base/bytes.h"

#define SOURCES_MAGIC UINT32_C(0x316d7066) /* "fpm1" */
#define SOURCES_HEAD (4 + 4)
#define SOURCES_ENTRY (1 + DIGEST_SIZE)

int checkpoint_memory_check(const struct checkpoint *checkpoint, struct err *err)
{
    for (uint32_t layer = 0; checkpoint->memory_binding && layer < checkpoint->layers; layer++) {
        uint8_t sources[DIGEST_SIZE];
        if (!checkpoint_layer_there(checkpoint, layer) || !checkpoint->memory_known[layer] ||
            !checkpoint_layer_sources(checkpoint, layer, sources) || memcmp(sources, checkpoint->memory_sources[layer], DIGEST_SIZE) == 0)
            continue;
        bool scales = memcmp(sources, checkpoint->memory_sources[layer], CHECKPOINT_SCALES_DIGEST) != 0;
        err_set(err, -ESTALE, ERR_CACHE_STALE,
                "layer %u: the %s in memory are not those of the checkpoint in %s: prepare them under another name, with a path that has "
                "no weights",
                layer, scales ? "scales" : "weights", checkpoint->dir);
        err_value_int(err, "layer", layer);
        return -ESTALE;
    }
    return 0;
}

/* magic, layers, then by layer: known, sources. */
int checkpoint_sources_write(const struct checkpoint *checkpoint, struct buf *record)
{
    size_t size = SOURCES_HEAD + (size_t)checkpoint->layers * SOURCES_ENTRY;
    int r = buf_reserve(record, size, CHECKPOINT_RECORD_MAX);
    if (r < 0)
        return r;
    struct bytes_writer w = bytes_writer_init(record->data + record->length, size);
    bytes_write_u32(&w, SOURCES_MAGIC);
    bytes_write_u32(&w, checkpoint->layers);
    for (uint32_t layer = 0; layer < checkpoint->layers; layer++) {
        uint8_t sources[DIGEST_SIZE];
        bytes_write_u8(&w, checkpoint_layer_sources(checkpoint, layer, sources));
        bytes_write_copy(&w, sources, DIGEST_SIZE);
    }
    record->length += size;
    return 0;
}

bool checkpoint_sources_read(const uint8_t *record, size_t length, uint32_t layers, uint8_t (*ret_sources)[DIGEST_SIZE], bool *ret_known)
{
    struct bytes_reader r = bytes_reader_init(record, length);
    if (bytes_read_u32(&r) != SOURCES_MAGIC || bytes_read_u32(&r) != layers || r.failed ||
        length != SOURCES_HEAD + (uint64_t)layers * SOURCES_ENTRY)
        return false;
    for (uint32_t layer = 0; layer < layers; layer++) {
        ret_known[layer] = bytes_read_u8(&r) != 0;
        bytes_read_copy(&r, ret_sources[layer], DIGEST_SIZE);
    }
    return true;
}

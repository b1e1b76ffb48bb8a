/* Digests of the weights and the records that carry them from one opening to the next. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/checkpoint_state.h"
#include "proto/base/bytes.h"
#include "proto/base/checksum.h"

#define RECORD_MAGIC UINT32_C(0x31647066) /* "fpd1" */
#define RECORD_HEAD (4 + 4 + 5 * 8 + DIGEST_SIZE)
#define RECORD_ENTRY (8 + 8 + 1 + DIGEST_SIZE)

CLEANUP_DEFINE(struct digest *, digest_free);

static size_t place_of(const struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix)
{
    return (size_t)(matrix - checkpoint->matrices);
}

/* Shapes and scales of one matrix: known as soon as the checkpoint is open. */
static uint64_t scales_of(const struct checkpoint_matrix *matrix)
{
    size_t bytes = (size_t)matrix->scale_rows * matrix->scale_columns * sizeof *matrix->scales;
    const uint64_t parts[] = {matrix->rows, matrix->columns, checksum_of(matrix->scales, bytes), matrix->row_origin};
    return checksum_of(parts, matrix->row_origin ? sizeof parts : 3 * sizeof *parts); /* as it was before there were origins */
}

int checkpoint_digests_begin(struct checkpoint *checkpoint, uint32_t layer, struct err *err)
{
    _cleanup_(digest_freep) struct digest *digest = digest_new();
    if (!digest)
        return err_no_memory(err, checkpoint->dir, 0);
    for (size_t i = checkpoint->layer_first[layer]; i < checkpoint->layer_first[layer + 1]; i++) {
        const struct checkpoint_matrix *matrix = &checkpoint->matrices[i];
        checkpoint->digests[i].scales = scales_of(matrix);
        digest_update_u64(digest, matrix->rows);
        digest_update_u64(digest, matrix->columns);
        if (matrix->row_origin)
            digest_update_u64(digest, matrix->row_origin);
        digest_update(digest, matrix->scales, (size_t)matrix->scale_rows * matrix->scale_columns * sizeof *matrix->scales);
    }
    digest_finish(digest, checkpoint->layer_scales[layer]);
    return 0;
}

bool checkpoint_digest_known(const struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix)
{
    return atomic_load_explicit(&checkpoint->digests[place_of(checkpoint, matrix)].known, memory_order_acquire);
}

void checkpoint_digest_set(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, const uint8_t digest[DIGEST_SIZE])
{
    struct checkpoint_digest *at = &checkpoint->digests[place_of(checkpoint, matrix)];
    if (atomic_load(&at->known))
        return;
    memcpy(at->digest, digest, DIGEST_SIZE);
    atomic_store_explicit(&at->known, true, memory_order_release);
    atomic_fetch_add(&checkpoint->digests_known, 1);
}

uint64_t checkpoint_digests_known(const struct checkpoint *checkpoint)
{
    return atomic_load(&checkpoint->digests_known);
}

void checkpoint_digests_forget(struct checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->matrix_count; i++)
        atomic_store(&checkpoint->digests[i].known, false);
    atomic_store(&checkpoint->digests_known, 0);
}

bool checkpoint_layer_sources(const struct checkpoint *checkpoint, uint32_t layer, uint8_t ret_sources[DIGEST_SIZE])
{
    if (!checkpoint_layer_there(checkpoint, layer)) {
        memcpy(ret_sources, checkpoint->memory_sources[layer], DIGEST_SIZE);
        return checkpoint->memory_known[layer];
    }
    memset(ret_sources, 0, DIGEST_SIZE);
    memcpy(ret_sources, checkpoint->layer_scales[layer], CHECKPOINT_SCALES_DIGEST);
    _cleanup_(digest_freep) struct digest *digest = digest_new();
    if (!digest)
        return false;
    digest_update_string(digest, "fp9 sources");
    digest_update(digest, checkpoint->layer_scales[layer], DIGEST_SIZE);
    for (size_t i = checkpoint->layer_first[layer]; i < checkpoint->layer_first[layer + 1]; i++) {
        if (!checkpoint_digest_known(checkpoint, &checkpoint->matrices[i]))
            return false;
        digest_update(digest, checkpoint->digests[i].digest, DIGEST_SIZE);
    }
    uint8_t all[DIGEST_SIZE];
    digest_finish(digest, all);
    memcpy(ret_sources + CHECKPOINT_SCALES_DIGEST, all, DIGEST_SIZE - CHECKPOINT_SCALES_DIGEST);
    return true;
}

/* ---- records ---- */

uint32_t checkpoint_shard_count(const struct checkpoint *checkpoint)
{
    return (uint32_t)checkpoint->index->file_count;
}

static uint64_t name_of(const struct checkpoint_matrix *matrix)
{
    return checksum_of(matrix->name, strlen(matrix->name));
}

static bool is_in(const struct checkpoint_matrix *matrix, uint32_t shard)
{
    return matrix->shard == shard || matrix->scale_shard == shard;
}

/* magic, count, identity, then by matrix whose weight or scales are in the shard: name, scales, is the digest known, digest. The digest
 * counts only where the weight is, the scales only where they are. */
int checkpoint_record_write(const struct checkpoint *checkpoint, uint32_t shard, struct buf *record)
{
    uint32_t count = 0;
    for (size_t i = 0; i < checkpoint->matrix_count; i++)
        count += is_in(&checkpoint->matrices[i], shard);
    size_t size = RECORD_HEAD + (size_t)count * RECORD_ENTRY;
    int r = buf_reserve(record, size, CHECKPOINT_RECORD_MAX);
    if (r < 0)
        return r;
    const struct safetensors_identity *identity = safetensors_identity(checkpoint->shards[shard].file);
    struct bytes_writer w = bytes_writer_init(record->data + record->length, size);
    bytes_write_u32(&w, RECORD_MAGIC);
    bytes_write_u32(&w, count);
    bytes_write_u64(&w, identity->device);
    bytes_write_u64(&w, identity->inode);
    bytes_write_u64(&w, identity->size);
    bytes_write_u64(&w, (uint64_t)identity->mtime_ns);
    bytes_write_u64(&w, (uint64_t)identity->ctime_ns);
    bytes_write_copy(&w, identity->header, DIGEST_SIZE);
    for (size_t i = 0; i < checkpoint->matrix_count; i++) {
        const struct checkpoint_matrix *matrix = &checkpoint->matrices[i];
        static const uint8_t none[DIGEST_SIZE];
        if (!is_in(matrix, shard))
            continue;
        bool known = matrix->shard == shard && checkpoint_digest_known(checkpoint, matrix);
        bytes_write_u64(&w, name_of(matrix));
        bytes_write_u64(&w, checkpoint->digests[i].scales);
        bytes_write_u8(&w, known);
        bytes_write_copy(&w, known ? checkpoint->digests[i].digest : none, DIGEST_SIZE);
    }
    record->length += size;
    return 0;
}

struct entry {
    uint64_t name, scales;
    bool known;
    uint8_t digest[DIGEST_SIZE];
};

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->name > y->name) - (x->name < y->name);
}

static void take_entry(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, uint32_t shard, const struct entry *entry,
                       bool same_file)
{
    struct checkpoint_digest *at = &checkpoint->digests[place_of(checkpoint, matrix)];
    if (matrix->scale_shard == shard) {
        at->had_scales = true;
        at->old_scales = entry->scales;
    }
    if (matrix->shard != shard || !entry->known)
        return;
    at->had_digest = true;
    memcpy(at->old_digest, entry->digest, DIGEST_SIZE);
    if (same_file)
        checkpoint_digest_set(checkpoint, matrix, entry->digest);
}

bool checkpoint_record_read(struct checkpoint *checkpoint, uint32_t shard, const uint8_t *record, size_t length)
{
    const struct safetensors_identity *now = safetensors_identity(checkpoint->shards[shard].file);
    struct bytes_reader r = bytes_reader_init(record, length);
    uint8_t header[DIGEST_SIZE];
    bool ours = bytes_read_u32(&r) == RECORD_MAGIC;
    uint32_t count = bytes_read_u32(&r);
    bool same = bytes_read_u64(&r) == now->device;
    same &= bytes_read_u64(&r) == now->inode;
    same &= bytes_read_u64(&r) == now->size;
    same &= bytes_read_u64(&r) == (uint64_t)now->mtime_ns;
    same &= bytes_read_u64(&r) == (uint64_t)now->ctime_ns;
    bytes_read_copy(&r, header, DIGEST_SIZE);
    if (!ours || r.failed || length != RECORD_HEAD + (uint64_t)count * RECORD_ENTRY)
        return false;
    same &= memcmp(header, now->header, DIGEST_SIZE) == 0;
    _cleanup_(freep) struct entry *entries = calloc((size_t)count + 1, sizeof *entries);
    if (!entries)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        entries[i].name = bytes_read_u64(&r);
        entries[i].scales = bytes_read_u64(&r);
        entries[i].known = bytes_read_u8(&r) != 0;
        bytes_read_copy(&r, entries[i].digest, DIGEST_SIZE);
    }
    qsort(entries, count, sizeof *entries, by_name);
    for (size_t i = 0; i < checkpoint->matrix_count; i++) {
        const struct checkpoint_matrix *matrix = &checkpoint->matrices[i];
        if (!is_in(matrix, shard))
            continue;
        const struct entry key = {.name = name_of(matrix)};
        const struct entry *entry = bsearch(&key, entries, count, sizeof *entries, by_name);
        if (entry)
            take_entry(checkpoint, matrix, shard, entry, same);
    }
    return true;
}

static bool scales_changed(const struct checkpoint_digest *at)
{
    return at->had_scales && at->old_scales != at->scales;
}

/* By what the shard holds of the matrix. */
static bool changed(const struct checkpoint *checkpoint, size_t i, uint32_t shard)
{
    const struct checkpoint_matrix *matrix = &checkpoint->matrices[i];
    const struct checkpoint_digest *at = &checkpoint->digests[i];
    if (matrix->scale_shard == shard && scales_changed(at))
        return true;
    return matrix->shard == shard && at->had_digest && checkpoint_digest_known(checkpoint, matrix) &&
           memcmp(at->old_digest, at->digest, DIGEST_SIZE) != 0;
}

bool checkpoint_scales_changed(const struct checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->matrix_count; i++)
        if (scales_changed(&checkpoint->digests[i]))
            return true;
    return false;
}

void checkpoint_changed_shards(const struct checkpoint *checkpoint, char *text, size_t size)
{
    size_t more = 0, at = 0;
    text[0] = '\0';
    for (uint32_t shard = 0; shard < checkpoint_shard_count(checkpoint); shard++) {
        bool any = false;
        for (size_t i = 0; i < checkpoint->matrix_count && !any; i++)
            any = changed(checkpoint, i, shard);
        if (!any)
            continue;
        const char *name = checkpoint_shard_name(checkpoint, shard);
        if (more || at + strlen(name) + 24 > size)
            more++;
        else
            at += (size_t)snprintf(text + at, size - at, "%s%s", at ? ", " : "", name);
    }
    if (more)
        snprintf(text + at, size - at, " and %zu more", more);
}

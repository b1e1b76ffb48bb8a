/* model.safetensors.index.json: which tensor is in which file. Private to the checkpoint. */
#ifndef FP9_MODEL_CHECKPOINT_INDEX_H
#define FP9_MODEL_CHECKPOINT_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/buf.h"
#include "proto/base/cleanup.h"
#include "proto/base/err.h"

#define CHECKPOINT_INDEX_FILE "model.safetensors.index.json"
#define CHECKPOINT_INDEX_BYTES_MAX (64u * 1024 * 1024)
#define CHECKPOINT_FILE_NAME_MAX 255

struct checkpoint_index_entry {
    const char *tensor;
    uint32_t file; /* into files */
};

struct checkpoint_index {
    struct checkpoint_index_entry *entries; /* by ascending tensor name */
    size_t count;
    char **files; /* plain names within the directory, ascending */
    size_t file_count;
    struct buf names; /* what the entries point into */
};

/* Parses the index. BAD_CHECKPOINT, naming `where`, for anything but {"weight_map": {tensor: file, ...}, ...}, for a tensor given twice,
 * and for a file name that is not a plain name within the directory. */
int checkpoint_index_parse(const char *text, size_t length, const char *where, struct checkpoint_index **ret_index, struct err *err);
void checkpoint_index_free(struct checkpoint_index *index);
CLEANUP_DEFINE(struct checkpoint_index *, checkpoint_index_free);

/* NULL when the index does not have it. */
const struct checkpoint_index_entry *checkpoint_index_find(const struct checkpoint_index *index, const char *tensor);
/* The first tensor whose name begins so; NULL when there is none. */
const char *checkpoint_index_prefix(const struct checkpoint_index *index, const char *prefix);

#endif

#include "daemon/model/checkpoint_index.h"

#include <errno.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#include "daemon/model/checkpoint.h"
#include "proto/base/checksum.h"
#include "proto/base/safetensors.h"

#define DEPTH_MAX 16 /* of what stands beside weight_map */
#define FILE_SLOTS (4 * CHECKPOINT_SHARDS_MAX)

struct parser {
    struct checkpoint_index *index;
    const char *where;
    size_t capacity;
    unsigned depth;       /* open maps and arrays */
    bool in_map, has_map; /* inside weight_map; it was there */
    bool map_is_next;
    char tensor[SAFETENSORS_NAME_MAX + 1];
    size_t *offsets; /* of the entries' names in index->names, [capacity] */
    uint16_t *slots; /* open hash of file names: place in index->files + 1, 0 when free; [FILE_SLOTS] */
    struct err *err;
    int code;
};

static int fail(struct parser *p, const char *what)
{
    p->code = err_set(p->err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s", p->where, what);
    err_value_str(p->err, "file", p->where);
    return 0;
}

static int scalar(struct parser *p)
{
    if (p->in_map) {
        p->code = err_set(p->err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: weight_map: %s: must be a file name", p->where, p->tensor);
        return 0;
    }
    if (p->map_is_next)
        return fail(p, "weight_map must be an object of tensor names and file names");
    if (p->depth == 0)
        return fail(p, "must be a JSON object");
    return 1;
}

static int on_null(void *context)
{
    return scalar(context);
}

static int on_boolean(void *context, int value)
{
    (void)value;
    return scalar(context);
}

static int on_number(void *context, const char *text, size_t length)
{
    (void)text;
    (void)length;
    return scalar(context);
}

static bool plain_name(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* Index of a file name, added when new. Hashed, so that a hostile map of many files costs no more than its bytes. */
static int file_of(struct parser *p, const char *name, uint32_t *ret_file)
{
    struct checkpoint_index *index = p->index;
    size_t slot = checksum_of(name, strlen(name)) % FILE_SLOTS;
    for (; p->slots[slot]; slot = (slot + 1) % FILE_SLOTS) {
        uint32_t i = p->slots[slot] - 1u;
        if (strcmp(index->files[i], name) == 0) {
            *ret_file = i;
            return 1;
        }
    }
    if (index->file_count == CHECKPOINT_SHARDS_MAX)
        return fail(p, "names one file more than the limit of 4096");
    if (!(index->files[index->file_count] = strdup(name))) {
        p->code = err_no_memory(p->err, p->where, strlen(name));
        return 0;
    }
    *ret_file = (uint32_t)index->file_count++;
    p->slots[slot] = (uint16_t)index->file_count;
    return 1;
}

static int grow(struct parser *p)
{
    struct checkpoint_index *index = p->index;
    if (index->count < p->capacity)
        return 1;
    size_t capacity = p->capacity ? 2 * p->capacity : 256;
    struct checkpoint_index_entry *entries = reallocarray(index->entries, capacity, sizeof *entries);
    if (entries)
        index->entries = entries;
    size_t *offsets = reallocarray(p->offsets, capacity, sizeof *offsets);
    if (offsets)
        p->offsets = offsets;
    if (!entries || !offsets) {
        p->code = err_no_memory(p->err, p->where, capacity * sizeof *entries);
        return 0;
    }
    p->capacity = capacity;
    return 1;
}

static int on_string(void *context, const unsigned char *text, size_t length)
{
    struct parser *p = context;
    if (!p->in_map)
        return scalar(p);
    char name[CHECKPOINT_FILE_NAME_MAX + 1];
    bool ok = length <= CHECKPOINT_FILE_NAME_MAX && !memchr(text, '\0', length);
    size_t n = length <= CHECKPOINT_FILE_NAME_MAX ? length : CHECKPOINT_FILE_NAME_MAX;
    memcpy(name, text, n);
    name[n] = '\0';
    if (!ok || !plain_name(name)) {
        p->code = err_set(p->err, -EINVAL, ERR_BAD_CHECKPOINT,
                          "%s: weight_map: %s: \"%s\" is not a plain file name within the model's directory", p->where, p->tensor, name);
        err_value_str(p->err, "file", name);
        err_value_str(p->err, "tensor", p->tensor);
        return 0;
    }
    uint32_t file;
    if (!grow(p) || !file_of(p, name, &file))
        return 0;
    p->offsets[p->index->count] = p->index->names.length;
    if (buf_append(&p->index->names, p->tensor, strlen(p->tensor) + 1, SIZE_MAX) < 0) {
        p->code = err_no_memory(p->err, p->where, p->index->names.length);
        return 0;
    }
    p->index->entries[p->index->count++].file = file;
    return 1;
}

static int open_one(struct parser *p)
{
    if (p->in_map)
        return scalar(p);
    if (++p->depth > DEPTH_MAX)
        return fail(p, "nested deeper than 16");
    return 1;
}

static int on_map_start(void *context)
{
    struct parser *p = context;
    if (!p->map_is_next)
        return open_one(p);
    p->map_is_next = false;
    p->in_map = true;
    p->depth++;
    return 1;
}

static int on_map_key(void *context, const unsigned char *key, size_t length)
{
    struct parser *p = context;
    if (p->in_map) {
        if (length == 0 || length > SAFETENSORS_NAME_MAX || memchr(key, '\0', length))
            return fail(p, "weight_map: a tensor's name must have 1 to 512 bytes");
        memcpy(p->tensor, key, length);
        p->tensor[length] = '\0';
        return 1;
    }
    if (p->depth == 1 && length == strlen("weight_map") && memcmp(key, "weight_map", length) == 0) {
        if (p->has_map)
            return fail(p, "weight_map is given twice");
        p->has_map = p->map_is_next = true;
    }
    return 1;
}

static int on_close(void *context)
{
    struct parser *p = context;
    p->in_map = false;
    p->depth--;
    return 1;
}

static int on_array_start(void *context)
{
    struct parser *p = context;
    if (p->depth == 0 || p->map_is_next)
        return scalar(p);
    return open_one(p);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_map_start,
    .yajl_map_key = on_map_key,
    .yajl_end_map = on_close,
    .yajl_start_array = on_array_start,
    .yajl_end_array = on_close,
};

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_index_entry *)a)->tensor, ((const struct checkpoint_index_entry *)b)->tensor);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Files by name, so that shards are numbered alike whatever the order of the map. */
static int sort_files(struct checkpoint_index *index, struct err *err)
{
    _cleanup_(freep) char **old = calloc(index->file_count + 1, sizeof(char *));
    _cleanup_(freep) uint32_t *place = calloc(index->file_count + 1, sizeof *place);
    if (!old || !place)
        return err_no_memory(err, CHECKPOINT_INDEX_FILE, index->file_count * sizeof *old);
    memcpy(old, index->files, index->file_count * sizeof *old);
    qsort(index->files, index->file_count, sizeof *index->files, by_text);
    for (size_t i = 0; i < index->file_count; i++) {
        char **at = bsearch(&old[i], index->files, index->file_count, sizeof *index->files, by_text);
        place[i] = (uint32_t)(at - index->files);
    }
    for (size_t i = 0; i < index->count; i++)
        index->entries[i].file = place[index->entries[i].file];
    return 0;
}

static int finish(struct parser *p, struct err *err)
{
    struct checkpoint_index *index = p->index;
    if (!p->has_map || index->count == 0) {
        fail(p, "has no weight_map with tensors in it");
        return p->code;
    }
    for (size_t i = 0; i < index->count; i++)
        index->entries[i].tensor = (const char *)index->names.data + p->offsets[i];
    qsort(index->entries, index->count, sizeof *index->entries, by_tensor);
    for (size_t i = 1; i < index->count; i++) {
        if (strcmp(index->entries[i - 1].tensor, index->entries[i].tensor) == 0) {
            err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "duplicate tensor name %s in file %s", index->entries[i].tensor, p->where);
            err_value_str(err, "tensor", index->entries[i].tensor);
            return -EINVAL;
        }
    }
    return sort_files(index, err);
}

static int syntax(struct parser *p, yajl_handle yajl, const char *text, size_t length)
{
    unsigned char *why = yajl_get_error(yajl, 0, (const unsigned char *)text, length);
    char line[128];
    size_t n = 0;
    for (; why && why[n] && why[n] != '\n' && n < sizeof line - 1; n++)
        line[n] = (char)why[n];
    line[n] = '\0';
    fail(p, line);
    yajl_free_error(yajl, why);
    return p->code;
}

int checkpoint_index_parse(const char *text, size_t length, const char *where, struct checkpoint_index **ret_index, struct err *err)
{
    _cleanup_(checkpoint_index_freep) struct checkpoint_index *index = calloc(1, sizeof *index);
    if (index)
        index->files = calloc(CHECKPOINT_SHARDS_MAX, sizeof *index->files);
    if (!index || !index->files)
        return err_no_memory(err, where, CHECKPOINT_SHARDS_MAX * sizeof(char *));
    _cleanup_(freep) uint16_t *slots = calloc(FILE_SLOTS, sizeof *slots);
    if (!slots)
        return err_no_memory(err, where, FILE_SLOTS * sizeof *slots);
    struct parser parser = {.index = index, .where = where, .slots = slots, .err = err};
    yajl_handle yajl = yajl_alloc(&callbacks, NULL, &parser);
    if (!yajl)
        return err_no_memory(err, where, 0);
    yajl_status status = yajl_parse(yajl, (const unsigned char *)text, length);
    if (status == yajl_status_ok)
        status = yajl_complete_parse(yajl);
    int r;
    if (status == yajl_status_ok)
        r = finish(&parser, err);
    else
        r = status == yajl_status_client_canceled ? parser.code : syntax(&parser, yajl, text, length);
    yajl_free(yajl);
    free(parser.offsets);
    if (r < 0)
        return r;
    *ret_index = STEAL(index);
    return 0;
}

void checkpoint_index_free(struct checkpoint_index *index)
{
    if (!index)
        return;
    for (size_t i = 0; i < index->file_count; i++)
        free(index->files[i]);
    free(index->files);
    free(index->entries);
    buf_release(&index->names);
    free(index);
}

static int tensor_against(const void *tensor, const void *entry)
{
    return strcmp(tensor, ((const struct checkpoint_index_entry *)entry)->tensor);
}

const struct checkpoint_index_entry *checkpoint_index_find(const struct checkpoint_index *index, const char *tensor)
{
    return bsearch(tensor, index->entries, index->count, sizeof *index->entries, tensor_against);
}

const char *checkpoint_index_prefix(const struct checkpoint_index *index, const char *prefix)
{
    size_t low = 0, high = index->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(index->entries[middle].tensor, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < index->count && strncmp(index->entries[low].tensor, prefix, strlen(prefix)) == 0;
    return found ? index->entries[low].tensor : NULL;
}

#include <errno.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/base/safetensors.h"
#include "proto/client/core.h"

#define TENSOR_BYTES_MAX (UINT64_C(1) << 36) /* of one tensor that is read into memory */
#define WRITE_TENSORS_MAX 64
#define OTHERS_TEXT 400
#define OTHERS_NAMED 4

struct block {
    struct block *next;
    _Alignas(64) uint8_t data[];
};

struct fp9_tensors {
    struct safetensors *file; /* owned */
    struct block *blocks;     /* owned; all data that was read */
};

void fp9_tensors_free(struct fp9_tensors *tensors)
{
    if (!tensors)
        return;
    while (tensors->blocks) {
        struct block *block = tensors->blocks;
        tensors->blocks = block->next;
        free(block);
    }
    safetensors_free(tensors->file);
    free(tensors);
}

int fp9_tensors_open(const char *path, struct fp9_tensors **ret_tensors, struct fp9_error *error)
{
    struct err err = {0};
    struct fp9_tensors *tensors = calloc(1, sizeof *tensors);
    if (!tensors) {
        err_no_memory(&err, path, sizeof *tensors);
        return conn_error(error, &err);
    }
    if (safetensors_open(path, &tensors->file, &err)) {
        fp9_tensors_free(tensors);
        return conn_error(error, &err);
    }
    *ret_tensors = tensors;
    return 0;
}

bool fp9_tensors_has(const struct fp9_tensors *tensors, const char *name)
{
    return safetensors_find(tensors->file, name) != NULL;
}

static enum safetensors_dtype dtype_to_file(enum fp9_dtype dtype)
{
    switch (dtype) {
    case FP9_BF16: return SAFETENSORS_BF16;
    case FP9_F32: return SAFETENSORS_F32;
    case FP9_I32: return SAFETENSORS_I32;
    case FP9_DEFAULT: break;
    }
    return SAFETENSORS_OTHER;
}

/* The last word of a tensor's name. */
static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* "; there are layers.1.mlp.input, layers.2.mlp.input and 3 more": tensors whose last word is `word`, or ends it when !whole; "" when there
 * are none. */
static const char *list_ending(const struct safetensors *file, const char *word, bool whole, char text[OTHERS_TEXT + 32])
{
    size_t length = strlen(word), at = 0, named = 0, more = 0;
    char names[OTHERS_TEXT] = "";
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const char *other = safetensors_at(file, i)->name, *last = last_word(other);
        size_t all = strlen(other), n = strlen(last);
        if (!n || n > length || (whole && n != length) || strcmp(word + length - n, last) != 0)
            continue;
        if (more || named == OTHERS_NAMED || at + all + 64 > OTHERS_TEXT) {
            more++;
            continue;
        }
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", named++ ? ", " : "", other);
    }
    text[0] = '\0';
    if (named && more)
        snprintf(names + at, sizeof names - at, " and %zu more", more);
    if (named)
        snprintf(text, OTHERS_TEXT + 32, "; there %s %s", named + more == 1 ? "is" : "are", names);
    return text;
}

/* Names that may have been meant: of the same last word, or, as a prefix without its dot makes "mlpinput" of "mlp" and "input", of one that
 * ends it. */
static const char *list_others(const struct safetensors *file, const char *name, char text[OTHERS_TEXT + 32])
{
    const char *word = last_word(name);
    return *list_ending(file, word, true, text) ? text : list_ending(file, word, false, text);
}

/* "; a prefix ends with a dot: layers.1.mlp.": when there is the tensor that the name is with one dot more before its last word. */
static const char *dot_forgotten(const struct safetensors *file, const char *name, char text[SAFETENSORS_NAME_MAX + 48])
{
    size_t length = strlen(name);
    text[0] = '\0';
    for (size_t i = 0; i < safetensors_count(file) && !text[0]; i++) {
        const char *other = safetensors_at(file, i)->name, *last = last_word(other);
        size_t prefix = (size_t)(last - other); /* with the dot */
        if (prefix > 1 && strlen(other) == length + 1 && memcmp(name, other, prefix - 1) == 0 && strcmp(name + prefix - 1, last) == 0)
            snprintf(text, SAFETENSORS_NAME_MAX + 48, "; a prefix ends with a dot: %.*s", (int)prefix, other);
    }
    return text;
}

static int tensors_read(struct fp9_tensors *tensors, const char *name, enum fp9_dtype dtype, uint32_t dims, struct fp9_tensor *ret_tensor,
                        struct err *err)
{
    enum safetensors_dtype wanted = dtype_to_file(dtype);
    if (wanted == SAFETENSORS_OTHER)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: a tensor is read as FP9_BF16, FP9_F32 or FP9_I32", name);
    const char *path = safetensors_path(tensors->file);
    const struct safetensors_tensor *tensor = safetensors_find(tensors->file, name);
    if (!tensor) {
        char others[OTHERS_TEXT + 32], dot[SAFETENSORS_NAME_MAX + 48];
        err_set(err, -ENOENT, ERR_NO_SUCH, "%s: no tensor %s in it%s%s", path, name, dot_forgotten(tensors->file, name, dot),
                list_others(tensors->file, name, others));
        err_value_str(err, "tensor", name);
        return -ENOENT;
    }
    if (tensor->dtype != wanted) {
        err_set(err, -EINVAL, ERR_BAD_DTYPE, "%s: %s is %s, %s is needed", path, name, tensor->dtype_name, safetensors_dtype_name(wanted));
        err_value_str(err, "tensor", name);
        err_value_str(err, "dtype", tensor->dtype_name);
        return -EINVAL;
    }
    char shape[160];
    safetensors_shape_format(tensor, shape, sizeof shape);
    uint64_t bytes = tensor->end - tensor->begin;
    if (tensor->dims != dims || bytes > TENSOR_BYTES_MAX) {
        if (tensor->dims != dims)
            err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %s has shape %s, %u dimensions are needed", path, name, shape, dims);
        else
            err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %s has shape %s, which is more than %u GiB", path, name, shape,
                    (unsigned)(TENSOR_BYTES_MAX >> 30));
        err_value_str(err, "tensor", name);
        err_value_str(err, "shape", shape);
        return -EINVAL;
    }
    /* Not aligned_alloc: the header of a block sits in front of data that is itself on a 64-byte boundary. */
    struct block *block = NULL;
    if (posix_memalign((void **)&block, 64, sizeof *block + bytes) != 0)
        return err_no_memory(err, name, bytes);
    int r = safetensors_read(tensors->file, tensor, 0, bytes, block->data, err);
    if (r) {
        free(block);
        return r;
    }
    block->next = tensors->blocks;
    tensors->blocks = block;
    *ret_tensor = (struct fp9_tensor){.name = tensor->name, .dtype = dtype, .dims = dims, .data = block->data};
    memcpy(ret_tensor->shape, tensor->shape, dims * sizeof tensor->shape[0]);
    return 0;
}

int fp9_tensors_read(struct fp9_tensors *tensors, const char *name, enum fp9_dtype dtype, uint32_t dims, struct fp9_tensor *ret_tensor,
                     struct fp9_error *error)
{
    struct err err = {0};
    return tensors_read(tensors, name, dtype, dims, ret_tensor, &err) ? conn_error(error, &err) : 0;
}

int fp9_tensors_write(const char *path, const struct fp9_tensor *tensors, size_t count, struct fp9_error *error)
{
    struct err err = {0};
    struct safetensors_item items[WRITE_TENSORS_MAX];
    if (count > WRITE_TENSORS_MAX) {
        err_set(&err, -EINVAL, ERR_BAD_REQUEST, "%zu tensors, at most %d are written into a file", count, WRITE_TENSORS_MAX);
        return conn_error(error, &err);
    }
    for (size_t i = 0; i < count; i++) {
        items[i] = (struct safetensors_item){
            .name = tensors[i].name,
            .dtype = dtype_to_file(tensors[i].dtype),
            .dims = tensors[i].dims,
            .shape = tensors[i].shape,
            .data = tensors[i].data,
        };
        if (items[i].dtype == SAFETENSORS_OTHER || tensors[i].dims > FP9_TENSOR_DIMS) {
            err_set(&err, -EINVAL, ERR_BAD_REQUEST, "%s: a tensor is written as FP9_BF16, FP9_F32 or FP9_I32, with at most %d dimensions",
                    tensors[i].name, FP9_TENSOR_DIMS);
            return conn_error(error, &err);
        }
    }
    return safetensors_write(path, items, count, &err) ? conn_error(error, &err) : 0;
}

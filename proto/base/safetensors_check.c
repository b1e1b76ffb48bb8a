#include <errno.h>
#include <string.h>

#include "proto/base/safetensors_table.h"
#include "proto/base/size.h"

typedef unsigned long long ull; /* for %llu */

void safetensors_table_release(struct safetensors_table *table)
{
    free(table->tensors);
    buf_release(&table->names);
    *table = (struct safetensors_table){0};
}

static int by_name(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_range(const void *a, const void *b)
{
    const struct safetensors_tensor *x = *(const struct safetensors_tensor *const *)a, *y = *(const struct safetensors_tensor *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int bad(struct err *err, const char *where, const struct safetensors_tensor *tensor)
{
    err_value_str(err, "file", where);
    err_value_str(err, "tensor", tensor->name);
    return -EINVAL;
}

/* A tensor by itself: order of its offsets, and its size against shape and dtype. */
static int check_one(const struct safetensors_tensor *tensor, const char *where, struct err *err)
{
    if (tensor->begin > tensor->end) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: tensor %s: begins at %llu, after its end %llu", where, tensor->name,
                (ull)tensor->begin, (ull)tensor->end);
        return bad(err, where, tensor);
    }
    uint64_t bits = safetensors_dtype_bits(tensor->dtype), elements = 1;
    bool fits = true;
    for (uint32_t i = 0; i < tensor->dims; i++)
        if (tensor->shape[i] == 0)
            elements = 0;
    for (uint32_t i = 0; i < tensor->dims && fits && elements; i++)
        fits = size_mul(elements, tensor->shape[i], &elements);
    char shape[256];
    safetensors_shape_format(tensor, shape, sizeof shape);
    if (!fits || (bits && !size_mul(elements, bits, &bits))) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: tensor %s: %s %s needs more than 2^64 bits, declared %llu bytes", where,
                tensor->name, tensor->dtype_name, shape, (ull)(tensor->end - tensor->begin));
        return bad(err, where, tensor);
    }
    if (tensor->dtype == SAFETENSORS_OTHER)
        return 0;
    if (bits % 8 != 0 || bits / 8 != tensor->end - tensor->begin) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: tensor %s: declared %llu byte%s [%llu, %llu), but %s %s needs %llu", where,
                tensor->name, (ull)(tensor->end - tensor->begin), size_plural(tensor->end - tensor->begin), (ull)tensor->begin,
                (ull)tensor->end, tensor->dtype_name, shape, (ull)(bits / 8));
        err_value_int(err, "declared", (long long)(tensor->end - tensor->begin));
        err_value_int(err, "needed", (long long)(bits / 8));
        return bad(err, where, tensor);
    }
    return 0;
}

static int check_ranges(struct safetensors_tensor *const *order, size_t count, const char *where, uint64_t *ret_end, struct err *err)
{
    const struct safetensors_tensor *last = NULL;
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        const struct safetensors_tensor *at = order[i];
        if (at->begin < end) {
            err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: tensors %s [%llu, %llu) and %s [%llu, %llu) overlap", where, last->name,
                    (ull)last->begin, (ull)last->end, at->name, (ull)at->begin, (ull)at->end);
            err_value_str(err, "other", last->name);
            return bad(err, where, at);
        }
        if (at->begin > end) {
            err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %llu byte%s before tensor %s [%llu, %llu) belong%s to no tensor", where,
                    (ull)(at->begin - end), size_plural(at->begin - end), at->name, (ull)at->begin, (ull)at->end,
                    at->begin - end == 1 ? "s" : "");
            return bad(err, where, at);
        }
        end = at->end;
        last = at;
    }
    *ret_end = end;
    return 0;
}

/* The data's end as declared against what the file has. */
static int check_end(struct safetensors_tensor *const *order, size_t count, const char *where, uint64_t end, uint64_t data_bytes,
                     struct err *err)
{
    if (end == data_bytes)
        return 0;
    if (end < data_bytes) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %llu byte%s of data after the last tensor's end %llu", where,
                (ull)(data_bytes - end), size_plural(data_bytes - end), (ull)end);
        err_value_str(err, "file", where);
        return -EINVAL;
    }
    const struct safetensors_tensor *past = NULL;
    for (size_t i = 0; i < count && !past; i++)
        if (order[i]->end > data_bytes)
            past = order[i];
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT,
            "%s: truncated (incomplete download?): expected %llu byte%s of data, the file has %llu; tensor %s [%llu, %llu) ends past it",
            where, (ull)end, size_plural(end), (ull)data_bytes, past ? past->name : "?",
            past ? (ull)past->begin : 0, past ? (ull)past->end : 0);
    err_value_str(err, "file", where);
    err_value_int(err, "expected", (long long)end);
    err_value_int(err, "actual", (long long)data_bytes);
    if (past)
        err_value_str(err, "tensor", past->name);
    return -EINVAL;
}

int safetensors_table_check(struct safetensors_table *table, const char *where, uint64_t data_bytes, struct err *err)
{
    if (table->count > 1)
        qsort(table->tensors, table->count, sizeof *table->tensors, by_name);
    for (size_t i = 1; i < table->count; i++) {
        if (strcmp(table->tensors[i - 1].name, table->tensors[i].name) == 0) {
            err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "duplicate tensor name %s in file %s", table->tensors[i].name, where);
            return bad(err, where, &table->tensors[i]);
        }
    }
    for (size_t i = 0; i < table->count; i++) {
        int r = check_one(&table->tensors[i], where, err);
        if (r < 0)
            return r;
    }
    _cleanup_(freep) struct safetensors_tensor **order = calloc(table->count + 1, sizeof(struct safetensors_tensor *));
    if (!order)
        return err_no_memory(err, where, (table->count + 1) * sizeof *order);
    for (size_t i = 0; i < table->count; i++)
        order[i] = &table->tensors[i];
    qsort(order, table->count, sizeof *order, by_range);
    uint64_t end;
    int r = check_ranges(order, table->count, where, &end, err);
    if (r < 0)
        return r;
    return check_end(order, table->count, where, end, data_bytes, err);
}

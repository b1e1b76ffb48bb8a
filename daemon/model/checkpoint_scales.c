#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/checkpoint_state.h"
#include "kernels/kernels.h"

static float to_f32(enum safetensors_dtype dtype, const uint8_t *bytes)
{
    if (dtype == SAFETENSORS_F32) {
        uint32_t bits;
        float value;
        memcpy(&bits, bytes, sizeof bits);
        bits = le32toh(bits);
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, bytes, sizeof bits);
    bits = le16toh(bits);
    return dtype == SAFETENSORS_BF16 ? kernels_bf16_to_f32(bits) : kernels_f16_to_f32(bits);
}

/* Scale rows [first, first + rows) of a tensor [.., columns] into `to`. */
static int scales_read(struct checkpoint *checkpoint, const struct safetensors_tensor *scale, uint32_t shard, uint64_t first,
                       uint32_t rows, uint32_t columns, float *to, struct err *err)
{
    if (scale->dtype != SAFETENSORS_F32 && scale->dtype != SAFETENSORS_BF16 && scale->dtype != SAFETENSORS_F16) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s is %s, scales must be F32, BF16 or F16", checkpoint->shards[shard].name,
                scale->name, scale->dtype_name);
        err_value_str(err, "tensor", scale->name);
        err_value_str(err, "dtype", scale->dtype_name);
        return -EINVAL;
    }
    size_t width = safetensors_dtype_bits(scale->dtype) / 8, count = (size_t)rows * columns;
    _cleanup_(freep) uint8_t *raw = malloc(count * width);
    if (!raw)
        return err_no_memory(err, scale->name, count * width);
    int r = safetensors_read(checkpoint_shard_use(checkpoint, shard), scale, first * columns * width, count * width, raw, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < count; i++) {
        to[i] = to_f32(scale->dtype, raw + i * width);
        if (kernels_scale_ok(to[i]))
            continue;
        uint64_t in_all = first + i / columns, of_expert = scale->dims > 2 ? scale->shape[1] : in_all + 1;
        unsigned row = (unsigned)(in_all % of_expert), column = (unsigned)(i % columns), expert = (unsigned)(in_all / of_expert);
        char of[32] = "";
        if (scale->dims > 2)
            snprintf(of, sizeof of, " of expert %u", expert);
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s: the scale of block [%u, %u]%s is %g, must be finite and at most 2^80 in size",
                checkpoint->shards[shard].name, scale->name, row, column, of, (double)to[i]);
        err_value_str(err, "file", checkpoint->shards[shard].name);
        err_value_str(err, "tensor", scale->name);
        err_value_int(err, "block_row", row);
        err_value_int(err, "block_column", column);
        return -EINVAL;
    }
    return 0;
}

int checkpoint_scales_hold_one(struct checkpoint *checkpoint, size_t i, struct err *err)
{
    struct checkpoint_matrix *matrix = &checkpoint->matrices[i];
    const struct checkpoint_scales_at *at = &checkpoint->scales_at[i];
    size_t count = (size_t)matrix->scale_rows * matrix->scale_columns;
    if (matrix->scales)
        return 0;
    _cleanup_(freep) float *scales = malloc(count * sizeof *scales);
    if (!scales)
        return err_no_memory(err, matrix->name, count * sizeof *scales);
    int r = scales_read(checkpoint, at->tensor, matrix->scale_shard, at->first_row, matrix->scale_rows, matrix->scale_columns, scales, err);
    if (r < 0)
        return r;
    matrix->scales = STEAL(scales);
    return 0;
}

int checkpoint_scales_hold(struct checkpoint *checkpoint, uint32_t layer, struct err *err)
{
    int r = 0;
    for (size_t i = checkpoint->layer_first[layer]; r == 0 && i < checkpoint->layer_first[layer + 1]; i++)
        r = checkpoint_scales_hold_one(checkpoint, i, err);
    if (r < 0)
        checkpoint_scales_drop(checkpoint, layer);
    return r;
}

void checkpoint_scales_drop(struct checkpoint *checkpoint, uint32_t layer)
{
    for (size_t i = checkpoint->layer_first[layer]; i < checkpoint->layer_first[layer + 1]; i++) {
        free((void *)checkpoint->matrices[i].scales);
        checkpoint->matrices[i].scales = NULL;
    }
}

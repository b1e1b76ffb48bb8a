/* Matrices within tensors that hold several of them: which tensors there are, and where in them a matrix and its scales lie. */
#include <errno.h>
#include <stdio.h>

#include "daemon/model/checkpoint_state.h"
#include "proto/base/size.h"

#define PARTS 3
#define MATRICES 3

static int twice(const struct checkpoint *checkpoint, const char *one, const char *other, struct err *err)
{
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: there are both %s and %s, which hold the same matrix", checkpoint->dir, one, other);
    err_value_str(err, "tensor", one);
    return -EINVAL;
}

/* The one spelling that is there. */
static int look_for(const struct checkpoint *checkpoint, uint32_t layer, enum arch_part part, enum kernels_matrix matrix,
                    const struct arch_fused **ret_fused, struct err *err)
{
    const struct arch_fused *row;
    *ret_fused = NULL;
    for (size_t n = 0; (row = arch_fused_at(checkpoint->arch, part, matrix, n)); n++) {
        char name[ARCH_NAME_MAX], before[ARCH_NAME_MAX];
        uint32_t shard;
        arch_fused_name(checkpoint->arch, layer, row, name);
        if (!checkpoint_tensor(checkpoint, name, &shard))
            continue;
        if (*ret_fused) {
            arch_fused_name(checkpoint->arch, layer, *ret_fused, before);
            return twice(checkpoint, before, name, err);
        }
        *ret_fused = row;
    }
    return 0;
}

int checkpoint_fused_look(const struct checkpoint *checkpoint, uint32_t layer, struct checkpoint_fused *ret_fused, struct err *err)
{
    const struct arch_family *family = checkpoint->arch->family;
    const char *const blocks[PARTS] = {family->dense_block, family->experts_block, family->shared_block};
    *ret_fused = (struct checkpoint_fused){0};
    for (int part = 0; part < PARTS; part++)
        for (int matrix = 0; blocks[part] && matrix < MATRICES; matrix++) {
            int r = look_for(checkpoint, layer, (enum arch_part)part, (enum kernels_matrix)matrix, &ret_fused->at[part][matrix], err);
            if (r < 0)
                return r;
        }
    return 0;
}

static bool has_shape(const struct safetensors_tensor *tensor, uint32_t experts, uint64_t rows, uint64_t columns)
{
    uint32_t stacked = experts > 0;
    return tensor->dims == 2 + stacked && (!stacked || tensor->shape[0] == experts) && tensor->shape[stacked] == rows &&
           tensor->shape[stacked + 1] == columns;
}

/* "[128, 1024, 2048]", or without the experts when there are none of them. */
static const char *shape_text(uint32_t experts, uint64_t rows, uint64_t columns, char text[64])
{
    int n = experts ? snprintf(text, 64, "[%u, ", experts) : snprintf(text, 64, "[");
    snprintf(text + n, 64 - (size_t)n, "%llu, %llu]", (unsigned long long)rows, (unsigned long long)columns);
    return text;
}

static int check_weight(const struct checkpoint *checkpoint, const struct checkpoint_source *source, uint32_t experts, uint64_t rows,
                        uint32_t columns, struct err *err)
{
    const struct safetensors_tensor *weight = source->weight;
    const char *file = checkpoint->shards[source->shard].name;
    char shape[256], expected[64];
    int r = -EINVAL;
    safetensors_shape_format(weight, shape, sizeof shape);
    shape_text(experts, rows, columns, expected);
    if (weight->dtype != SAFETENSORS_F8_E4M3) {
        err_set(err, r, ERR_BAD_CHECKPOINT, "%s: %s is %s, expected F8_E4M3", file, weight->name, weight->dtype_name);
        err_value_str(err, "dtype", weight->dtype_name);
    } else if (has_shape(weight, experts, rows, columns)) {
        return 0;
    } else if (has_shape(weight, experts, columns, rows)) {
        r = err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL,
                    "%s: %s has shape %s: stored [in, out], which is not known of a %s; %s, which is [out, in], is supported", file,
                    weight->name, shape, checkpoint->arch->family->name, expected);
    } else {
        err_set(err, r, ERR_BAD_CHECKPOINT, "%s: %s has shape %s, config.json asks for %s", file, weight->name, shape, expected);
    }
    err_value_str(err, "file", file);
    err_value_str(err, "tensor", weight->name);
    return r;
}

/* Where the scales of matrix number `index` of `count` begin. Blocks of 128 rows run either over all rows of an expert, as those who
 * quantise the fused tensor have them, so that where a matrix is no multiple of 128 the next one begins within a block; or each matrix
 * has blocks of its own, as those who fuse quantised matrices have them. How many there are tells which. */
static int place_scales(const struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, uint32_t experts, uint32_t count,
                        uint32_t index, struct checkpoint_source *source, uint64_t *ret_block_rows, struct err *err)
{
    const struct safetensors_tensor *scale = source->scale;
    const char *file = checkpoint->shards[source->scale_shard].name;
    uint64_t columns = size_ceil_div(matrix->columns, LAYOUT_BLOCK), alone = size_ceil_div(matrix->rows, LAYOUT_BLOCK);
    uint64_t through = size_ceil_div((uint64_t)count * matrix->rows, LAYOUT_BLOCK), apart = count * alone;
    bool aligned = count == 1 || matrix->rows % LAYOUT_BLOCK == 0;
    bool is_through = has_shape(scale, experts, through, columns), is_apart = has_shape(scale, experts, apart, columns);
    char shape[256], of_weight[256], one[64], other[64];
    safetensors_shape_format(scale, shape, sizeof shape);
    int r = -EINVAL;
    if (!is_through && !is_apart) {
        err_set(err, r, ERR_BAD_CHECKPOINT, "%s: %s has shape %s; its weight %s has %s, so %s%s%s blocks of 128x128 are expected", file,
                scale->name, shape, source->weight->name, safetensors_shape_format(source->weight, of_weight, sizeof of_weight),
                shape_text(experts, through, columns, one), through == apart ? "" : " or ",
                through == apart ? "" : shape_text(experts, apart, columns, other));
    } else if (is_through && is_apart && !aligned) {
        r = err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL,
                    "%s: %s has shape %s: with %u rows for gate and for up, which is no multiple of 128, blocks that run on from gate into "
                    "up are as many as blocks of each alone, so it cannot be known which these are",
                    file, scale->name, shape, matrix->rows);
    } else if (is_through && !aligned && index > 0 && matrix->rows % LAYOUT_TILE_ROWS != 0) {
        r = err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL,
                    "%s: %s has shape %s: its blocks run on from gate into up after %u rows, which must be a multiple of %d then", file,
                    scale->name, shape, matrix->rows, LAYOUT_TILE_ROWS);
    } else {
        uint64_t first = (uint64_t)index * matrix->rows;
        source->first_scale_row = is_apart ? index * alone : first / LAYOUT_BLOCK;
        source->row_origin = is_apart ? 0 : (uint32_t)(first % LAYOUT_BLOCK);
        *ret_block_rows = is_apart ? apart : through;
        return 0;
    }
    err_value_str(err, "file", file);
    err_value_str(err, "tensor", scale->name);
    err_value_int(err, "rows", matrix->rows);
    return r;
}

int checkpoint_fused_source(const struct checkpoint *checkpoint, uint32_t layer, int expert, enum kernels_matrix which,
                            const struct arch_fused *fused, const struct checkpoint_matrix *matrix, struct checkpoint_source *ret_source,
                            struct err *err)
{
    const struct arch *arch = checkpoint->arch;
    char name[CHECKPOINT_TENSOR_NAME_MAX], scale_name[CHECKPOINT_TENSOR_NAME_MAX];
    uint32_t shard, index = 0, experts = arch_fused_experts(arch, fused);
    uint64_t block_rows = 0, rows = (uint64_t)fused->count * matrix->rows;
    while (fused->matrices[index] != which)
        index++;
    checkpoint_single_name(arch, layer, expert, which, name);
    const struct safetensors_tensor *single = checkpoint_tensor(checkpoint, name, &shard);
    arch_fused_name(arch, layer, fused, name);
    if (single)
        return twice(checkpoint, name, single->name, err);
    struct checkpoint_source source = {0};
    source.weight = checkpoint_tensor(checkpoint, name, &source.shard);
    int r = check_weight(checkpoint, &source, experts, rows, matrix->columns, err);
    if (r < 0)
        return r;
    arch_fused_scale_name(arch, layer, fused, scale_name);
    source.scale = checkpoint_tensor(checkpoint, scale_name, &source.scale_shard);
    if (!source.scale)
        return checkpoint_missing_scale(checkpoint, scale_name, checkpoint->shards[source.shard].name, err);
    r = place_scales(checkpoint, matrix, experts, fused->count, index, &source, &block_rows, err);
    if (r < 0)
        return r;
    source.first_row = (uint64_t)index * matrix->rows;
    if (experts) {
        source.first_row += (uint64_t)expert * rows;
        source.first_scale_row += (uint64_t)expert * block_rows;
    }
    *ret_source = source;
    return 0;
}

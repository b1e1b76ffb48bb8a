#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/arch_family.h"
#include "daemon/model/checkpoint_state.h"
#include "proto/base/size.h"

static int check_weight(const struct safetensors_tensor *weight, const char *file, uint32_t rows, uint32_t columns, struct err *err)
{
    char shape[256];
    if (weight->dtype != SAFETENSORS_F8_E4M3) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s is %s, expected F8_E4M3", file, weight->name, weight->dtype_name);
        err_value_str(err, "dtype", weight->dtype_name);
    } else if (weight->dims != 2 || weight->shape[0] != rows || weight->shape[1] != columns) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s has shape %s, config.json asks for [%u, %u]", file, weight->name,
                safetensors_shape_format(weight, shape, sizeof shape), rows, columns);
    } else {
        return 0;
    }
    err_value_str(err, "file", file);
    err_value_str(err, "tensor", weight->name);
    return -EINVAL;
}

static int check_scale(const struct safetensors_tensor *weight, const struct safetensors_tensor *scale, const char *file, uint32_t rows,
                       uint32_t columns, struct err *err)
{
    if (scale->dims == 2 && scale->shape[0] == rows && scale->shape[1] == columns)
        return 0;
    char of_weight[256], of_scale[256];
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s has shape %s; its weight %s has %s, so [%u, %u] blocks of 128x128 are expected", file,
            scale->name, safetensors_shape_format(scale, of_scale, sizeof of_scale), weight->name,
            safetensors_shape_format(weight, of_weight, sizeof of_weight), rows, columns);
    err_value_str(err, "file", file);
    err_value_str(err, "tensor", scale->name);
    err_value_int(err, "expected_rows", rows);
    err_value_int(err, "expected_columns", columns);
    return -EINVAL;
}

/* Room for one matrix more. Grows with what was found in the files, never with what the config claims. */
static int grow(struct checkpoint *checkpoint, struct err *err)
{
    if (checkpoint->matrix_count < checkpoint->matrix_capacity)
        return 0;
    size_t capacity = checkpoint->matrix_capacity ? 2 * checkpoint->matrix_capacity : 256;
    struct checkpoint_matrix *matrices = reallocarray(checkpoint->matrices, capacity, sizeof *matrices);
    if (matrices)
        checkpoint->matrices = matrices;
    const struct safetensors_tensor **tensors = reallocarray(checkpoint->tensors, capacity, sizeof *tensors);
    if (tensors)
        checkpoint->tensors = tensors;
    struct checkpoint_scales_at *scales_at = reallocarray(checkpoint->scales_at, capacity, sizeof *scales_at);
    if (scales_at)
        checkpoint->scales_at = scales_at;
    struct checkpoint_digest *digests = reallocarray(checkpoint->digests, capacity, sizeof *digests);
    if (digests)
        checkpoint->digests = digests;
    if (!matrices || !tensors || !scales_at || !digests)
        return err_no_memory(err, checkpoint->dir, capacity * sizeof *matrices);
    checkpoint->matrix_capacity = capacity;
    return 0;
}

void checkpoint_single_name(const struct arch *arch, uint32_t layer, int expert, enum kernels_matrix matrix, char *ret_name)
{
    arch_matrix_name(arch, layer, expert, matrix, ret_name);
    memcpy(ret_name + strlen(ret_name), ".weight", sizeof ".weight");
}

/* A tensor for this matrix alone. `fused` are others of its kind. */
static int single_source(const struct checkpoint *checkpoint, uint32_t layer, int expert, enum kernels_matrix which,
                         const struct checkpoint_fused *fused, const struct checkpoint_matrix *matrix, struct checkpoint_source *ret_source,
                         struct err *err)
{
    const struct arch *arch = checkpoint->arch;
    char name[CHECKPOINT_TENSOR_NAME_MAX], scale_name[CHECKPOINT_TENSOR_NAME_MAX + sizeof "_scale_inv"];
    enum arch_part part = arch_part_of(arch, expert);
    struct checkpoint_source source = {0};
    checkpoint_single_name(arch, layer, expert, which, name);
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    source.weight = checkpoint_tensor(checkpoint, name, &source.shard);
    if (!source.weight) {
        const struct arch_fused *row = arch_fused_at(arch, part, which, 0);
        bool others = row && (fused->at[part][KERNELS_GATE] || fused->at[part][KERNELS_DOWN]);
        if (others)
            arch_fused_name(arch, layer, row, scale_name);
        return checkpoint_missing_weight(checkpoint, layer, expert, name, others ? scale_name : NULL, err);
    }
    const char *file = checkpoint->shards[source.shard].name;
    int r = check_weight(source.weight, file, matrix->rows, matrix->columns, err);
    if (r < 0)
        return r;
    source.scale = checkpoint_tensor(checkpoint, scale_name, &source.scale_shard);
    if (!source.scale)
        return checkpoint_missing_scale(checkpoint, scale_name, file, err);
    r = check_scale(source.weight, source.scale, checkpoint->shards[source.scale_shard].name, matrix->scale_rows, matrix->scale_columns,
                    err);
    if (r < 0)
        return r;
    *ret_source = source;
    return 0;
}

static int add_matrix(struct checkpoint *checkpoint, uint32_t layer, int expert, enum kernels_matrix which,
                      const struct checkpoint_fused *fused, struct err *err)
{
    const struct arch *arch = checkpoint->arch;
    uint32_t wide = arch_intermediate(arch, expert);
    struct checkpoint_matrix at = {
        .rows = which == KERNELS_DOWN ? arch->hidden : wide,
        .columns = which == KERNELS_DOWN ? wide : arch->hidden,
    };
    at.scale_rows = (uint32_t)size_ceil_div(at.rows, LAYOUT_BLOCK);
    at.scale_columns = (uint32_t)size_ceil_div(at.columns, LAYOUT_BLOCK);

    const struct arch_fused *in = fused->at[arch_part_of(arch, expert)][which];
    struct checkpoint_source source;
    int r = in ? checkpoint_fused_source(checkpoint, layer, expert, which, in, &at, &source, err)
               : single_source(checkpoint, layer, expert, which, fused, &at, &source, err);
    if (r == 0)
        r = grow(checkpoint, err);
    if (r < 0)
        return r;
    char name[ARCH_NAME_MAX];
    arch_matrix_name(arch, layer, expert, which, name);
    at.shard = source.shard;
    at.scale_shard = source.scale_shard;
    at.row_origin = source.row_origin;
    at.scale_rows = (uint32_t)size_ceil_div((uint64_t)at.row_origin + at.rows, LAYOUT_BLOCK);
    at.name = strdup(name);
    if (!at.name)
        return err_no_memory(err, name, strlen(name));
    at.offset = safetensors_data_offset(checkpoint->shards[at.shard].file) + source.weight->begin + source.first_row * at.columns;
    checkpoint->weight_bytes += (uint64_t)at.rows * at.columns;
    checkpoint->tensors[checkpoint->matrix_count] = source.weight;
    checkpoint->scales_at[checkpoint->matrix_count] =
        (struct checkpoint_scales_at){.tensor = source.scale, .first_row = source.first_scale_row};
    checkpoint->digests[checkpoint->matrix_count] = (struct checkpoint_digest){0};
    checkpoint->matrices[checkpoint->matrix_count] = at;
    return checkpoint_scales_hold_one(checkpoint, checkpoint->matrix_count++, err);
}

static int add_expert(struct checkpoint *checkpoint, uint32_t layer, int expert, const struct checkpoint_fused *fused, struct err *err)
{
    int r = 0;
    for (int matrix = KERNELS_GATE; matrix <= KERNELS_DOWN && r == 0; matrix++)
        r = add_matrix(checkpoint, layer, expert, (enum kernels_matrix)matrix, fused, err);
    return r;
}

/* A layer of which memory holds nothing is not there; one of which it holds something must be whole. */
static bool is_absent(const struct checkpoint *checkpoint, uint32_t layer)
{
    const struct arch *arch = checkpoint->arch;
    char prefix[ARCH_NAME_MAX];
    if (!checkpoint->memory_model)
        return false;
    if (checkpoint->memory_layer != CHECKPOINT_LAYERS_ALL && checkpoint->memory_layer != layer)
        return true;
    arch_matrix_name(arch, layer, arch->layer_is_moe[layer] ? 0 : ARCH_EXPERT_DENSE, KERNELS_GATE, prefix);
    char *at = strstr(prefix, ".layers.");
    for (int dots = 0; at && dots < 3; dots++) /* "model.layers.1.mlp." */
        at = strchr(at + 1, '.');
    if (at)
        at[1] = '\0';
    return !checkpoint_index_prefix(checkpoint->index, prefix);
}

static int add_layer(struct checkpoint *checkpoint, uint32_t layer, struct err *err)
{
    const struct arch *arch = checkpoint->arch;
    struct checkpoint_fused fused;
    int r = checkpoint_fused_look(checkpoint, layer, &fused, err);
    if (r == 0 && !arch->layer_is_moe[layer])
        r = add_expert(checkpoint, layer, ARCH_EXPERT_DENSE, &fused, err);
    for (uint32_t expert = 0; arch->layer_is_moe[layer] && expert < arch->experts && r == 0; expert++)
        r = add_expert(checkpoint, layer, (int)expert, &fused, err);
    if (arch->layer_is_moe[layer] && arch->shared_intermediate && r == 0)
        r = add_expert(checkpoint, layer, ARCH_EXPERT_SHARED, &fused, err);
    return r;
}

int checkpoint_resolve(struct checkpoint *checkpoint, struct err *err)
{
    uint32_t layers = checkpoint->layers;
    checkpoint->layer_first = calloc((size_t)layers + 1, sizeof *checkpoint->layer_first);
    checkpoint->layer_scales = calloc(layers, sizeof *checkpoint->layer_scales);
    if (!checkpoint->layer_first || !checkpoint->layer_scales)
        return err_no_memory(err, checkpoint->dir, layers * sizeof *checkpoint->layer_scales);
    for (uint32_t layer = 0; layer < layers; layer++) {
        int r = is_absent(checkpoint, layer) ? 0 : add_layer(checkpoint, layer, err);
        checkpoint->layer_first[layer + 1] = checkpoint->matrix_count;
        if (r == 0)
            r = checkpoint_digests_begin(checkpoint, layer, err);
        if (r < 0)
            return r;
        checkpoint_scales_drop(checkpoint, layer);
    }
    return 0;
}

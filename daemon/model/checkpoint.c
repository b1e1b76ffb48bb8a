#include "daemon/model/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/checkpoint_state.h"

/* From the headers on. */
static int open_rest(struct checkpoint *checkpoint, struct err *err)
{
    int r = checkpoint_resolve(checkpoint, err);
    if (r == 0)
        r = checkpoint_identify(checkpoint, err);
    checkpoint->arch = NULL;
    return r;
}

static struct checkpoint *new_for(const char *dir, const struct arch *arch)
{
    _cleanup_(checkpoint_freep) struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint)
        checkpoint->dir = strdup(dir);
    if (!checkpoint || !checkpoint->dir)
        return NULL;
    checkpoint->arch = arch;
    checkpoint->layers = arch->layers;
    checkpoint->experts = arch->experts;
    return STEAL(checkpoint);
}

int checkpoint_open(const char *dir, const struct arch *arch, struct checkpoint **ret_checkpoint, struct err *err)
{
    _cleanup_(checkpoint_freep) struct checkpoint *checkpoint = new_for(dir, arch);
    if (!checkpoint)
        return err_no_memory(err, dir, sizeof *checkpoint);
    int r = checkpoint_shards_open(checkpoint, err);
    if (r == 0)
        r = open_rest(checkpoint, err);
    if (r < 0)
        return r;
    *ret_checkpoint = STEAL(checkpoint);
    return 0;
}

int checkpoint_open_memory(const char *dir, const struct arch *arch, const struct checkpoint_memory *memory,
                           struct checkpoint **ret_checkpoint, struct err *err)
{
    _cleanup_(checkpoint_freep) struct checkpoint *checkpoint = new_for(dir, arch);
    if (!checkpoint)
        return err_no_memory(err, dir, sizeof *checkpoint);
    checkpoint->memory_model = strdup(memory->model);
    checkpoint->memory_sources = calloc(arch->layers, sizeof *checkpoint->memory_sources);
    checkpoint->memory_known = calloc(arch->layers, sizeof *checkpoint->memory_known);
    if (!checkpoint->memory_model || !checkpoint->memory_sources || !checkpoint->memory_known)
        return err_no_memory(err, dir, arch->layers * sizeof *checkpoint->memory_sources);
    memcpy(checkpoint->memory_sources, memory->sources, arch->layers * sizeof *checkpoint->memory_sources);
    memcpy(checkpoint->memory_known, memory->known, arch->layers * sizeof *checkpoint->memory_known);
    checkpoint->memory_layer = memory->layer;
    checkpoint->memory_binding = memory->binding;
    checkpoint->glance = memory->glance;
    int r = checkpoint_shards_open_memory(checkpoint, memory->fd, err);
    if (r == 0)
        r = open_rest(checkpoint, err);
    if (r < 0)
        return r;
    *ret_checkpoint = STEAL(checkpoint);
    return 0;
}

bool checkpoint_is_glance(const struct checkpoint *checkpoint)
{
    return checkpoint->glance;
}

bool checkpoint_layer_there(const struct checkpoint *checkpoint, uint32_t layer)
{
    return checkpoint->layer_first[layer + 1] > checkpoint->layer_first[layer];
}

void checkpoint_free(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->matrix_count; i++) {
        free((void *)checkpoint->matrices[i].scales);
        free((void *)checkpoint->matrices[i].name);
    }
    for (size_t i = 0; checkpoint->shards && i < checkpoint->index->file_count; i++)
        safetensors_free(checkpoint->shards[i].file);
    free(checkpoint->matrices);
    free(checkpoint->tensors);
    free(checkpoint->scales_at);
    free(checkpoint->digests);
    free(checkpoint->layer_scales);
    free(checkpoint->layer_first);
    free(checkpoint->shards);
    checkpoint_index_free(checkpoint->index);
    free(checkpoint->memory_model);
    free(checkpoint->memory_sources);
    free(checkpoint->memory_known);
    free(checkpoint->dir);
    free(checkpoint);
}

const char *checkpoint_dir(const struct checkpoint *checkpoint)
{
    return checkpoint->dir;
}

const char *checkpoint_shard_name(const struct checkpoint *checkpoint, uint32_t shard)
{
    return checkpoint->shards[shard].name;
}

uint64_t checkpoint_weight_bytes(const struct checkpoint *checkpoint)
{
    return checkpoint->weight_bytes;
}

const char *checkpoint_ignored(const struct checkpoint *checkpoint)
{
    return checkpoint->ignored;
}

const struct checkpoint_matrix *checkpoint_find(const struct checkpoint *checkpoint, uint32_t layer, int expert, enum kernels_matrix matrix)
{
    if (layer >= checkpoint->layers)
        return NULL;
    size_t place = 0;
    if (expert == ARCH_EXPERT_SHARED)
        place = checkpoint->experts;
    else if (expert != ARCH_EXPERT_DENSE)
        place = (size_t)expert;
    size_t i = checkpoint->layer_first[layer] + 3 * place + (size_t)matrix;
    return i < checkpoint->layer_first[layer + 1] ? &checkpoint->matrices[i] : NULL;
}

/* Where a matrix begins in its tensor. */
static uint64_t within(const struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix)
{
    const struct safetensors_tensor *weight = checkpoint->tensors[matrix - checkpoint->matrices];
    return matrix->offset - weight->begin - safetensors_data_offset(checkpoint->shards[matrix->shard].file);
}

int checkpoint_read(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, uint32_t first_row, uint32_t rows, uint8_t *to,
                    struct err *err)
{
    if (first_row > matrix->rows || rows > matrix->rows - first_row)
        return err_set(err, -EINVAL, ERR_INTERNAL, "%s has %u rows, asked for %u at %u", matrix->name, matrix->rows, rows, first_row);
    const struct safetensors_tensor *weight = checkpoint->tensors[matrix - checkpoint->matrices];
    struct safetensors *file = checkpoint_shard_use(checkpoint, matrix->shard);
    return safetensors_read(file, weight, within(checkpoint, matrix) + (uint64_t)first_row * matrix->columns,
                            (uint64_t)rows * matrix->columns, to, err);
}

const char *checkpoint_row_text(const struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, uint32_t row, char *text,
                                size_t size)
{
    const struct safetensors_tensor *weight = checkpoint->tensors[matrix - checkpoint->matrices];
    uint64_t in_all = within(checkpoint, matrix) / matrix->columns + row;
    if (weight->dims > 2)
        snprintf(text, size, "tensor %s: expert %llu, row %llu", weight->name, (unsigned long long)(in_all / weight->shape[1]),
                 (unsigned long long)(in_all % weight->shape[1]));
    else
        snprintf(text, size, "tensor %s: row %llu", weight->name, (unsigned long long)in_all);
    return text;
}

bool checkpoint_find_nan(const uint8_t *codes, uint32_t rows, uint32_t columns, uint32_t *ret_row, uint32_t *ret_column)
{
    size_t count = (size_t)rows * columns, i = kernels_find_nan(codes, count);
    if (i == count)
        return false;
    *ret_row = (uint32_t)(i / columns);
    *ret_column = (uint32_t)(i % columns);
    return true;
}

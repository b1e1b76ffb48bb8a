/* Which tensors a checkpoint has. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/arch_family.h"
#include "daemon/model/arch_fused.h"
#include "proto/base/size.h"
#include "tests/tools/mkckpt.h"

void mkckpt_list_release(struct mkckpt_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        for (size_t part = 0; part < list->tensors[i].part_count; part++)
            free(list->tensors[i].parts[part]);
        free(list->tensors[i].parts);
        free(list->tensors[i].name);
    }
    free(list->tensors);
    *list = (struct mkckpt_list){0};
}

/* experts 0: no such dimension. */
static int add(struct mkckpt_list *list, const char *name, enum mkckpt_kind kind, enum safetensors_dtype dtype, uint32_t experts,
               uint64_t rows, uint64_t columns, struct mkckpt_tensor **ret_tensor, struct err *err)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 256;
        struct mkckpt_tensor *grown = reallocarray(list->tensors, capacity, sizeof *grown);
        if (!grown)
            return err_no_memory(err, "tensor list", capacity * sizeof *grown);
        list->tensors = grown;
        list->capacity = capacity;
    }
    struct mkckpt_tensor tensor = {.kind = kind, .dtype = dtype, .dims = 2, .shape = {rows, columns}, .name = strdup(name)};
    if (!tensor.name)
        return err_no_memory(err, name, strlen(name));
    tensor.bytes = rows * columns * (safetensors_dtype_bits(dtype) / 8); /* at most 2 * 2^16 * 2^18 */
    if (experts) {
        tensor.dims = 3;
        memcpy(tensor.shape, (uint64_t[]){experts, rows, columns}, sizeof tensor.shape);
        tensor.bytes *= experts;
    }
    list->bytes += tensor.bytes;
    list->tensors[list->count] = tensor;
    *ret_tensor = &list->tensors[list->count++];
    return 0;
}

static int add_part(struct mkckpt_tensor *tensor, const char *name, struct err *err)
{
    if (!(tensor->parts[tensor->part_count] = strdup(name)))
        return err_no_memory(err, name, strlen(name));
    tensor->part_count++;
    return 0;
}

/* A weight with room for the names of `parts`. */
static int add_weight(struct mkckpt_list *list, const char *name, uint32_t experts, uint64_t rows, uint64_t columns, size_t parts,
                      struct mkckpt_tensor **ret_tensor, struct err *err)
{
    int r = add(list, name, MKCKPT_WEIGHT, SAFETENSORS_F8_E4M3, experts, rows, columns, ret_tensor, err);
    if (r < 0)
        return r;
    (*ret_tensor)->parts = calloc(parts, sizeof *(*ret_tensor)->parts);
    (*ret_tensor)->part_rows = rows * (experts ? experts : 1) / parts;
    return (*ret_tensor)->parts ? 0 : err_no_memory(err, name, parts * sizeof *(*ret_tensor)->parts);
}

static int add_matrix(struct mkckpt_list *list, const struct arch *arch, uint32_t layer, int expert, enum kernels_matrix matrix,
                      enum safetensors_dtype scale_dtype, struct err *err)
{
    uint32_t wide = arch_intermediate(arch, expert);
    uint64_t rows = matrix == KERNELS_DOWN ? arch->hidden : wide, columns = matrix == KERNELS_DOWN ? wide : arch->hidden;
    char base[ARCH_NAME_MAX], name[ARCH_NAME_MAX + 24];
    struct mkckpt_tensor *tensor;
    arch_matrix_name(arch, layer, expert, matrix, base);
    snprintf(name, sizeof name, "%s.weight", base);
    int r = add_weight(list, name, 0, rows, columns, 1, &tensor, err);
    if (r == 0)
        r = add_part(tensor, name, err);
    snprintf(name, sizeof name, "%s.weight_scale_inv", base);
    return r < 0 ? r
                 : add(list, name, MKCKPT_SCALE, scale_dtype, 0, size_ceil_div(rows, LAYOUT_BLOCK), size_ceil_div(columns, LAYOUT_BLOCK),
                       &tensor, err);
}

/* All matrices of a row of the family's table; `first` is the first expert, or the only MLP, in it. */
static int add_fused(struct mkckpt_list *list, const struct arch *arch, uint32_t layer, int first, const struct arch_fused *fused,
                     enum safetensors_dtype scale_dtype, struct err *err)
{
    uint32_t experts = arch_fused_experts(arch, fused), wide = arch_intermediate(arch, first);
    bool down = fused->matrices[0] == KERNELS_DOWN;
    uint64_t each = down ? arch->hidden : wide, rows = fused->count * each, columns = down ? wide : arch->hidden;
    bool apart = fused->count == 1 || each % LAYOUT_BLOCK == 0;
    uint32_t stack = experts ? experts : 1, parts = apart ? fused->count : 1;
    char name[ARCH_NAME_MAX], part[ARCH_NAME_MAX + 24];
    struct mkckpt_tensor *tensor;
    arch_fused_name(arch, layer, fused, name);
    int r = add_weight(list, name, experts, rows, columns, (size_t)stack * parts, &tensor, err);
    for (uint32_t i = 0; r == 0 && i < stack * parts; i++) {
        if (apart) {
            arch_matrix_name(arch, layer, experts ? (int)(i / parts) : first, fused->matrices[i % parts], part);
            memcpy(part + strlen(part), ".weight", sizeof ".weight");
        } else {
            snprintf(part, sizeof part, "%s.%u", name, i);
        }
        r = add_part(tensor, part, err);
    }
    arch_fused_scale_name(arch, layer, fused, name);
    return r < 0 ? r
                 : add(list, name, MKCKPT_SCALE, scale_dtype, experts, size_ceil_div(rows, LAYOUT_BLOCK),
                       size_ceil_div(columns, LAYOUT_BLOCK), &tensor, err);
}

static int add_expert(struct mkckpt_list *list, const struct arch *arch, uint32_t layer, int expert, const struct mkckpt_options *options,
                      struct err *err)
{
    enum arch_part part = arch_part_of(arch, expert);
    int r = 0;
    for (int matrix = KERNELS_GATE; matrix <= KERNELS_DOWN && r == 0; matrix++) {
        const struct arch_fused *fused = options->fused ? arch_fused_at(arch, part, (enum kernels_matrix)matrix, 0) : NULL;
        if (!fused)
            r = add_matrix(list, arch, layer, expert, (enum kernels_matrix)matrix, options->scale_dtype, err);
        else if ((enum kernels_matrix)matrix == fused->matrices[0] && (part != ARCH_PART_EXPERTS || expert == 0))
            r = add_fused(list, arch, layer, expert, fused, options->scale_dtype, err);
    }
    return r;
}

static int add_router(struct mkckpt_list *list, const struct arch *arch, uint32_t layer, const char *what, uint64_t rows, struct err *err)
{
    char prefix[ARCH_NAME_MAX], name[ARCH_NAME_MAX + 64];
    struct mkckpt_tensor *tensor;
    arch_layer_prefix(arch, layer, prefix);
    snprintf(name, sizeof name, "%s%s.weight", prefix, what);
    return add(list, name, MKCKPT_ROUTER, SAFETENSORS_BF16, 0, rows, arch->hidden, &tensor, err);
}

int mkckpt_list_make(const struct arch *arch, const struct mkckpt_options *options, struct mkckpt_list *list, struct err *err)
{
    int r = 0;
    for (uint32_t layer = 0; layer < arch->layers && r == 0; layer++) {
        if (!arch->layer_is_moe[layer]) {
            r = add_expert(list, arch, layer, ARCH_EXPERT_DENSE, options, err);
            continue;
        }
        r = add_router(list, arch, layer, arch->family->router, arch->experts - arch->gated_shared, err);
        if (r == 0 && arch->gated_shared)
            r = add_router(list, arch, layer, arch->family->shared_gate, 1, err);
        for (uint32_t expert = 0; expert < arch->experts && r == 0; expert++)
            r = add_expert(list, arch, layer, (int)expert, options, err);
        if (arch->shared_intermediate && r == 0)
            r = add_expert(list, arch, layer, ARCH_EXPERT_SHARED, options, err);
    }
    return r;
}

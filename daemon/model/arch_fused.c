#include "daemon/model/arch_fused.h"

#include <stdio.h>
#include <string.h>

enum arch_part arch_part_of(const struct arch *arch, int expert)
{
    if (expert == ARCH_EXPERT_DENSE)
        return ARCH_PART_DENSE;
    if (expert == ARCH_EXPERT_SHARED || (arch->gated_shared && expert == (int)arch->experts - 1))
        return ARCH_PART_SHARED;
    return ARCH_PART_EXPERTS;
}

uint32_t arch_fused_experts(const struct arch *arch, const struct arch_fused *fused)
{
    return fused->part == ARCH_PART_EXPERTS ? arch->experts - arch->gated_shared : 0;
}

static bool holds(const struct arch_fused *fused, enum kernels_matrix matrix)
{
    for (uint32_t i = 0; i < fused->count; i++)
        if (fused->matrices[i] == matrix)
            return true;
    return false;
}

const struct arch_fused *arch_fused_at(const struct arch *arch, enum arch_part part, enum kernels_matrix matrix, size_t n)
{
    const struct arch_fused *row = arch->family->fused;
    for (; row && row->weight; row++)
        if (row->part == part && holds(row, matrix) && n-- == 0)
            return row;
    return NULL;
}

static void name_of(const struct arch *arch, uint32_t layer, enum arch_part part, const char *what, char ret_name[ARCH_NAME_MAX])
{
    const struct arch_family *family = arch->family;
    const char *const blocks[] = {family->dense_block, family->experts_block, family->shared_block};
    arch_layer_prefix(arch, layer, ret_name);
    size_t at = strlen(ret_name);
    snprintf(ret_name + at, ARCH_NAME_MAX - at, "%s.%s", blocks[part], what);
}

void arch_fused_name(const struct arch *arch, uint32_t layer, const struct arch_fused *fused, char ret_name[ARCH_NAME_MAX])
{
    name_of(arch, layer, fused->part, fused->weight, ret_name);
}

void arch_fused_scale_name(const struct arch *arch, uint32_t layer, const struct arch_fused *fused, char ret_name[ARCH_NAME_MAX])
{
    name_of(arch, layer, fused->part, fused->scale, ret_name);
}

#include "daemon/model/arch_family.h"

#include <stdio.h>
#include <string.h>

#include "proto/base/cleanup.h"

#define EXPERTS_KEYS                                                                                                                       \
    {                                                                                                                                      \
        "num_experts", "n_routed_experts", "num_local_experts"                                                                             \
    }

static const struct arch_family families[] = {
    {
        .name = "qwen3",
        .pattern = ARCH_PATTERN_DENSE,
        .dense_intermediate_keys = {"intermediate_size"},
        .dense_block = "mlp",
        .matrices = {"gate_proj", "up_proj", "down_proj"},
    },
    {
        .name = "qwen3_moe",
        .pattern = ARCH_PATTERN_SPARSE_STEP,
        .dense_intermediate_keys = {"intermediate_size"},
        .moe_intermediate_keys = {"moe_intermediate_size"},
        .experts_keys = EXPERTS_KEYS,
        .top_k_keys = {"num_experts_per_tok"},
        .shared_keys = {"shared_expert_intermediate_size"},
        .dense_block = "mlp",
        .experts_block = "mlp.experts",
        .router = "mlp.gate",
        .matrices = {"gate_proj", "up_proj", "down_proj"},
    },
};

const struct arch_family *arch_family_find(const char *model_type)
{
    for (size_t i = 0; i < ARRAY_LENGTH(families); i++)
        if (strcmp(model_type, families[i].name) == 0)
            return &families[i];
    return NULL;
}

void arch_families_list(char *to, size_t size)
{
    size_t at = 0;
    to[0] = '\0';
    for (size_t i = 0; i < ARRAY_LENGTH(families) && at < size; i++)
        at += (size_t)snprintf(to + at, size - at, "%s%s", i ? ", " : "", families[i].name);
}

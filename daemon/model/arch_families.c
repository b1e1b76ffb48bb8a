#include "daemon/model/arch_family.h"

#include <stdio.h>
#include <string.h>

#include "proto/base/cleanup.h"

#define EXPERTS_KEYS                                                                                                                       \
    {                                                                                                                                      \
        "num_experts", "n_routed_experts", "num_local_experts"                                                                             \
    }
#define GATE_UP_DOWN                                                                                                                       \
    {                                                                                                                                      \
        "gate_proj", "up_proj", "down_proj"                                                                                                \
    }

/* All experts in one tensor, gate above up. The first spelling is that of a parameter without a module of its own, as Hugging Face's
 * transformers keeps quantised experts in memory and Qwen3.5 is published in BF16, the second that of a module. Of a single MLP gate and
 * up are fused as in GLM-4 and Phi-3; down has nothing to be fused with. */
static const struct arch_fused gate_up_fused[] = {
    {ARCH_PART_EXPERTS, "gate_up_proj", "gate_up_proj_scale_inv", 2, {KERNELS_GATE, KERNELS_UP}},
    {ARCH_PART_EXPERTS, "down_proj", "down_proj_scale_inv", 1, {KERNELS_DOWN}},
    {ARCH_PART_EXPERTS, "gate_up_proj.weight", "gate_up_proj.weight_scale_inv", 2, {KERNELS_GATE, KERNELS_UP}},
    {ARCH_PART_EXPERTS, "down_proj.weight", "down_proj.weight_scale_inv", 1, {KERNELS_DOWN}},
    {ARCH_PART_DENSE, "gate_up_proj.weight", "gate_up_proj.weight_scale_inv", 2, {KERNELS_GATE, KERNELS_UP}},
    {ARCH_PART_SHARED, "gate_up_proj.weight", "gate_up_proj.weight_scale_inv", 2, {KERNELS_GATE, KERNELS_UP}},
    {0},
};

/* DeepSeek's keys and names, which others took over. */
#define LIKE_DEEPSEEK_V3                                                                                                                   \
    .pattern = ARCH_PATTERN_FIRST_DENSE, .shared = ARCH_SHARED_PLAIN, .dense_intermediate_keys = {"intermediate_size"},                    \
    .moe_intermediate_keys = {"moe_intermediate_size"}, .experts_keys = EXPERTS_KEYS, .top_k_keys = {"num_experts_per_tok"},               \
    .shared_count_keys = {"n_shared_experts"}, .mtp_keys = {"num_nextn_predict_layers"}, .dense_block = "mlp",                             \
    .experts_block = "mlp.experts", .shared_block = "mlp.shared_experts", .router = "mlp.gate", .matrices = GATE_UP_DOWN,                  \
    .fused = gate_up_fused

static const struct arch_family families[] = {
    {
        .name = "qwen3",
        .pattern = ARCH_PATTERN_DENSE,
        .dense_intermediate_keys = {"intermediate_size"},
        .prefix = "model.layers",
        .dense_block = "mlp",
        .matrices = GATE_UP_DOWN,
        .fused = gate_up_fused,
    },
    {
        .name = "qwen3_moe",
        .pattern = ARCH_PATTERN_SPARSE_STEP,
        .dense_intermediate_keys = {"intermediate_size"},
        .moe_intermediate_keys = {"moe_intermediate_size"},
        .experts_keys = EXPERTS_KEYS,
        .top_k_keys = {"num_experts_per_tok"},
        .shared_keys = {"shared_expert_intermediate_size"},
        .prefix = "model.layers",
        .dense_block = "mlp",
        .experts_block = "mlp.experts",
        .router = "mlp.gate",
        .matrices = GATE_UP_DOWN,
        .fused = gate_up_fused,
    },
    {
        .name = "qwen3_5",
        .text_name = "qwen3_5_text",
        .pattern = ARCH_PATTERN_DENSE,
        .dense_intermediate_keys = {"intermediate_size"},
        .mtp_keys = {"mtp_num_hidden_layers"},
        .prefix = "model.language_model.layers",
        .mtp_prefix = "mtp.layers",
        .dense_block = "mlp",
        .matrices = GATE_UP_DOWN,
        .fused = gate_up_fused,
    },
    {
        .name = "qwen3_5_moe",
        .text_name = "qwen3_5_moe_text",
        .pattern = ARCH_PATTERN_SPARSE_STEP,
        .shared = ARCH_SHARED_GATED,
        .dense_intermediate_keys = {"intermediate_size"},
        .moe_intermediate_keys = {"moe_intermediate_size"},
        .experts_keys = EXPERTS_KEYS,
        .top_k_keys = {"num_experts_per_tok"},
        .shared_keys = {"shared_expert_intermediate_size"},
        .mtp_keys = {"mtp_num_hidden_layers"},
        .prefix = "model.language_model.layers",
        .mtp_prefix = "mtp.layers",
        .dense_block = "mlp",
        .experts_block = "mlp.experts",
        .shared_block = "mlp.shared_expert",
        .router = "mlp.gate",
        .shared_gate = "mlp.shared_expert_gate",
        .matrices = GATE_UP_DOWN,
        .fused = gate_up_fused,
    },
    {.name = "deepseek_v3", LIKE_DEEPSEEK_V3, .prefix = "model.layers"},
    {.name = "deepseek_v32", LIKE_DEEPSEEK_V3, .prefix = "model.layers"},
    {.name = "kimi_k2", LIKE_DEEPSEEK_V3, .prefix = "model.layers"},
    {.name = "kimi_k25", .text_name = "kimi_k2", LIKE_DEEPSEEK_V3, .prefix = "language_model.model.layers"},
    {.name = "glm_moe_dsa", LIKE_DEEPSEEK_V3, .prefix = "model.layers"},
    {.name = "mimo_v2_flash", LIKE_DEEPSEEK_V3, .prefix = "model.layers"},
    {
        .name = "minimax_m2",
        .pattern = ARCH_PATTERN_MOE,
        .moe_intermediate_keys = {"moe_intermediate_size", "intermediate_size"},
        .experts_keys = EXPERTS_KEYS,
        .top_k_keys = {"num_experts_per_tok"},
        .shared_keys = {"shared_intermediate_size"},
        .prefix = "model.layers",
        .experts_block = "block_sparse_moe.experts",
        .router = "block_sparse_moe.gate",
        .matrices = {"w1", "w3", "w2"},
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

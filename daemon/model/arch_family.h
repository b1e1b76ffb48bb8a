/* The table of model families: everything that differs between them as data. Private to the model layer and to those who write
 * checkpoints. */
#ifndef FP9_MODEL_ARCH_FAMILY_H
#define FP9_MODEL_ARCH_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define ARCH_KEYS_MAX 4

/* Which layers are MoE (arch_layers.c). */
enum arch_pattern {
    ARCH_PATTERN_DENSE,       /* none */
    ARCH_PATTERN_SPARSE_STEP, /* layer i, unless i is in mlp_only_layers: (i + 1) % decoder_sparse_step == 0 */
    ARCH_PATTERN_FIRST_DENSE, /* layer i: i >= first_k_dense_replace and i % moe_layer_freq == 0; or a list by layer says so */
    ARCH_PATTERN_MOE,         /* all */
};

/* What a shared expert's output is multiplied by. */
enum arch_shared {
    ARCH_SHARED_NONE,  /* the family has none */
    ARCH_SHARED_PLAIN, /* 1: ducks add it by themselves */
    ARCH_SHARED_GATED, /* a gate of its own for each token, which the client computes: it is one more routed expert, the last one */
};

enum arch_part {
    ARCH_PART_DENSE,
    ARCH_PART_EXPERTS,
    ARCH_PART_SHARED,
};

/* A tensor that holds several matrices, each [out, in], the next one's rows below the last row of the one before:
 * [count * out, in], and of ARCH_PART_EXPERTS [experts, count * out, in]. Its scales are nested alike: [.., block rows, block columns].
 * Nothing else is known by this table: neither matrices stored [in, out] nor rows of gate and up by turns. */
struct arch_fused {
    enum arch_part part;
    const char *weight, *scale; /* names behind the part's block: "gate_up_proj", "gate_up_proj_scale_inv" */
    uint32_t count;
    enum kernels_matrix matrices[2]; /* [count], by ascending rows */
};

struct arch_family {
    const char *name; /* config.json's model_type */
    /* model_type of the text_config in which the numbers are; NULL: they are in config.json itself. */
    const char *text_name;
    enum arch_pattern pattern;
    enum arch_shared shared;
    /* Spellings of a config key, first one first; NULL-terminated. */
    const char *dense_intermediate_keys[ARCH_KEYS_MAX];
    const char *moe_intermediate_keys[ARCH_KEYS_MAX];
    const char *experts_keys[ARCH_KEYS_MAX];
    const char *top_k_keys[ARCH_KEYS_MAX];
    const char *shared_keys[ARCH_KEYS_MAX];       /* intermediate width of a shared expert */
    const char *shared_count_keys[ARCH_KEYS_MAX]; /* or how many there are, in one matrix, each as wide as a routed one */
    const char *mtp_keys[ARCH_KEYS_MAX];          /* layers for multi-token prediction, behind the others */
    /* Tensor names: a prefix, the layer's number, and then these components. */
    const char *prefix;        /* "model.layers" */
    const char *mtp_prefix;    /* the MTP layers are counted from 0 behind it; NULL: counted on behind `prefix` */
    const char *dense_block;   /* "mlp" */
    const char *experts_block; /* "mlp.experts": followed by the expert's index */
    const char *shared_block;  /* "mlp.shared_experts" */
    const char *router;        /* "mlp.gate": [experts, hidden], never an expert's matrix */
    const char *shared_gate;   /* "mlp.shared_expert_gate": [1, hidden], of a gated shared expert */
    const char *matrices[3];   /* by enum kernels_matrix: gate, up, down */
    /* What may stand in a checkpoint in place of a tensor for each matrix, first spelling first; ended by a row without names. NULL:
     * nothing. */
    const struct arch_fused *fused;
};

/* NULL when unknown. */
const struct arch_family *arch_family_find(const char *model_type);
/* "qwen3, qwen3_moe" */
void arch_families_list(char *to, size_t size);

#endif

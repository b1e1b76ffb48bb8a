/* The table of model families: everything that differs between them as data. Private to the model layer. */
#ifndef FP9_MODEL_ARCH_FAMILY_H
#define FP9_MODEL_ARCH_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#define ARCH_KEYS_MAX 4

/* Which layers are MoE. */
enum arch_pattern {
    ARCH_PATTERN_DENSE,       /* none */
    ARCH_PATTERN_SPARSE_STEP, /* layer i, unless i is in mlp_only_layers: (i + 1) % decoder_sparse_step == 0 */
};

struct arch_family {
    const char *name; /* config.json's model_type */
    enum arch_pattern pattern;
    /* Spellings of a config key, first one first; NULL-terminated. */
    const char *dense_intermediate_keys[ARCH_KEYS_MAX];
    const char *moe_intermediate_keys[ARCH_KEYS_MAX];
    const char *experts_keys[ARCH_KEYS_MAX];
    const char *top_k_keys[ARCH_KEYS_MAX];
    const char *shared_keys[ARCH_KEYS_MAX]; /* intermediate width of a shared expert */
    /* Path components after "model.layers.N.". */
    const char *dense_block;   /* "mlp" */
    const char *experts_block; /* "mlp.experts": followed by the expert's index */
    const char *shared_block;  /* NULL: the family has no shared expert */
    const char *router;        /* "mlp.gate": [experts, hidden], never an expert's matrix */
    const char *matrices[3];   /* by enum kernels_matrix: gate, up, down */
};

/* NULL when unknown. */
const struct arch_family *arch_family_find(const char *model_type);
/* "qwen3, qwen3_moe" */
void arch_families_list(char *to, size_t size);

#endif

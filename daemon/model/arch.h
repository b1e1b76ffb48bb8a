/* What a model's config.json says about its MLP and MoE layers. One table per family (arch_families.c), so that the next family is
 * a table and not code. */
#ifndef FP9_MODEL_ARCH_H
#define FP9_MODEL_ARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "proto/base/cleanup.h"
#include "proto/base/err.h"

#define ARCH_LAYERS_MAX 1024
#define ARCH_EXPERTS_MAX 4096
#define ARCH_CONFIG_BYTES_MAX (8u * 1024 * 1024)
#define ARCH_NAME_MAX 256

struct arch_family; /* a row of the table */

struct arch {
    const struct arch_family *family;
    uint32_t hidden;
    uint32_t layers;     /* those of multi-token prediction too, once they were asked for */
    uint32_t mtp_layers; /* that the config announces, 0 when none; the last ones of layers when mtp */
    bool mtp;
    uint32_t dense_intermediate;  /* 0 when no layer is dense */
    uint32_t moe_intermediate;    /* 0 when no layer is MoE */
    uint32_t experts;             /* routed, per MoE layer; a gated shared one is the last of them */
    const char *experts_key;      /* of config.json, which gave experts_said; NULL: the family has none */
    uint32_t experts_said;        /* as it stands there, also when no layer is MoE */
    uint32_t top_k;               /* experts per token, a gated shared one counted in */
    uint32_t shared_intermediate; /* 0: no shared expert, or a gated one */
    /* of config.json, which gave those widths; NULL where the width is 0 */
    const char *dense_key, *moe_key, *shared_key; /* shared_key: NULL also where the width is that of several experts together */
    bool gated_shared;            /* expert `experts - 1` is the shared one, its weight comes from the client like the others' */
    bool quantized;               /* config.json has a quantization_config (checked, unless arch_parse_shape read it) */
    bool layer_is_moe[ARCH_LAYERS_MAX];
};

#define ARCH_EXPERT_DENSE (-1)
#define ARCH_EXPERT_SHARED (-2)

/* Reads DIR/config.json. UNSUPPORTED_MODEL (naming model_type, quant_method, ... and what is supported) for what is not a known family
 * in 128x128-block FP8; BAD_CHECKPOINT for a config that lacks a key (lists the keys looked for) or has a wrong type or range. */
int arch_read(const char *dir, struct arch **ret_arch, struct err *err);
/* As arch_read, but a config without any quantization_config is taken too (arch->quantized tells): a plan can be made for the FP8
 * conversion of a BF16 model; loading it is refused all the same. And `dir` may be such a config.json itself. */
int arch_read_for_plan(const char *dir, struct arch **ret_arch, struct err *err);
/* The same from text; `where` names it in messages. */
int arch_parse(const char *text, size_t length, const char *where, struct arch **ret_arch, struct err *err);
/* As arch_parse without looking at quantization_config: for fp9-mkckpt, which makes FP8 checkpoints of any config. */
int arch_parse_shape(const char *text, size_t length, const char *where, struct arch **ret_arch, struct err *err);
/* Adds the MTP layers to `layers`, all of them MoE where the family has experts. UNSUPPORTED_MODEL when the config has none. */
int arch_add_mtp(struct arch *arch, const char *where, struct err *err);
void arch_free(struct arch *arch);
CLEANUP_DEFINE(struct arch *, arch_free);

const char *arch_family_name(const struct arch *arch); /* "qwen3_moe" */

/* "model.layers.3.", with which the names of all its tensors begin. */
void arch_layer_prefix(const struct arch *arch, uint32_t layer, char ret_prefix[ARCH_NAME_MAX]);
/* "model.layers.3.mlp.experts.5.gate_proj" without ".weight"; expert: index, ARCH_EXPERT_DENSE or ARCH_EXPERT_SHARED. */
void arch_matrix_name(const struct arch *arch, uint32_t layer, int expert, enum kernels_matrix matrix, char ret_name[ARCH_NAME_MAX]);
/* Intermediate width of a layer's dense MLP, routed or shared expert. */
uint32_t arch_intermediate(const struct arch *arch, int expert);
/* No row of any matrix has more columns. */
uint32_t arch_widest(const struct arch *arch);

#endif

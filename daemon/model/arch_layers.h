/* Which layers of a model are MoE, by its family's pattern. Private to the model layer. */
#ifndef FP9_MODEL_ARCH_LAYERS_H
#define FP9_MODEL_ARCH_LAYERS_H

#include <jansson.h>

#include "daemon/model/arch.h"

/* Fills layer_is_moe; family, layers and experts are there. */
int arch_layers_fill(const json_t *config, const char *where, struct arch *arch, struct err *err);
/* What decides it, behind the number of experts, for a message: "decoder_sparse_step and mlp_only_layers". */
const char *arch_layers_keys(const struct arch *arch);

#endif

/* Tensors that hold several matrices: what the family's table says of them (arch_family.h). Private to the model layer and to those
 * who write checkpoints. */
#ifndef FP9_MODEL_ARCH_FUSED_H
#define FP9_MODEL_ARCH_FUSED_H

#include "daemon/model/arch.h"
#include "daemon/model/arch_family.h"

/* expert: index, ARCH_EXPERT_DENSE or ARCH_EXPERT_SHARED; a gated shared expert is of ARCH_PART_SHARED, whatever its index. */
enum arch_part arch_part_of(const struct arch *arch, int expert);
/* How many experts a tensor of that part holds: 0 when it is of one MLP and has no such dimension. */
uint32_t arch_fused_experts(const struct arch *arch, const struct arch_fused *fused);
/* The n-th row of the table for this matrix: the same in another spelling. NULL behind the last. */
const struct arch_fused *arch_fused_at(const struct arch *arch, enum arch_part part, enum kernels_matrix matrix, size_t n);
/* "model.layers.3.mlp.experts.gate_up_proj", and the tensor of its scales. */
void arch_fused_name(const struct arch *arch, uint32_t layer, const struct arch_fused *fused, char ret_name[ARCH_NAME_MAX]);
void arch_fused_scale_name(const struct arch *arch, uint32_t layer, const struct arch_fused *fused, char ret_name[ARCH_NAME_MAX]);

#endif

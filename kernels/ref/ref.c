#include "kernels/ref/ref.h"

const struct tiers_ops ref_ops = {
    .name = "ref",
    .normalise_bf16 = ref_normalise_bf16,
    .normalise_f32 = ref_normalise_f32,
    .gate_up = ref_gate_up,
    .gate_up_tokens = ref_gate_up_tokens,
    .down = ref_down,
    .down_tokens = ref_down_tokens,
    .pack_tile = ref_pack_tile,
    .pack_half_group = ref_pack_half_group,
    .pack_half_panel = ref_pack_half_panel,
    .canonical = ref_canonical,
    .to_bf16 = ref_to_bf16,
    .add_f32 = ref_add_f32,
    .add_bf16 = ref_add_bf16,
};

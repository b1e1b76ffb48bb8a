#include "kernels/x86/avx2.h"

#include "kernels/x86/x86.h"

const struct tiers_ops avx2_rp_ops = {
    .name = "avx2",
    .normalise_bf16 = avx2_normalise_bf16,
    .normalise_f32 = avx2_normalise_f32,
    .gate_up = avx2_rp_gate_up,
    .gate_up_tokens = avx2_rp_gate_up_tokens,
    .down = avx2_rp_down,
    .down_tokens = avx2_rp_down_tokens,
    .gemm = &avx2_gemm,
    .pack_tile = avx2_pack_tile,
    .pack_half_group = avx2_pack_half_group,
    .pack_half_panel = avx2_pack_half_panel,
    .canonical = avx2_canonical,
    .to_bf16 = avx2_to_bf16,
    .add_f32 = avx2_add_f32,
    .add_bf16 = avx2_add_bf16,
};

const struct tiers_ops avx2_rm_ops = {
    .name = "avx2",
    .normalise_bf16 = avx2_normalise_bf16,
    .normalise_f32 = avx2_normalise_f32,
    .gate_up = avx2_rm_gate_up,
    .gate_up_tokens = avx2_rm_gate_up_tokens,
    .down = avx2_rm_down,
    .down_tokens = avx2_rm_down_tokens,
    .gemm = &avx2_gemm,
    .pack_tile = avx2_pack_tile,
    .pack_half_group = avx2_pack_half_group,
    .pack_half_panel = avx2_pack_half_panel,
    .canonical = avx2_canonical,
    .to_bf16 = avx2_to_bf16,
    .add_f32 = avx2_add_f32,
    .add_bf16 = avx2_add_bf16,
};

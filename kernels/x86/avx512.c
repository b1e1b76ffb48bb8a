/* Only the matrices are worth 512 bits; what is elementwise is the AVX2 tier's, which a CPU with AVX-512 has. */
#include "kernels/x86/avx512.h"

#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

const struct tiers_ops avx512_ops = {
    .name = "avx512",
    .normalise_bf16 = avx2_normalise_bf16,
    .normalise_f32 = avx2_normalise_f32,
    .gate_up = avx512_gate_up,
    .gate_up_tokens = avx512_gate_up_tokens,
    .down = avx512_down,
    .down_tokens = avx512_down_tokens,
    .gemm = &avx512_gemm,
    .pack_tile = avx2_pack_tile,
    .pack_half_group = avx2_pack_half_group,
    .pack_half_panel = avx2_pack_half_panel,
    .canonical = avx2_canonical,
    .to_bf16 = avx2_to_bf16,
    .add_f32 = avx2_add_f32,
    .add_bf16 = avx2_add_bf16,
};

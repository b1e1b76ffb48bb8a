/* Functions of the AVX2 tier; contracts in kernels/tiers.h. */
#ifndef FP9_KERNELS_X86_AVX2_H
#define FP9_KERNELS_X86_AVX2_H

#include "kernels/tiers.h"

int avx2_normalise_bf16(float *out, uint32_t floats, const uint16_t *in, uint32_t count);
int avx2_normalise_f32(float *out, uint32_t floats, const float *in, uint32_t count);

/* Two ways of decoding, the same bits. */
void avx2_rp_gate_up(const struct tiers_run *run, const float *v, float undo, float *h);
void avx2_rp_gate_up_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count);
void avx2_rp_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
void avx2_rp_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows);
void avx2_rp_half_panel(const struct tiers_run *run, const struct tiers_token *token, uint32_t count); /* gate and up of one */
void avx2_rm_gate_up(const struct tiers_run *run, const float *v, float undo, float *h);
void avx2_rm_gate_up_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count);
void avx2_rm_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
void avx2_rm_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows);
void avx2_rm_half_panel(const struct tiers_run *run, const struct tiers_token *token, uint32_t count); /* gate and up of one */

extern const struct tiers_gemm avx2_gemm;

void avx2_pack_tile(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
void avx2_pack_half_group(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
void avx2_pack_half_panel(uint8_t *at, uint32_t up, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
void avx2_canonical(float *values, size_t count);
void avx2_to_bf16(uint16_t *bits, const float *values, size_t count);
void avx2_add_f32(float *sum, const float *partial, size_t count);
void avx2_add_bf16(float *sum, const uint16_t *partial, size_t count);

#endif

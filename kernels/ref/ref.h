/* The C reference: the functions that define the bits. */
#ifndef FP9_KERNELS_REF_REF_H
#define FP9_KERNELS_REF_REF_H

#include "kernels/tiers.h"

extern const struct tiers_ops ref_ops;

float ref_silu(float g); /* README section 4 */

int ref_normalise_bf16(float *out, uint32_t floats, const uint16_t *in, uint32_t count);
int ref_normalise_f32(float *out, uint32_t floats, const float *in, uint32_t count);
void ref_gate_up(const struct tiers_run *run, const float *v, float undo, float *h);
void ref_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
void ref_gate_up_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count);
void ref_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows);
void ref_pack_tile(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
void ref_pack_half_group(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
void ref_pack_half_panel(uint8_t *at, uint32_t up, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
void ref_canonical(float *values, size_t count);
void ref_to_bf16(uint16_t *bits, const float *values, size_t count);
void ref_add_f32(float *sum, const float *partial, size_t count);
void ref_add_bf16(float *sum, const uint16_t *partial, size_t count);

#endif

/* Functions of the AVX-512F/BW/VL tier; contracts in kernels/tiers.h. */
#ifndef FP9_KERNELS_X86_AVX512_H
#define FP9_KERNELS_X86_AVX512_H

#include "kernels/tiers.h"

void avx512_gate_up(const struct tiers_run *run, const float *v, float undo, float *h);
void avx512_gate_up_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count);
void avx512_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
void avx512_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows);

extern const struct tiers_gemm avx512_gemm;

#endif

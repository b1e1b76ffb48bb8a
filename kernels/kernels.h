/* The fp9 kernels: what they compute is in kernels/README.md, to the bit.
 *
 * No I/O, no allocation, no threads, no global state but the tier chosen once. Every function may be
 * called from any thread; two calls may share weights and inputs but not outputs or scratch.
 * All functions set MXCSR at entry and restore it at exit.
 */
#ifndef FP9_KERNELS_KERNELS_H
#define FP9_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"
#include "proto/base/err.h"

/* ---- tiers ------------------------------------------------------------------------------------ */

enum kernels_tier {
    KERNELS_REF,
    KERNELS_AVX2,
    KERNELS_AVX512, /* F, BW, VL */
};

/* Chooses for this process what computes: FP9_CPU=ref|avx2|avx2:rp|avx2:rm|avx512. All give the same bits. NULL or "": the fastest that
 * this CPU has; "avx2": the faster of its two variants; which one that is, a timing of less than a millisecond finds out here.
 * -EINVAL BAD_REQUEST for an unknown name, -ENOTSUP when this CPU, its operating system or this build lacks what was named, or when nothing
 * was named and an x86-64 CPU has not even AVX2 and FMA (the reference runs there only when named). Call once, before threads start;
 * without the call the fastest is used, the reference where there is no other. */
int kernels_select(const char *forced, struct err *err);
const char *kernels_tier_name(void);    /* "ref", "avx2", "avx512": what is in use */
const char *kernels_variant_name(void); /* the same with the variant, as FP9_CPU takes it: "avx2:rm" */
bool kernels_tier_available(enum kernels_tier tier);

/* ---- conversions ------------------------------------------------------------------------------ */

/* E4M3FN code -> fp9: bit 8 is the sign, bits 7..0 the magnitude byte. NaN codes (0x7f, 0xff) give KERNELS_FP9_NAN. */
#define KERNELS_FP9_NAN UINT16_C(0xffff)
uint16_t kernels_fp9_of_e4m3(uint8_t code);
/* The first code that is NaN; `count` when there is none. */
size_t kernels_find_nan(const uint8_t *codes, size_t count);
float kernels_fp9_to_f32(uint16_t fp9); /* the weight itself, exact */

float kernels_bf16_to_f32(uint16_t bits);
uint16_t kernels_bf16_of_f32(float value); /* round to nearest even, canonical NaN */
float kernels_f16_to_f32(uint16_t bits);

/* ---- prepare (modes 2 and 3): checkpoint bytes -> panels -------------------------------------- */

enum kernels_matrix {
    KERNELS_GATE,
    KERNELS_UP,
    KERNELS_DOWN,
};
const char *kernels_matrix_name(enum kernels_matrix matrix); /* "gate_proj" ... */

/* Rows of a matrix of one expert's slice, as E4M3 codes.
 * GATE, UP: a row is one neuron, `hidden` columns. DOWN: a row is one output, the slice's `neurons` columns.
 * Tiles of gate and up are cut at the checkpoint's multiples of 16: a slice that begins at 8 mod 16 has a first tile of 8 rows. */
struct kernels_rows {
    enum kernels_matrix matrix;
    uint32_t first_row;   /* within the slice; a tile's first (layout_tile_begins) */
    uint32_t rows;        /* whole tiles unless these end with the matrix's last row */
    const uint8_t *codes; /* rows * columns bytes, `stride` apart */
    const float *scales;  /* [layout_tiles(first_row, rows)][segments], the tile's scale of each segment */
    size_t stride;        /* bytes from a row's codes to the next row's; 0: `columns` */
};

/* Zeroes an expert's bytes (padding rows and columns must be zero), then any number of kernels_pack in any order. Memory that is known to
 * be zero needs none of it. */
void kernels_pack_begin(const struct layout_mlp *layout, uint8_t *expert);

/* Packs into `expert` (layout->expert_bytes, 64-byte aligned). Checks everything it is given:
 * -EINVAL BAD_SHAPE for rows outside the matrix or not aligned to tiles; -EINVAL BAD_CHECKPOINT naming row and column (slice's own
 * numbering, values "row", "column") for a NaN code, or for a scale that is not finite or beyond 2^80.
 * On error the rows are left unwritten. */
int kernels_pack(const struct layout_mlp *layout, uint8_t *expert, const struct kernels_rows *rows, struct err *err);

/* The reverse, for checks: the fp9 value (as kernels_fp9_of_e4m3 gives) at row, column of a matrix, and the scale that applies. */
uint16_t kernels_unpack(const struct layout_mlp *layout, const uint8_t *expert, enum kernels_matrix matrix, uint32_t row, uint32_t column,
                        float *ret_scale);

bool kernels_scale_ok(float scale); /* finite and |scale| <= 2^80 */

/* ---- forward ---------------------------------------------------------------------------------- */

/* A layer's slot on this rank. */
struct kernels_layer {
    const struct layout_mlp *layout;        /* of its routed experts (or its dense MLP) */
    const uint8_t *experts;                 /* experts * layout->expert_bytes, 64-byte aligned; NULL when there are none */
    uint32_t expert_count;                  /* routed experts; 1 for a dense MLP */
    const struct layout_mlp *shared_layout; /* NULL: no shared expert */
    const uint8_t *shared;                  /* shared_layout->expert_bytes */
};

/* Bytes of scratch (64-byte aligned) that a forward needs, whatever the number of tokens. top_k up to KERNELS_TOP_K_MAX. */
#define KERNELS_TOP_K_MAX 64
size_t kernels_scratch_bytes(const struct kernels_layer *layer);

/* Up to KERNELS_TOKENS_SHARED tokens share a pass over the weights; a token's bits do not depend on its company. */
#define KERNELS_TOKENS_SHARED 4

/* Mode 0: dense forward. x: BF16 [tokens][hidden]; y: binary32 partial [tokens][hidden], NaN not yet canonical. */
void kernels_dense(const struct kernels_layer *layer, const uint16_t *x, uint32_t tokens, float *y, void *scratch);

/* Mode 1: MoE forward on one core. ids: [tokens][top_k], each -1 or below expert_count (the caller has checked);
 * weights: [tokens][top_k]. y as above. */
void kernels_moe(const struct kernels_layer *layer, const uint16_t *x, const int32_t *ids, const float *weights, uint32_t tokens,
                 uint32_t top_k, float *y, void *scratch);

/* ---- partials (README sections 5 and 6) -------------------------------------------------------- */

/* binary32 with NaNs made canonical, in place. */
void kernels_canonical(float *values, size_t count);
/* To BF16, canonical NaN. */
void kernels_to_bf16(uint16_t *ret_bits, const float *values, size_t count);
/* sum[i] += partial[i]. */
void kernels_add_f32(float *sum, const float *partial, size_t count);
void kernels_add_bf16(float *sum, const uint16_t *partial, size_t count);

#endif

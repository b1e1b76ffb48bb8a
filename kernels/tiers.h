/* What an ISA tier provides. The C reference gives every function and defines its bits; a tier above overrides what it does faster.
 *
 * Within the kernels only (and their tests and bench). Callers have put the floating-point environment right (fpenv.h).
 */
#ifndef FP9_KERNELS_TIERS_H
#define FP9_KERNELS_TIERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/layout.h"

/* A run of consecutive panels of one matrix. Half panels occur in gate and up only, half groups in down only; all four flags are false for
 * slices that begin and end at multiples of 16. */
struct tiers_run {
    const uint8_t *panels; /* 64-byte aligned; 32-byte after a half panel or behind panels with a half group */
    const float *scales;   /* [count][segments][2] */
    uint32_t count;        /* panels, half panels included */
    uint32_t segments;
    uint32_t first_groups; /* whole groups of segment 0; later ones have 8, the last what is left: with a half group there, 0 is possible */
    uint32_t groups;       /* whole groups per panel */
    bool first_half;       /* segment 0, which is not the last, ends in a half group */
    bool last_half;        /* the last segment ends in a half group */
    bool head_half;        /* the first panel of the run is a half panel */
    bool tail_half;        /* the last one is; never both of a single panel */
};

/* Tokens that share one pass over the weights. */
#define TIERS_TOKENS_MAX 4
struct tiers_token {
    const float *v; /* normalised, 32-byte aligned */
    float undo;     /* 2^(e - 15) */
    float weight;   /* down only */
    float *out;     /* h (32-byte aligned) or y; two tokens may have the same y: the first is added first */
};

/* The parts of a batch of tokens; batch.c puts them together. A segment's columns are decoded to raw[column][32]: raw values of 32 rows in
 * an order of the tier's own; acc has the same order. raw, acc: 64-byte aligned. */
struct tiers_gemm {
    void (*decode)(float *raw, const uint8_t *at, uint32_t groups); /* whole groups */
    void (*decode_half_group)(float *raw, const uint8_t *at);
    /* 8 rows of gate and 8 of up, where their tiles have rows 0-7; the other 16 are zero. */
    void (*decode_half_panel)(float *raw, const uint8_t *at, uint32_t groups);

    /* A segment of `columns` (a multiple of 8) columns, which begins with v[first]: acc[token][32] = fma(S, scale, acc).
     * Prefetches about as many bytes as the segment has from `next` on. */
    void (*multiply)(const float *raw, uint32_t columns, const float *scale, const struct tiers_token *token, uint32_t count, size_t first,
                     float *acc, const uint8_t *next);

    /* The end of a panel: h into out[neuron ..], of 16 neurons or, of a half panel, 8; `rows` (1 .. 32) rows added to out[row ..], the
     * tokens in their order. */
    void (*gate_up)(const float *acc, const struct tiers_token *token, uint32_t count, size_t neuron, bool half);
    void (*down)(const float *acc, const struct tiers_token *token, uint32_t count, size_t row, uint32_t rows);
};

struct tiers_ops {
    const char *name; /* of the tier */

    /* README section 2: v' into out[floats] (32-byte aligned), zeros from `count` on; floats is a multiple of 16. Returns e.
     * `in` may be `out`. */
    int (*normalise_bf16)(float *out, uint32_t floats, const uint16_t *in, uint32_t count);
    int (*normalise_f32)(float *out, uint32_t floats, const float *in, uint32_t count);

    /* Sections 3 and 4: h of 16 neurons per panel, 8 per half panel, without gaps. v: layout_vector_floats, 32-byte aligned;
     * undo = 2^(e - 15); h: 32-byte aligned. */
    void (*gate_up)(const struct tiers_run *run, const float *v, float undo, float *h);
    void (*gate_up_tokens)(const struct tiers_run *run, const struct tiers_token *token, uint32_t count); /* 1 .. TIERS_TOKENS_MAX */

    /* Sections 3 and 5: y[row] = fma(weight, r_row, y[row]) for `rows` rows, rows <= 32 * count; y is not touched beyond. */
    void (*down)(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
    void (*down_tokens)(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows);

    const struct tiers_gemm *gemm; /* NULL: a batch is a number of passes */

    /* Packs a tile's whole groups (section 7): `rows` (1 .. 16) rows of `columns` codes, `stride` bytes apart, none of them NaN; `at` is
     * the first group's first byte, tile 0 or 1. Unused rows and columns become zero. */
    void (*pack_tile)(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
    /* A tile's part of one half group: 0 .. 8 columns. */
    void (*pack_half_group)(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
    /* The gate (0) or up (1) rows of a half panel, 1 .. 8 of them; the other's bytes are not touched. */
    void (*pack_half_panel)(uint8_t *at, uint32_t up, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);

    void (*canonical)(float *values, size_t count);
    void (*to_bf16)(uint16_t *bits, const float *values, size_t count);
    void (*add_f32)(float *sum, const float *partial, size_t count);
    void (*add_bf16)(float *sum, const uint16_t *partial, size_t count);
};

/* Ways to do the same: they differ in speed only. */
struct tiers_variant {
    enum kernels_tier tier;
    const char *name; /* "ref", "avx2:rp", ...: as FP9_CPU takes it */
    const struct tiers_ops *ops;
};

/* What is in use. */
const struct tiers_ops *tiers_active(void);

/* What kernels_select does, for a CPU with `features` (CPU_AVX2, CPU_AVX512), which must all be there really: the variants that are left
 * may be run and timed. */
int tiers_choose(unsigned features, const char *forced, const struct tiers_variant **ret_variant, struct err *err);

/* All that this build has, the reference first, `*ret_count` of them;
 * whether this CPU can run one: kernels_tier_available(variant->tier). */
const struct tiers_variant *tiers_variants(size_t *ret_count);

/* The run over panels [first, first + count) of a matrix of the expert at `expert`; count > 0. */
static inline struct tiers_run tiers_run_of(const struct layout_matrix *matrix, const uint8_t *expert, uint32_t first, uint32_t count)
{
    return (struct tiers_run){
        .panels = expert + matrix->panels_offset + layout_panel_offset(matrix, first),
        .scales = (const float *)(const void *)(expert + matrix->scales_offset) + (size_t)first * matrix->segments * 2,
        .count = count,
        .segments = matrix->segments,
        .first_groups = layout_segment(matrix, 0).groups,
        .groups = matrix->groups,
        .first_half = matrix->first_half,
        .last_half = matrix->last_half,
        .head_half = matrix->head_half && first == 0,
        .tail_half = matrix->tail_half && first + count == matrix->panels,
    };
}

/* Bytes of a panel of a run that is no half panel; a half panel has half of it. */
static inline size_t tiers_panel_bytes(const struct tiers_run *run)
{
    return (size_t)run->groups * LAYOUT_GROUP_BYTES + (size_t)(run->first_half + run->last_half) * LAYOUT_HALF_BYTES;
}

#endif

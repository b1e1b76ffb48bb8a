/* checkkern: what its checks share. A check says what it compared; the program counts, and ends with 77 when no tier could be compared. */
#ifndef FP9_TESTS_CHECKKERN_CHECK_H
#define FP9_TESTS_CHECKKERN_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/tiers.h"

/* ---- random numbers: splitmix64 --------------------------------------------------------------- */

struct check_random {
    uint64_t state;
};

uint64_t check_u64(struct check_random *random);
uint32_t check_below(struct check_random *random, uint32_t n); /* 0 .. n - 1 */
float check_float(struct check_random *random);               /* about -1 .. 1, never 0 */

/* ---- verdicts --------------------------------------------------------------------------------- */

extern unsigned check_compared; /* comparisons between tiers */
extern unsigned check_failed;

/* Prints the sentence and counts a failure; with check_stop ends the program. */
extern bool check_stop;
void check_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* memcmp; on a difference says where. */
bool check_same(const char *what, const char *tier, const void *have, const void *want, size_t bytes);

/* The tiers above the reference that this CPU has; false when there is no i-th. */
bool check_tier(size_t i, const struct tiers_variant **ret_variant);

/* Memory between guard bytes; the contents begin as poison, `offset` bytes past 64-byte alignment. */
struct check_guarded {
    uint8_t *base, *data;
    size_t bytes, total;
};
struct check_guarded check_guarded_new(size_t bytes, size_t offset);
/* False when a byte outside was written. Frees. */
bool check_guarded_free(struct check_guarded *guarded);

/* ---- a layer with random weights -------------------------------------------------------------- */

struct check_shape {
    uint32_t hidden, begin, neurons, pad_to;
    uint32_t experts;        /* 0: none routed */
    uint32_t shared_neurons; /* 0: no shared expert; its slice begins and is padded like the routed ones */
};

extern const struct check_shape check_shapes[]; /* shapes.c */
extern const size_t check_shapes_count;

/* One expert as a checkpoint has it: [matrix] rows * columns codes; [tile of rows (layout_tile)][segment] scales. */
struct check_expert {
    uint8_t *codes[3];
    float *scales[3];
};

struct check_layer {
    struct layout_mlp layout, shared_layout;
    struct check_expert *experts; /* the shared one last */
    uint32_t count;               /* with the shared one */
    uint8_t *packed, *shared_packed;
    struct kernels_layer layer; /* points into this struct */
};

/* How scales are drawn. */
enum check_scales {
    CHECK_SCALES_USUAL,   /* around 2^-8 */
    CHECK_SCALES_HOSTILE, /* 0, 1e-38, 1e-23, 1e20, 2^80, negative ones */
};

void check_layer_init(struct check_layer *layer, const struct check_shape *shape, enum check_scales scales, struct check_random *random);
void check_layer_release(struct check_layer *layer);
/* Packs with the tier in use; kernels_pack_begin is the caller's. */
void check_pack(const struct layout_mlp *layout, const struct check_expert *expert, uint8_t *to);

/* ---- the checks ------------------------------------------------------------------------------- */

void check_codes(void);                            /* all 256 codes, one-hot */
void check_company(struct check_random *random);   /* 1 to 4 tokens that share a pass, each as alone */
void check_padding(struct check_random *random);   /* its bytes counted, and poisoned */
void check_vectors(struct check_random *random);   /* normalise, silu, partials, pack_tile */
void check_forward(struct check_random *random);   /* modes 0 and 1: shapes, guards, MXCSR */
void check_batch(struct check_random *random);     /* many tokens through one matrix */
void check_phases(struct check_random *random);    /* any number of tokens by any number of members */
void check_special(struct check_random *random);   /* NaN, Inf, subnormals, huge, hostile scales */

#endif

/* The ways of doing a step: fp9's kernels and, beside them, what others do. */
#ifndef FP9_TESTS_BENCH_VARIANT_H
#define FP9_TESTS_BENCH_VARIANT_H

#include <stdbool.h>

#include "kernels/tiers.h"
#include "tests/bench/vectors.h"
#include "tests/bench/weights.h"

struct rival;

struct variant {
    const char *name;
    bool exact;                       /* its result is fp9's to the bit; else near to it */
    const struct tiers_variant *tier; /* of an fp9 variant */
    const struct rival *rival;        /* of any other; NULL = fp9's layout */
};

#define VARIANTS_MAX 16

/* All of them, fp9's first and the reference before all others. Returns how many. */
size_t variants_all(struct variant ret_variants[VARIANTS_MAX]);

/* Once, after kernels_select: remembers the tier in use as the programs' choice. */
void variants_choose(void);

/* Whether a name stands in a list with commas between. */
bool variant_named(const char *list, const char *name);

/* 0, or -ENOTSUP with the reason why it cannot run here. */
int variant_check(const struct variant *variant, struct err *err);
const char *variant_isa(const struct variant *variant);
bool variant_chosen(const struct variant *variant); /* what the programs would use */

/* An item is a step's unit in memory, one matrix or one expert, as the variant keeps it; variants with the same `rival` keep it alike. */
size_t variant_item_bytes(const struct variant *variant, const struct bench_case *what); /* a multiple of 64 */
/* `item` is zero and 64-byte aligned. */
int variant_pack(const struct variant *variant, const struct bench_case *what, const struct weights *weights, uint8_t *item,
                 struct err *err);

/* Before a number of steps, not timed and with no other thread at work: clears y, prepares the vector of a gemv. */
void variant_begin(const struct variant *variant, const struct bench_case *what, struct vectors *vectors);

/* y += the step. `items` holds `count` items, `ids` (ascending) top_k of them. */
void variant_step(const struct variant *variant, const struct bench_case *what, struct vectors *vectors, const uint8_t *items,
                  uint32_t count, const int32_t *ids);

#endif

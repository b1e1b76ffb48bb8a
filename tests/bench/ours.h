/* fp9's own kernels as variants: the only file here that knows them from inside is ours.c. */
#ifndef FP9_TESTS_BENCH_OURS_H
#define FP9_TESTS_BENCH_OURS_H

#include "tests/bench/variant.h"

size_t ours_item_bytes(const struct bench_case *what);
int ours_pack(const struct bench_case *what, const struct weights *weights, uint8_t *item, struct err *err);

const char *ours_isa(const struct tiers_variant *tier);
void ours_begin(const struct tiers_variant *tier, const struct bench_case *what, struct vectors *vectors);
void ours_step(const struct tiers_variant *tier, const struct bench_case *what, struct vectors *vectors, const uint8_t *items,
               uint32_t count, const int32_t *ids);

#endif

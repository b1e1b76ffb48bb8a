/* Seeded inputs and routing for bench: the same seed gives the same steps anywhere. */
#ifndef FP9_CTL_RANDOM_H
#define FP9_CTL_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state;
};

/* [count] BF16 values of roughly normal spread 1. */
void random_input(struct random *random, uint16_t *x, uint64_t count);
/* `top_k` different ids of [0, experts) and weights that add up to 1. `all` has room for `experts` and holds a permutation of the ids. */
void random_routing(struct random *random, uint32_t experts, uint32_t top_k, int32_t *all, int32_t *ids, float *weights);

#endif

/* The other split: each thread whole slots into room of their own, the first thread adds them up. Its phases are 0 and 1. */
#ifndef FP9_TESTS_BENCH_SMP_SLOTS_H
#define FP9_TESTS_BENCH_SMP_SLOTS_H

#include "kernels/kernels.h"

#define SMP_SLOTS_PHASES 2

struct smp_slots {
    const struct layout_mlp *layout;
    float *x; /* x' of the token */
    float x_undo;
    float *h; /* [members] */
    float *r; /* [slots][hidden] */
    size_t x_floats, h_floats;
};

size_t smp_slots_bytes(const struct layout_mlp *layout, uint32_t slots, uint32_t members);
void smp_slots_init(struct smp_slots *slots, const struct layout_mlp *layout, uint32_t members, void *scratch);
/* Before the phases, by member 0. */
void smp_slots_begin(struct smp_slots *slots, const uint16_t *x);
/* ids: ascending, all there. */
void smp_slots_run(const struct smp_slots *slots, const uint8_t *experts, const int32_t *ids, const float *weights, uint32_t count,
                   uint32_t phase, uint32_t member, uint32_t members, float *y);

#endif

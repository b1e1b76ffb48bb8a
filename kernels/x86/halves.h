/* Runs with half panels (gate and up) are cut here, once per call, so that no loop over panels asks what kind one is. */
#ifndef FP9_KERNELS_X86_HALVES_H
#define FP9_KERNELS_X86_HALVES_H

#include <string.h>

#include "kernels/tiers.h"

typedef void halves_gate_up_fn(const struct tiers_run *run, const struct tiers_token *token, uint32_t count);

static inline bool halves_any_panel(const struct tiers_run *run)
{
    return run->head_half | run->tail_half;
}

static inline bool halves_any_group(const struct tiers_run *run)
{
    return run->first_half | run->last_half;
}

/* Whether a segment ends in a half group. */
static inline bool halves_in_segment(const struct tiers_run *run, uint32_t segment)
{
    return segment + 1 == run->segments ? run->last_half : segment == 0 && run->first_half;
}

/* `half`: gate and up of a run that is one half panel; `whole`: of a run without any. */
static inline void halves_gate_up(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, halves_gate_up_fn *half,
                                  halves_gate_up_fn *whole)
{
    uint32_t counts[3] = {run->head_half, run->count - run->head_half - run->tail_half, run->tail_half};
    size_t half_bytes = tiers_panel_bytes(run) / 2;
    struct tiers_token at[TIERS_TOKENS_MAX];
    struct tiers_run part = *run;

    memcpy(at, token, count * sizeof(*at));
    part.head_half = part.tail_half = false;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t halves = counts[i] * (i == 1 ? 2 : 1);

        if (counts[i] == 0)
            continue;
        part.count = counts[i];
        (i == 1 ? whole : half)(&part, at, count);
        part.panels += halves * half_bytes;
        part.scales += 2 * (size_t)counts[i] * run->segments;
        for (uint32_t t = 0; t < count; t++)
            at[t].out += (size_t)halves * LAYOUT_UNIT;
    }
}

#endif

/* PURE. Bytes that a plan costs: in memory, over the links, from disk. Private to the plan. */
#ifndef FP9_MODEL_PLAN_BYTES_H
#define FP9_MODEL_PLAN_BYTES_H

#include "daemon/model/plan.h"

/* One expert's slice. All sums over a model stay below 2^63: H 2^16 * I 2^18 * 3 matrices * 9/8 * 2^12 experts * 2^10 layers is 2^58, and
 * padding to whole units, tiles, groups and panels is at most a factor of 16 for any one rank. */
struct plan_bytes {
    uint64_t laid_out; /* layout.expert_bytes */
    uint64_t real;     /* of those: magnitudes, signs and scales of real weights */
    uint64_t send;     /* codes and tile scales */
    uint64_t read;     /* checkpoint bytes that must be read for it */
    uint64_t params;
};
void plan_bytes_of(const struct layout_mlp *layout, uint32_t intermediate, struct plan_bytes *ret_bytes);

/* Layers of each kind. */
struct plan_layers {
    uint32_t dense, moe;
};
struct plan_layers plan_layers_of(const struct arch *arch);

/* The numbers that make a plan, once they are chosen. */
struct plan_shape {
    uint32_t ranks, groups, width; /* ranks = groups * width */
    uint32_t multiple_of;
};

/* Fills slices, experts and bytes of one rank. */
int plan_rank_fill(const struct arch *arch, const struct plan_shape *shape, uint32_t rank, struct plan_rank *ret_rank, struct err *err);

/* Fills ranks, totals and the prediction of a plan whose shape is legal; plan->ranks must have room for tp. */
int plan_fill(const struct arch *arch, struct plan *plan, struct err *err);

/* plan.h states the formula. Takes the ranks' slices. */
int plan_predict(const struct arch *arch, const struct plan_shape *shape, const struct plan_rank *ranks, const struct plan_rates *asked,
                 struct plan_prediction *ret_prediction, struct err *err);
struct plan_rates plan_rates_or_default(const struct plan_rates *asked);
/* Over one duck's link for a token: x, ids and weights, and a BF16 partial back, in every layer. */
uint64_t plan_link_bytes(const struct arch *arch);
/* Over the head's, in the mean: of all ranks, in MoE layers without a shared expert of `active_groups` groups. */
double plan_head_link_bytes(const struct arch *arch, const struct plan_shape *shape, double active_groups);

#endif

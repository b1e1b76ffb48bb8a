#include <stdio.h>

#include "daemon/model/plan_bytes.h"
#include "daemon/model/plan_experts.h"

#define TOPK_ENTRY_BYTES 8 /* an I32 id and an F32 weight */
#define BF16_BYTES 2

static double larger(double a, double b)
{
    return a > b ? a : b;
}

struct plan_rates plan_rates_or_default(const struct plan_rates *asked)
{
    struct plan_rates rates = *asked;
    if (rates.read_bytes_per_s <= 0)
        rates.read_bytes_per_s = PLAN_DUCK_READ_BYTES_PER_S;
    if (rates.link_bytes_per_s <= 0)
        rates.link_bytes_per_s = PLAN_LINK_BYTES_PER_S;
    if (rates.step_s <= 0)
        rates.step_s = PLAN_STEP_S;
    return rates;
}

/* What a token touches on one rank in one layer of each kind. */
struct touched {
    double dense_bytes, moe_bytes;
    double dense_params, moe_params;
};

/* The most that any rank has of each; of experts as many as are active in the slowest group. */
static int most_touched(const struct arch *arch, const struct plan_shape *shape, const struct plan_rank *ranks, double active,
                        struct touched *ret_most, struct err *err)
{
    struct touched most = {0};
    for (uint32_t i = 0; i < shape->ranks; i++) {
        struct layout_mlp shared = {0};
        if (arch->shared_intermediate) {
            int r = layout_mlp_init(&shared, arch->hidden, ranks[i].shared.begin, ranks[i].shared.neurons, shape->multiple_of, err);
            if (r < 0)
                return r;
        }
        double column = 3.0 * arch->hidden;
        most.dense_bytes = larger(most.dense_bytes, (double)ranks[i].dense_slot_bytes);
        most.dense_params = larger(most.dense_params, column * ranks[i].dense.neurons);
        if (arch->experts) {
            double expert = (double)(ranks[i].moe_slot_bytes - shared.expert_bytes) / ranks[i].expert_count;
            most.moe_bytes = larger(most.moe_bytes, expert * active + (double)shared.expert_bytes);
            most.moe_params =
                larger(most.moe_params, column * ((double)ranks[i].routed.neurons * active + (double)ranks[i].shared.neurons));
        }
    }
    *ret_most = most;
    return 0;
}

uint64_t plan_link_bytes(const struct arch *arch)
{
    struct plan_layers layers = plan_layers_of(arch);
    uint64_t step = UINT64_C(2) * BF16_BYTES * arch->hidden;
    return (layers.dense + layers.moe) * step + (uint64_t)layers.moe * TOPK_ENTRY_BYTES * arch->top_k;
}

double plan_head_link_bytes(const struct arch *arch, const struct plan_shape *shape, double active_groups)
{
    struct plan_layers layers = plan_layers_of(arch);
    double dense = 2.0 * BF16_BYTES * arch->hidden, moe = dense + (double)TOPK_ENTRY_BYTES * arch->top_k;
    bool some = shape->groups > 1 && !arch->shared_intermediate;
    return layers.dense * dense * shape->ranks + layers.moe * moe * (some ? shape->width * active_groups : shape->ranks);
}

static enum plan_term largest_term(const struct plan_prediction *p)
{
    enum plan_term duck = p->compute_s > p->read_s ? PLAN_TERM_COMPUTE : PLAN_TERM_MEMORY, term = duck;
    double most = p->duck_s;
    const struct {
        enum plan_term term;
        double seconds;
    } others[] = {{PLAN_TERM_LINK, p->link_s}, {PLAN_TERM_STEP, p->step_s}, {PLAN_TERM_HOST, p->host_s}};
    for (size_t i = 0; i < ARRAY_LENGTH(others); i++) {
        if (others[i].seconds > most) {
            most = others[i].seconds;
            term = others[i].term;
        }
    }
    return term;
}

const char *plan_term_name(enum plan_term term)
{
    switch (term) {
    case PLAN_TERM_MEMORY: return "duck memory";
    case PLAN_TERM_COMPUTE: return "duck compute";
    case PLAN_TERM_LINK: return "link";
    case PLAN_TERM_STEP: return "step round trips";
    case PLAN_TERM_HOST: return "host";
    }
    return "?";
}

int plan_predict(const struct arch *arch, const struct plan_shape *shape, const struct plan_rank *ranks, const struct plan_rates *asked,
                 struct plan_prediction *ret_prediction, struct err *err)
{
    struct touched most;
    struct plan_layers layers = plan_layers_of(arch);
    struct plan_draw draw = layers.moe ? plan_draw_of(arch, shape->groups) : (struct plan_draw){0};
    int r = most_touched(arch, shape, ranks, draw.slowest, &most, err);
    if (r < 0)
        return r;
    struct plan_rates rates = plan_rates_or_default(asked);
    double dense_read = most.dense_bytes / rates.read_bytes_per_s, moe_read = most.moe_bytes / rates.read_bytes_per_s;
    double slow = rates.params_per_s > 0 ? 1.0 / rates.params_per_s : 0;
    double dense_compute = most.dense_params * slow, moe_compute = most.moe_params * slow;
    struct plan_prediction p = {
        .read_s = layers.dense * dense_read + layers.moe * moe_read,
        .compute_s = layers.dense * dense_compute + layers.moe * moe_compute,
        .duck_s = layers.dense * larger(dense_read, dense_compute) + layers.moe * larger(moe_read, moe_compute),
        .link_s = plan_head_link_bytes(arch, shape, draw.groups) / rates.link_bytes_per_s,
        .step_s = (layers.dense + layers.moe) * rates.step_s,
        .host_s = rates.host_s,
    };
    p.tokens_per_second = 1.0 / (p.duck_s + p.link_s + p.step_s + p.host_s);
    p.bottleneck = largest_term(&p);
    *ret_prediction = p;
    return 0;
}

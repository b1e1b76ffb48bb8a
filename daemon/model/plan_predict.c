#include "daemon/model/plan_bytes.h"

#define TOPK_ENTRY_BYTES 8 /* an I32 id and an F32 weight */
#define BF16_BYTES 2

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The slowest rank's bytes that a token touches in one layer of each kind. */
static int active_bytes(const struct arch *arch, uint32_t tp, uint32_t multiple_of, const struct plan_rank *ranks, double *ret_dense,
                        double *ret_moe, struct err *err)
{
    double most_dense = 0, most_moe = 0;
    for (uint32_t i = 0; i < tp; i++) {
        struct layout_mlp shared = {0};
        if (arch->shared_intermediate) {
            int r = layout_mlp_init(&shared, arch->hidden, ranks[i].shared.begin, ranks[i].shared.neurons, multiple_of, err);
            if (r < 0)
                return r;
        }
        most_dense = larger(most_dense, (double)ranks[i].dense_slot_bytes);
        if (arch->experts) {
            double expert = (double)(ranks[i].moe_slot_bytes - shared.expert_bytes) / arch->experts;
            most_moe = larger(most_moe, expert * arch->top_k + (double)shared.expert_bytes);
        }
    }
    *ret_dense = most_dense;
    *ret_moe = most_moe;
    return 0;
}

int plan_predict(const struct arch *arch, uint32_t tp, uint32_t multiple_of, const struct plan_rank *ranks, double *ret_tokens_per_second,
                 struct err *err)
{
    double dense, moe;
    int r = active_bytes(arch, tp, multiple_of, ranks, &dense, &moe, err);
    if (r < 0)
        return r;
    struct plan_layers layers = plan_layers_of(arch);
    double link = (double)tp * 2 * BF16_BYTES * arch->hidden;
    double link_moe = link + (double)tp * TOPK_ENTRY_BYTES * arch->top_k;
    double seconds = layers.dense * (dense / PLAN_DUCK_READ_BYTES_PER_S + link / PLAN_LINK_BYTES_PER_S + PLAN_STEP_S) +
                     layers.moe * (moe / PLAN_DUCK_READ_BYTES_PER_S + link_moe / PLAN_LINK_BYTES_PER_S + PLAN_STEP_S);
    *ret_tokens_per_second = 1.0 / seconds;
    return 0;
}

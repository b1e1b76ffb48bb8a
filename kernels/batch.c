#include "kernels/batch.h"

size_t batch_scratch_bytes(void)
{
    return TIERS_BATCH_SCRATCH;
}

static uint32_t pass_of(uint32_t left)
{
    return left < TIERS_TOKENS_MAX ? left : TIERS_TOKENS_MAX;
}

void batch_gate_up(const struct tiers_ops *ops, const struct tiers_run *run, const struct tiers_token *tokens, uint32_t count,
                   void *scratch)
{
    (void)scratch;
    for (uint32_t t = 0; t < count; t += TIERS_TOKENS_MAX)
        ops->gate_up_tokens(run, tokens + t, pass_of(count - t));
}

void batch_down(const struct tiers_ops *ops, const struct tiers_run *run, const struct tiers_token *tokens, uint32_t count, uint32_t rows,
                void *scratch)
{
    (void)scratch;
    for (uint32_t t = 0; t < count; t += TIERS_TOKENS_MAX)
        ops->down_tokens(run, tokens + t, pass_of(count - t), rows);
}

/* Any number of tokens through a run of panels: the one place that knows from how many tokens on a pass of its own for batches is faster
 * than passes of TIERS_TOKENS_MAX tokens. The bits are those of each token alone, whatever the company.
 *
 * A token is a pointer to its vector, wherever that is: the tokens of one expert need not lie side by side. Vectors that lie a multiple of
 * 4 KiB apart compete for the same lines of L1; a distance of an odd number of 64-byte lines is best.
 *
 * Within the kernels only (and their tests and bench). Callers have put the floating-point environment right (fpenv.h). A run may be cut
 * into any ranges of panels and the tokens into any ranges of tokens, on any threads, each with scratch of its own. What is added to one y
 * is added in the order of the calls of batch_down, and within a call in the order of `tokens`.
 */
#ifndef FP9_KERNELS_BATCH_H
#define FP9_KERNELS_BATCH_H

#include "kernels/tiers.h"

/* Bytes of scratch (64-byte aligned, need not be cleared) of one call, whatever its size. */
size_t batch_scratch_bytes(void);

/* README sections 3 and 4: h of 16 neurons per panel of the run into each token's `out`, its first at out[0]. count may be 0. */
void batch_gate_up(const struct tiers_ops *ops, const struct tiers_run *run, const struct tiers_token *tokens, uint32_t count,
                   void *scratch);

/* README sections 3 and 5: out[row] = fma(weight, r_row, out[row]) for `rows` rows from the run's first on, rows <= 32 * run->count. */
void batch_down(const struct tiers_ops *ops, const struct tiers_run *run, const struct tiers_token *tokens, uint32_t count, uint32_t rows,
                void *scratch);

#endif

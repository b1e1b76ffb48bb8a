/* The forward of any number of tokens, cut into phases that the members of a team share (modes 0, 4, 5 and 6; one member: 1).
 *
 * No threads here: somebody else runs the members, each on a thread of its own or one after another. All members finish a phase before
 * any begins the next one, and what was written before is seen by all then. The result is that of one core, bit by bit, whatever the
 * number of members, the order they run in, the tokens beside a token, and the pauses.
 *
 * Tokens are taken in chunks, so that scratch is bounded however many there are; a chunk has up to four phases:
 *   sort        the (token, expert) pairs by ascending expert id, equal ids by token and slot (member 0); x normalised, split by tokens
 *   gate and up the experts that somebody wants, split by cost (split.h); an expert nobody wants is not touched
 *   h           normalised, split by pairs
 *   down        split by output rows: each member sums all experts for its rows, in the order of README section 5, and turns them into
 *               the partial's dtype
 * Whoever is through with its part of gate and up or of down takes from the others' rest. The first chunk's sort is done by phases_begin;
 * with few tokens x is, too, and there is no first phase.
 *
 * Rows of output, and not each member whole experts into room of its own, which one member then adds up: that has, with two cores, 768x2048
 * experts, cold, and 1, 2, 3, 5 or 8 of them 0.53, 0.88, 0.67, 0.76, 0.95 of this one's rate (hot 0.45, 0.93, 0.78, 0.88, 0.98), because
 * experts are too large a unit. Slowest member over mean here: 1.001 .. 1.006; without taking from others 1.02 .. 1.10.
 */
#ifndef FP9_KERNELS_PHASES_H
#define FP9_KERNELS_PHASES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/split.h"

#define PHASES_MEMBERS_MAX 64
/* A chunk has so many tokens at most, */
#define PHASES_CHUNK 512
/* and fewer when its vectors (x', h of every slot, y) would need more than this; but never fewer than KERNELS_TOKENS_SHARED. */
#define PHASES_CHUNK_BYTES (UINT64_C(64) << 20)

struct phases_job {
    const struct kernels_layer *layer;
    bool dense;           /* all tokens through expert 0 with weight 1; ids, weights and top_k are not looked at */
    uint32_t tokens;      /* 0: no phases */
    uint32_t top_k;       /* 0 .. KERNELS_TOP_K_MAX */
    const uint16_t *x;    /* BF16 [tokens][hidden] */
    const int32_t *ids;   /* [tokens][top_k], each -1 or below the layer's expert_count: the caller has checked */
    const float *weights; /* [tokens][top_k] */
    bool bf16;            /* the partial's dtype: BF16, else binary32; NaN canonical in both */
    void *partial;        /* [tokens][hidden]; must not overlap the inputs */
};

/* What was done, for statistics. */
struct phases_cost {
    uint64_t params;       /* weights applied, padding not counted: real weights of an expert times its tokens. FLOPs: twice as many */
    uint64_t weight_bytes; /* of the slot's bytes, streamed: an expert's bytes for each of its tiles */
    uint64_t tiles;        /* passes of one expert's weights with a tile of tokens */
    uint64_t tile_tokens;  /* tokens in all tiles: tile_tokens / tiles is the average batch */
};

/* Contents are phases.c's. May be moved and copied while no member runs. */
struct phases {
    struct phases_job job;
    uint32_t members, chunk, chunks;
    bool skip_first; /* the first chunk's sort phase is through already */
    struct phases_cost cost;
    struct phases_room {
        struct phases_member *member;       /* [members] */
        uint8_t *batch;                     /* [members], of batch.h's calls */
        struct phases_expert *experts;      /* of the chunk: those somebody wants, ascending */
        struct split_work *work;            /* the same, for the split */
        struct phases_runs *gate_up, *down; /* [members]: whose work is whose */
        uint32_t *begins;                   /* [members + 1], of the split */
        struct phases_pair *pairs;          /* sorted */
        uint32_t *counts;                   /* [expert_count], of the counting sort */
        float *x, *x_undo;                  /* x' [chunk][x_stride], 2^(e - 15) */
        float *h;                           /* pair by pair, routed ones first */
        float *y;                           /* [chunk][y_stride] for BF16; binary32 partials are summed in place */
    } room;
    uint32_t expert_count, pair_count, tile, rows_least; /* of the chunk */
    uint64_t budget;
};

/* Bytes of scratch (64-byte aligned) for up to `tokens` tokens with up to `top_k` slots:
 * with n = min(tokens, chunk), about n * (4 * (2 * hidden + top_k * neurons + shared neurons) + 12 * (top_k + 1)), which is under
 * PHASES_CHUNK_BYTES unless n is KERNELS_TOKENS_SHARED, and up to 60 bytes an expert and 330 KB a member. It does not grow with tokens
 * beyond the chunk, and what is enough for some numbers is enough for all that are smaller. */
size_t phases_scratch_bytes(const struct kernels_layer *layer, uint32_t tokens, uint32_t top_k, uint32_t members);

/* Member 0 alone, before any phase. 1 .. PHASES_MEMBERS_MAX members. *job's contents are copied; what it points to must stay.
 * scratch: phases_scratch_bytes of at least the job's numbers, in any state. */
void phases_begin(struct phases *ret_phases, const struct phases_job *job, uint32_t members, void *scratch);

uint32_t phases_count(const struct phases *phases);

/* A member's share of a phase; any thread, each member once. False: *pause was seen set (NULL: never looked at); call again with the same
 * phase and member to go on. Looked at after pieces that take less than a decode of one token does, so that some progress is made by
 * every call. *progress (NULL: none) counts pieces. */
bool phases_run(struct phases *phases, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress);

/* Whole when the last phase is through. */
static inline struct phases_cost phases_cost(const struct phases *phases)
{
    return phases->cost;
}

/* The modes of a forward, as the design numbers them. */
enum phases_mode {
    PHASES_DENSE = 0,
    PHASES_MOE = 1,
    PHASES_MOE_SMP = 4,
    PHASES_DENSE_PREFILL = 5,
    PHASES_MOE_PREFILL = 6,
};

/* Up to KERNELS_TOKENS_SHARED tokens are a decode. */
enum phases_mode phases_mode(bool dense, uint32_t tokens, uint32_t members);

#endif

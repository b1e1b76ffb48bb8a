/* PURE. How the work of one forward is cut: into tiles of tokens, and between the members of a team.
 *
 * The work is a list of experts by ascending id, each with its tokens; an expert's tokens are cut into tiles, and a tile is one pass over
 * the panels of a matrix. Cutting changes nothing but the time: every row of every token has its own chain of sums.
 */
#ifndef FP9_KERNELS_SPLIT_H
#define FP9_KERNELS_SPLIT_H

#include <stdint.h>

/* Tokens of a tile at most: their vectors (hidden 2048: 1 MiB) stay in L2 while panel after panel passes. */
#define SPLIT_TILE_MAX 128
/* No tile is made smaller than this for the sake of a short wait: a panel is decoded once per tile, which at 32 tokens is a tenth of the
 * work. Only where members would stand idle is a tile cut further, down to SPLIT_TILE_IDLE. */
#define SPLIT_TILE_LEAST 32
#define SPLIT_TILE_IDLE 8

/* One expert that somebody wants. */
struct split_work {
    uint32_t tokens; /* 1 .. */
    uint32_t panels; /* of its gate and up */
};

/* The work in units: panel by panel, tile by tile, expert by expert. Where a unit is; the end is {count, 0, 0}. */
struct split_place {
    uint32_t work, tile, panel;
};

/* What a tile of so many tokens costs per panel, in tenths of a pass with one token. */
uint32_t split_cost(uint32_t tokens);

/* Tiles of an expert. */
static inline uint32_t split_tiles(uint32_t tokens, uint32_t tile)
{
    return tokens / tile + (tokens % tile != 0);
}

/* How many tokens a tile has. `budget`: weights times tokens that a piece may have (see split_budget); panel_weights: of a gate and up
 * panel. */
uint32_t split_tile(const struct split_work *work, uint32_t count, uint32_t members, uint64_t budget, uint64_t panel_weights);

/* Weights times tokens that may lie between two looks at whether somebody waits: what a member needs no longer for than for its share of
 * a decode of `decode_weights`. A batch applies a weight to a token in less than half the time that a decode takes to read it. */
static inline uint64_t split_budget(uint64_t decode_weights, uint32_t members)
{
    return 2 * decode_weights / members;
}

/* Panels of a piece: at least 1. */
uint32_t split_piece(uint64_t budget, uint64_t panel_weights, uint32_t tokens);

/* Member m's run is from unit ret_begins[m] to ret_begins[m + 1]: runs of about equal cost. With many experts that is a run of experts,
 * with one they share its rows, and a hot one is cut by itself. Members beyond the number of units get nothing. ret_begins[members + 1]. */
void split_runs(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t members, uint32_t *ret_begins);

struct split_place split_place_of(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t unit);

/* How much of what is left of a run is taken at once: half, so that whoever is through first can help with the rest, but `least` (more
 * than 0) or what there is. An even number, for kernels that take two panels side by side. */
static inline uint32_t split_claim(uint32_t left, uint32_t least)
{
    uint32_t half = left / 4 * 2;

    half = half > least ? half : least;
    return half < left ? half : left;
}

/* Member m's part of `count` equal things: from split_even(count, members, m) to split_even(count, members, m + 1). */
static inline uint32_t split_even(uint32_t count, uint32_t members, uint32_t member)
{
    return (uint32_t)((uint64_t)count * member / members);
}

#endif

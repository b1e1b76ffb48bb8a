#include "kernels/split.h"

/* Units of work (tile times panel) per member below which tiles are cut further: with fewer, one more or less is felt. */
#define UNITS_WANTED 4

#define TILE_STEP 16 /* tiles are multiples of it unless they are smaller: whole blocks for any micro-kernel */

uint32_t split_cost(uint32_t tokens)
{
    return 7 + 3 * tokens;
}

static uint64_t units(const struct split_work *work, uint32_t count, uint32_t tile)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += (uint64_t)split_tiles(work[i].tokens, tile) * work[i].panels;
    return sum;
}

uint32_t split_tile(const struct split_work *work, uint32_t count, uint32_t members, uint64_t budget, uint64_t panel_weights)
{
    uint64_t fit = budget / panel_weights / TILE_STEP * TILE_STEP;
    uint32_t tile = fit < SPLIT_TILE_LEAST ? SPLIT_TILE_LEAST : fit > SPLIT_TILE_MAX ? SPLIT_TILE_MAX : (uint32_t)fit;

    while (members > 1 && tile > SPLIT_TILE_IDLE && units(work, count, tile) < (uint64_t)UNITS_WANTED * members)
        tile = tile / 2 < SPLIT_TILE_IDLE ? SPLIT_TILE_IDLE : tile / 2;
    return tile;
}

uint32_t split_piece(uint64_t budget, uint64_t panel_weights, uint32_t tokens)
{
    uint64_t panels = budget / (panel_weights * tokens);

    return panels == 0 ? 1 : panels > UINT32_MAX ? UINT32_MAX : (uint32_t)panels;
}

/* What all tiles of an expert cost. */
static uint64_t cost_of(const struct split_work *work, uint32_t tile)
{
    uint32_t full = work->tokens / tile, rest = work->tokens % tile;

    return ((uint64_t)full * split_cost(tile) + (rest ? split_cost(rest) : 0)) * work->panels;
}

/* Units of this expert before the place nearest to where `cost` of it is spent; cost is at most the expert's. */
static uint32_t units_in(const struct split_work *work, uint32_t tile, uint64_t cost)
{
    uint64_t of_tile = (uint64_t)split_cost(tile) * work->panels;
    uint32_t full = work->tokens / tile, rest = work->tokens % tile;
    uint32_t t = cost / of_tile < full ? (uint32_t)(cost / of_tile) : full;
    uint64_t of_panel = split_cost(t < full ? tile : rest ? rest : tile);
    uint64_t panel = (cost - t * of_tile + of_panel / 2) / of_panel;

    return t * work->panels + (uint32_t)panel;
}

void split_runs(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t members, uint32_t *ret_begins)
{
    uint64_t total = 0, before = 0;
    uint32_t at = 0, units_before = 0;

    for (uint32_t i = 0; i < count; i++)
        total += cost_of(&work[i], tile);
    for (uint32_t m = 0; m < members; m++) {
        uint64_t target = total / members * m + total % members * m / members;

        for (; at < count && before + cost_of(&work[at], tile) <= target; at++) {
            before += cost_of(&work[at], tile);
            units_before += split_tiles(work[at].tokens, tile) * work[at].panels;
        }
        ret_begins[m] = units_before + (at < count ? units_in(&work[at], tile, target - before) : 0);
    }
    ret_begins[members] = (uint32_t)units(work, count, tile);
}

struct split_place split_place_of(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t unit)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t mine = split_tiles(work[i].tokens, tile) * work[i].panels;

        if (unit < mine)
            return (struct split_place){i, unit / work[i].panels, unit % work[i].panels};
        unit -= mine;
    }
    return (struct split_place){count, 0, 0};
}

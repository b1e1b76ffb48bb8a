/* README section 3, from the panels of section 7, one row after another. */
#include <math.h>

#include "kernels/bits.h"
#include "kernels/ref/ref.h"

/* Where a row's bytes are in the panel: its signs of a group, the two magnitudes of its first columns, and how far it is to those of the
 * next two columns and to the next group. */
struct row_at {
    const uint8_t *signs, *magnitudes;
    size_t pair, group;
};

static float raw(uint32_t sign, uint32_t magnitude)
{
    return bits_to_f32(sign << 31 | magnitude << 20);
}

static uint32_t magnitude_at(const struct row_at *at, uint32_t column)
{
    return at->magnitudes[at->pair * (column / 2) + column % 2];
}

/* Sixteen columns; `*at` moves to the group after them. */
static float group_dot(struct row_at *at, const float *v, float sum)
{
    uint32_t word = at->signs[0] | (uint32_t)at->signs[1] << 8;

    for (uint32_t k = 0; k < LAYOUT_GROUP_COLUMNS; k++)
        sum = fmaf(raw((word >> (15 - k)) & 1, magnitude_at(at, k)), v[k], sum);
    at->signs += at->group;
    at->magnitudes += at->group;
    return sum;
}

/* Eight columns: of the half group that begins at `group`. */
static float half_group_dot(const uint8_t *group, uint32_t tile, uint32_t lane, const float *v, float sum)
{
    struct row_at at = {.magnitudes = group + 32 + 32 * tile + 2 * lane, .pair = 64};
    uint32_t signs = group[16 * tile + lane];

    for (uint32_t k = 0; k < LAYOUT_UNIT; k++)
        sum = fmaf(raw((signs >> (7 - k)) & 1, magnitude_at(&at, k)), v[k], sum);
    return sum;
}

/* A row of a whole panel; `panel` is its first byte, `scale` that of its tile and the first segment. */
static float row_dot(const struct tiers_run *run, const uint8_t *panel, const float *scale, uint32_t tile, uint32_t row, const float *v,
                     float undo)
{
    uint32_t lane = row < 8 ? 2 * row : 2 * (row - 8) + 1;
    uint32_t groups = run->first_groups, left = run->groups, ahead = 32 * tile + 2 * lane;
    struct row_at at = {.signs = panel + ahead, .magnitudes = panel + 64 + ahead, .pair = 64, .group = LAYOUT_GROUP_BYTES};
    float acc = 0.0f;

    for (uint32_t segment = 0; segment < run->segments; segment++, scale += 2) {
        bool last = segment + 1 == run->segments;
        float sum = 0.0f;

        for (uint32_t g = 0; g < groups; g++, v += LAYOUT_GROUP_COLUMNS)
            sum = group_dot(&at, v, sum);
        if (last ? run->last_half : segment == 0 && run->first_half) {
            sum = half_group_dot(at.signs - ahead, tile, lane, v, sum);
            at.signs += LAYOUT_HALF_BYTES;
            at.magnitudes += LAYOUT_HALF_BYTES;
            v += LAYOUT_UNIT;
        }
        acc = fmaf(sum, *scale, acc);
        left -= groups;
        groups = left < LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS ? left : LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS;
    }
    return fmaf(acc, undo, 0.0f);
}

/* Gate (0) or up (1) of neuron `row` (0 .. 7) of the half panel at `panel`. */
static float half_panel_dot(const struct tiers_run *run, const uint8_t *panel, const float *scale, uint32_t up, uint32_t row,
                            const float *v, float undo)
{
    uint32_t groups = run->first_groups, left = run->groups, ahead = 4 * row + 2 * up;
    struct row_at at = {.signs = panel + ahead, .magnitudes = panel + 32 + ahead, .pair = 32, .group = LAYOUT_HALF_BYTES};
    float acc = 0.0f;

    for (uint32_t segment = 0; segment < run->segments; segment++, scale += 2) {
        float sum = 0.0f;

        for (uint32_t g = 0; g < groups; g++, v += LAYOUT_GROUP_COLUMNS)
            sum = group_dot(&at, v, sum);
        acc = fmaf(sum, *scale, acc);
        left -= groups;
        groups = left < LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS ? left : LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS;
    }
    return fmaf(acc, undo, 0.0f);
}

void ref_gate_up(const struct tiers_run *run, const float *v, float undo, float *h)
{
    const uint8_t *panel = run->panels;
    const float *scale = run->scales;

    for (uint32_t i = 0; i < run->count; i++, scale += 2 * (size_t)run->segments) {
        bool half = (i == 0 && run->head_half) || (i + 1 == run->count && run->tail_half);

        for (uint32_t row = 0; row < (half ? LAYOUT_UNIT : LAYOUT_TILE_ROWS); row++) {
            float g = half ? half_panel_dot(run, panel, scale, 0, row, v, undo) : row_dot(run, panel, scale, 0, row, v, undo);
            float u = half ? half_panel_dot(run, panel, scale + 1, 1, row, v, undo) : row_dot(run, panel, scale + 1, 1, row, v, undo);

            *h++ = ref_silu(g) * u;
        }
        panel += tiers_panel_bytes(run) / (half ? 2 : 1);
    }
}

void ref_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t panel = row / LAYOUT_PANEL_ROWS, tile = row / LAYOUT_TILE_ROWS % 2;
        const float *scale = run->scales + (size_t)panel * run->segments * 2 + tile;
        float r = row_dot(run, run->panels + panel * tiers_panel_bytes(run), scale, tile, row % LAYOUT_TILE_ROWS, v, undo);

        y[row] = fmaf(weight, r, y[row]);
    }
}

void ref_gate_up_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count)
{
    for (uint32_t t = 0; t < count; t++)
        ref_gate_up(run, token[t].v, token[t].undo, token[t].out);
}

void ref_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows)
{
    for (uint32_t t = 0; t < count; t++)
        ref_down(run, token[t].v, token[t].undo, token[t].weight, token[t].out, rows);
}

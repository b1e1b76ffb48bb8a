/* README section 3, from the panels of section 7, one row after another. */
#include <math.h>

#include "kernels/bits.h"
#include "kernels/ref/ref.h"

/* The raw value of a weight. `group` is a group's first byte, `lane` the row's lane in its tile. */
static float raw(const uint8_t *group, uint32_t tile, uint32_t lane, uint32_t column)
{
    const uint8_t *signs = group + 32 * tile + 2 * lane;
    uint32_t word = signs[0] | (uint32_t)signs[1] << 8;
    uint32_t sign = (word >> (15 - column)) & 1;
    uint32_t magnitude = group[64 + 64 * (column / 2) + 32 * tile + 2 * lane + column % 2];

    return bits_to_f32(sign << 31 | magnitude << 20);
}

static float row_dot(const struct tiers_run *run, uint32_t panel, uint32_t tile, uint32_t row, const float *v, float undo)
{
    const uint8_t *group = run->panels + (size_t)panel * run->groups * LAYOUT_GROUP_BYTES;
    const float *scale = run->scales + (size_t)panel * run->segments * 2 + tile;
    uint32_t lane = row < 8 ? 2 * row : 2 * (row - 8) + 1;
    uint32_t groups = run->first_groups, left = run->groups;
    float acc = 0.0f;

    for (uint32_t segment = 0; segment < run->segments; segment++, scale += 2) {
        float sum = 0.0f;

        for (uint32_t g = 0; g < groups; g++, group += LAYOUT_GROUP_BYTES, v += LAYOUT_GROUP_COLUMNS)
            for (uint32_t k = 0; k < LAYOUT_GROUP_COLUMNS; k++)
                sum = fmaf(raw(group, tile, lane, k), v[k], sum);
        acc = fmaf(sum, *scale, acc);
        left -= groups;
        groups = left < LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS ? left : LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS;
    }
    return fmaf(acc, undo, 0.0f);
}

void ref_gate_up(const struct tiers_run *run, const float *v, float undo, float *h)
{
    for (uint32_t panel = 0; panel < run->count; panel++)
        for (uint32_t row = 0; row < LAYOUT_TILE_ROWS; row++) {
            float g = row_dot(run, panel, 0, row, v, undo);
            float u = row_dot(run, panel, 1, row, v, undo);

            *h++ = ref_silu(g) * u;
        }
}

void ref_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t panel = row / LAYOUT_PANEL_ROWS, tile = row / LAYOUT_TILE_ROWS % 2;

        y[row] = fmaf(weight, row_dot(run, panel, tile, row % LAYOUT_TILE_ROWS, v, undo), y[row]);
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

#include <string.h>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

static uint32_t lane_of(uint32_t row)
{
    return row < 8 ? 2 * row : 2 * (row - 8) + 1;
}

static void put_u16(uint8_t *at, uint32_t word)
{
    at[0] = (uint8_t)word;
    at[1] = (uint8_t)(word >> 8);
}

/* One lane's `width` columns: its signs from bit 15 down, its magnitudes two bytes in each vector of `step` bytes. */
static uint32_t put_lane(uint8_t *vectors, size_t step, const uint8_t *codes, uint32_t width)
{
    uint32_t word = 0;

    for (uint32_t column = 0; column < width; column++) {
        uint16_t fp9 = kernels_fp9_of_e4m3(codes[column]);

        word |= (uint32_t)(fp9 >> 8) << (15 - column);
        vectors[step * (column / 2) + column % 2] = (uint8_t)fp9;
    }
    return word;
}

void ref_pack_tile(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns)
{
    for (uint32_t first = 0; first < columns; first += LAYOUT_GROUP_COLUMNS, at += LAYOUT_GROUP_BYTES) {
        uint32_t width = columns - first < LAYOUT_GROUP_COLUMNS ? columns - first : LAYOUT_GROUP_COLUMNS;

        memset(at + 32 * tile, 0, 32);
        for (uint32_t pair = 0; pair < LAYOUT_GROUP_COLUMNS / 2; pair++)
            memset(at + 64 + 64 * pair + 32 * tile, 0, 32);
        for (uint32_t row = 0; row < rows; row++) {
            uint8_t *lane = at + 32 * tile + 2 * lane_of(row);

            put_u16(lane, put_lane(lane + 64, 64, codes + row * stride + first, width));
        }
    }
}

void ref_pack_half_group(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns)
{
    memset(at + 16 * tile, 0, 16);
    for (uint32_t pair = 0; pair < LAYOUT_UNIT / 2; pair++)
        memset(at + 32 + 64 * pair + 32 * tile, 0, 32);
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t lane = lane_of(row);

        at[16 * tile + lane] = (uint8_t)(put_lane(at + 32 + 32 * tile + 2 * lane, 64, codes + row * stride, columns) >> 8);
    }
}

void ref_pack_half_panel(uint8_t *at, uint32_t up, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns)
{
    for (uint32_t first = 0; first < columns; first += LAYOUT_GROUP_COLUMNS, at += LAYOUT_HALF_BYTES) {
        uint32_t width = columns - first < LAYOUT_GROUP_COLUMNS ? columns - first : LAYOUT_GROUP_COLUMNS;

        for (uint32_t row = 0; row < LAYOUT_UNIT; row++) {
            uint8_t *lane = at + 4 * row + 2 * up;

            put_u16(lane, 0);
            for (uint32_t pair = 0; pair < LAYOUT_GROUP_COLUMNS / 2; pair++)
                put_u16(lane + 32 + 32 * pair, 0);
            if (row < rows)
                put_u16(lane, put_lane(lane + 32, 32, codes + row * stride + first, width));
        }
    }
}

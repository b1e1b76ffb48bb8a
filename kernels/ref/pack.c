#include <string.h>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

void ref_pack_tile(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns)
{
    for (uint32_t first = 0; first < columns; first += LAYOUT_GROUP_COLUMNS, at += LAYOUT_GROUP_BYTES) {
        uint32_t width = columns - first < LAYOUT_GROUP_COLUMNS ? columns - first : LAYOUT_GROUP_COLUMNS;
        uint8_t *signs = at + 32 * tile;

        memset(signs, 0, 32);
        for (uint32_t pair = 0; pair < LAYOUT_GROUP_COLUMNS / 2; pair++)
            memset(at + 64 + 64 * pair + 32 * tile, 0, 32);
        for (uint32_t row = 0; row < rows; row++) {
            uint32_t lane = row < 8 ? 2 * row : 2 * (row - 8) + 1;
            uint32_t word = 0;

            for (uint32_t column = 0; column < width; column++) {
                uint16_t fp9 = kernels_fp9_of_e4m3(codes[row * stride + first + column]);

                word |= (uint32_t)(fp9 >> 8) << (15 - column);
                at[64 + 64 * (column / 2) + 32 * tile + 2 * lane + column % 2] = (uint8_t)fp9;
            }
            signs[2 * lane] = (uint8_t)word;
            signs[2 * lane + 1] = (uint8_t)(word >> 8);
        }
    }
}

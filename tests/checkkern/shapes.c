/* Shapes all of whose numbers are chosen: slices of whole units and slices that begin or end inside a 128-block or a tile. */
#include "tests/checkkern/check.h"

/* hidden, begin, neurons, pad_to, experts, shared_neurons */
const struct check_shape check_shapes[] = {
    {16, 0, 16, 16, 1, 0},
    {100, 0, 128, 128, 1, 0},
    {130, 32, 160, 32, 3, 0},
    {576, 64, 64, 64, 4, 64},
    {128, 0, 64, 64, 2, 0},
    {256, 96, 32, 32, 5, 0},
    {600, 112, 16, 16, 2, 32},
    {33, 0, 1, 16, 2, 0},
    {17, 16, 7, 64, 1, 0},
    {144, 96, 72, 32, 2, 144},
    {1, 0, 16, 16, 1, 0},
    {255, 64, 256, 128, 2, 0},
    {48, 240, 300, 16, 2, 16},
    {512, 0, 192, 128, 3, 0},
    {64, 48, 16, 16, 0, 48}, /* only a shared expert */
    /* Half panels and half groups: one unit at each place of a block, then more, ending within a block, at its end and in the next. */
    {64, 0, 8, 8, 2, 0},
    {96, 8, 8, 8, 1, 8},
    {130, 24, 8, 8, 2, 24},
    {200, 120, 8, 8, 3, 0},
    {144, 0, 24, 8, 2, 0},
    {33, 8, 24, 8, 2, 40},
    {272, 24, 24, 8, 1, 0},
    {100, 120, 24, 8, 2, 8},
    {320, 0, 40, 8, 2, 0},
    {48, 8, 40, 8, 2, 0},
    {64, 24, 40, 8, 1, 72},
    {65, 120, 40, 8, 2, 0},
    {80, 0, 72, 8, 2, 0},
    {256, 8, 72, 8, 2, 0},
    {31, 24, 72, 8, 2, 0},
    {160, 120, 72, 8, 2, 136},
    {128, 0, 120, 8, 1, 0},
    {96, 8, 120, 8, 2, 120},
    {64, 24, 120, 8, 2, 0},
    {48, 120, 120, 8, 2, 0},
    {136, 0, 136, 8, 2, 0},
    {40, 8, 136, 8, 2, 0},
    {104, 24, 136, 8, 1, 0},
    {72, 120, 136, 8, 2, 0},
    {64, 8, 16, 8, 2, 16},
    {64, 8, 128, 8, 1, 0},
    {64, 120, 16, 8, 2, 0},
    {64, 120, 264, 8, 1, 0},
    /* short last units, and units of more than 8 that begin at 8 mod 16 */
    {50, 8, 3, 8, 2, 5},
    {70, 120, 13, 8, 1, 0},
    {70, 24, 9, 24, 2, 0},
    {90, 8, 20, 40, 2, 1},
    {64, 8, 5, 64, 2, 0},
    {40, 120, 150, 72, 1, 130},
};

const size_t check_shapes_count = sizeof(check_shapes) / sizeof(check_shapes[0]);

/* Modes 2 and 3: a checkpoint's rows into panels, all checks before the first byte is written. */
#include <errno.h>
#include <string.h>

#include "kernels/bits.h"
#include "kernels/kernels.h"
#include "kernels/tiers.h"
#include "proto/base/size.h"

#define SCALE_MAX_BITS ((UINT32_C(127) + 80) << 23) /* 2^80 */

struct place {
    const struct layout_matrix *matrix;
    uint32_t rows; /* of the whole matrix */
};

static struct place place_of(const struct layout_mlp *layout, enum kernels_matrix matrix)
{
    if (matrix == KERNELS_DOWN)
        return (struct place){&layout->down, layout->hidden};
    return (struct place){&layout->gate_up, layout->neurons};
}

/* The panel and tile of a row (row / 16 is a tile of the matrix). */
static void tile_of(enum kernels_matrix matrix, uint32_t row, uint32_t *ret_panel, uint32_t *ret_tile)
{
    uint32_t tile = row / LAYOUT_TILE_ROWS;

    *ret_panel = matrix == KERNELS_DOWN ? tile / 2 : tile;
    *ret_tile = matrix == KERNELS_DOWN ? tile % 2 : matrix == KERNELS_UP;
}

const char *kernels_matrix_name(enum kernels_matrix matrix)
{
    static const char *const names[] = {
        [KERNELS_GATE] = "gate_proj",
        [KERNELS_UP] = "up_proj",
        [KERNELS_DOWN] = "down_proj",
    };

    return names[matrix];
}

bool kernels_scale_ok(float scale)
{
    return (bits_of_f32(scale) & ~BITS_SIGN) <= SCALE_MAX_BITS;
}

void kernels_pack_begin(const struct layout_mlp *layout, uint8_t *expert)
{
    memset(expert, 0, layout->expert_bytes);
}

static int check_shape(const struct place *place, const struct kernels_rows *rows, struct err *err)
{
    const char *name = kernels_matrix_name(rows->matrix);
    int r;

    if (rows->rows == 0 || rows->first_row > place->rows || rows->rows > place->rows - rows->first_row)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %u rows from row %u on do not lie within its %u rows", name, rows->rows,
                    rows->first_row, place->rows);
    else if (rows->first_row % LAYOUT_TILE_ROWS != 0)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: first row %u is no multiple of %u", name, rows->first_row, LAYOUT_TILE_ROWS);
    else if (rows->rows % LAYOUT_TILE_ROWS != 0 && rows->first_row + rows->rows != place->rows)
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %u rows from row %u on are no whole tiles of %u and not its last rows", name,
                    rows->rows, rows->first_row, LAYOUT_TILE_ROWS);
    else
        return 0;
    err_value_int(err, "row", rows->first_row);
    err_value_int(err, "rows", rows->rows);
    return r;
}

static bool is_nan_code(uint8_t code)
{
    return (code & 0x7f) == 0x7f;
}

static int check_codes(const struct place *place, const struct kernels_rows *rows, struct err *err)
{
    uint32_t columns = place->matrix->columns;

    for (uint32_t row = 0; row < rows->rows; row++) {
        const uint8_t *codes = rows->codes + (size_t)row * columns;
        uint8_t found = 0;
        uint32_t column = 0;

        /* No early exit: the compiler makes vectors of this loop, and a NaN is rare. */
        for (uint32_t k = 0; k < columns; k++)
            found |= is_nan_code(codes[k]);
        if (!found)
            continue;
        while (!is_nan_code(codes[column]))
            column++;
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s[%u, %u]: code 0x%02x is NaN, a weight must be finite",
                kernels_matrix_name(rows->matrix), rows->first_row + row, column, codes[column]);
        err_value_int(err, "row", rows->first_row + row);
        err_value_int(err, "column", column);
        return -EINVAL;
    }
    return 0;
}

static int check_scales(const struct place *place, const struct kernels_rows *rows, struct err *err)
{
    const float *scale = rows->scales;

    for (uint32_t row = 0; row < rows->rows; row += LAYOUT_TILE_ROWS)
        for (uint32_t segment = 0; segment < place->matrix->segments; segment++, scale++) {
            uint32_t column;

            if (kernels_scale_ok(*scale))
                continue;
            column = layout_segment(place->matrix, segment).first;
            err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s[%u, %u]: its block's scale is %g, it must be finite and at most 2^80 in size",
                    kernels_matrix_name(rows->matrix), rows->first_row + row, column, (double)*scale);
            err_value_int(err, "row", rows->first_row + row);
            err_value_int(err, "column", column);
            return -EINVAL;
        }
    return 0;
}

int kernels_pack(const struct layout_mlp *layout, uint8_t *expert, const struct kernels_rows *rows, struct err *err)
{
    struct place place = place_of(layout, rows->matrix);
    const struct layout_matrix *matrix = place.matrix;
    const struct tiers_ops *ops = tiers_active();
    int r;

    r = check_shape(&place, rows, err);
    if (r == 0)
        r = check_codes(&place, rows, err);
    if (r == 0)
        r = check_scales(&place, rows, err);
    if (r < 0)
        return r;

    for (uint32_t row = 0; row < rows->rows; row += LAYOUT_TILE_ROWS) {
        uint32_t left = rows->rows - row;
        const float *from = rows->scales + (size_t)(row / LAYOUT_TILE_ROWS) * matrix->segments;
        float *scales = (float *)(void *)(expert + matrix->scales_offset);
        uint32_t panel, tile;

        tile_of(rows->matrix, rows->first_row + row, &panel, &tile);
        ops->pack_tile(expert + matrix->panels_offset + panel * matrix->panel_bytes, tile, rows->codes + (size_t)row * matrix->columns,
                       matrix->columns, left < LAYOUT_TILE_ROWS ? left : LAYOUT_TILE_ROWS, matrix->columns);
        for (uint32_t segment = 0; segment < matrix->segments; segment++)
            scales[((size_t)panel * matrix->segments + segment) * 2 + tile] = from[segment];
    }
    return 0;
}

uint16_t kernels_unpack(const struct layout_mlp *layout, const uint8_t *expert, enum kernels_matrix which, uint32_t row,
                        uint32_t column, float *ret_scale)
{
    const struct layout_matrix *matrix = place_of(layout, which).matrix;
    const float *scales = (const float *)(const void *)(expert + matrix->scales_offset);
    uint32_t in_tile = row % LAYOUT_TILE_ROWS, k = column % LAYOUT_GROUP_COLUMNS;
    uint32_t lane = in_tile < 8 ? 2 * in_tile : 2 * (in_tile - 8) + 1;
    uint32_t segment = (matrix->column_origin + column) / LAYOUT_BLOCK;
    uint32_t panel, tile;
    const uint8_t *group;
    uint32_t sign;

    tile_of(which, row, &panel, &tile);
    group = expert + matrix->panels_offset + panel * matrix->panel_bytes + (size_t)(column / LAYOUT_GROUP_COLUMNS) * LAYOUT_GROUP_BYTES;
    sign = (group[32 * tile + 2 * lane + (k < 8)] >> (7 - k % 8)) & 1;
    *ret_scale = scales[((size_t)panel * matrix->segments + segment) * 2 + tile];
    return (uint16_t)(sign << 8 | group[64 + 64 * (k / 2) + 32 * tile + 2 * lane + k % 2]);
}

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

/* Where a tile is: a panel and one of its two halves of every scale pair. */
struct tile_place {
    uint32_t panel, tile;
    bool half; /* in a half panel */
};

static struct tile_place tile_of(const struct layout_matrix *layout, enum kernels_matrix matrix, uint32_t row)
{
    uint32_t tile = layout_tile(layout, row);

    if (matrix == KERNELS_DOWN)
        return (struct tile_place){tile / 2, tile % 2, false};
    return (struct tile_place){tile, matrix == KERNELS_UP, layout_panel_is_half(layout, tile)};
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
    else if (!layout_tile_begins(place->matrix, rows->first_row))
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: first row %u is %s %u", name, rows->first_row,
                    place->matrix->row_origin ? "neither 0 nor 8 more than a multiple of" : "no multiple of", LAYOUT_TILE_ROWS);
    else if (rows->first_row + rows->rows != place->rows && !layout_tile_begins(place->matrix, rows->first_row + rows->rows))
        r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %u rows from row %u on are no whole tiles of %u and not its last rows", name,
                    rows->rows, rows->first_row, LAYOUT_TILE_ROWS);
    else
        return 0;
    err_value_int(err, "row", rows->first_row);
    err_value_int(err, "rows", rows->rows);
    return r;
}

static size_t stride_of(const struct place *place, const struct kernels_rows *rows)
{
    return rows->stride ? rows->stride : place->matrix->columns;
}

static int check_codes(const struct place *place, const struct kernels_rows *rows, struct err *err)
{
    uint32_t columns = place->matrix->columns;
    size_t stride = stride_of(place, rows);

    for (uint32_t row = 0; row < rows->rows; row++) {
        const uint8_t *codes = rows->codes + row * stride;
        uint32_t column = (uint32_t)kernels_find_nan(codes, columns);

        if (column == columns)
            continue;
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
    uint32_t first_tile = layout_tile(place->matrix, rows->first_row);
    uint32_t tiles = layout_tiles(place->matrix, rows->first_row, rows->rows);

    for (uint32_t tile = first_tile; tile < first_tile + tiles; tile++)
        for (uint32_t segment = 0; segment < place->matrix->segments; segment++, scale++) {
            uint32_t row, column;

            if (kernels_scale_ok(*scale))
                continue;
            row = layout_tile_row(place->matrix, tile);
            column = layout_segment(place->matrix, segment).first;
            err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s[%u, %u]: its block's scale is %g, it must be finite and at most 2^80 in size",
                    kernels_matrix_name(rows->matrix), row, column, (double)*scale);
            err_value_int(err, "row", row);
            err_value_int(err, "column", column);
            return -EINVAL;
        }
    return 0;
}

/* Columns [first, first + width) of the layout, of which `columns` real ones are left from there on; width is a multiple of 8. */
static uint8_t *pack_columns(const struct tiers_ops *ops, uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows,
                             uint32_t width, uint32_t columns)
{
    uint32_t whole = width / LAYOUT_GROUP_COLUMNS * LAYOUT_GROUP_COLUMNS, half;

    if (columns > width)
        columns = width;
    half = columns > whole ? columns - whole : 0;
    ops->pack_tile(at, tile, codes, stride, rows, columns - half);
    at += (size_t)(whole / LAYOUT_GROUP_COLUMNS) * LAYOUT_GROUP_BYTES;
    if (whole == width)
        return at;
    ops->pack_half_group(at, tile, codes + whole, stride, rows, half);
    return at + LAYOUT_HALF_BYTES;
}

/* Half groups are at the ends of the first and of the last segment, so that a panel is up to two runs of whole groups with a half one after
 * each. */
static void pack_panel_tile(const struct tiers_ops *ops, const struct layout_matrix *matrix, uint8_t *at, uint32_t tile,
                            const uint8_t *codes, size_t stride, uint32_t rows)
{
    uint32_t first = matrix->first_half ? LAYOUT_BLOCK - matrix->column_origin : 0;

    if (first)
        at = pack_columns(ops, at, tile, codes, stride, rows, first, matrix->columns);
    pack_columns(ops, at, tile, codes + first, stride, rows, matrix->columns_padded - first, matrix->columns - first);
}

int kernels_pack(const struct layout_mlp *layout, uint8_t *expert, const struct kernels_rows *rows, struct err *err)
{
    struct place place = place_of(layout, rows->matrix);
    const struct layout_matrix *matrix = place.matrix;
    const struct tiers_ops *ops = tiers_active();
    float *scales = (float *)(void *)(expert + matrix->scales_offset);
    const float *from = rows->scales;
    uint32_t end = rows->first_row + rows->rows;
    size_t stride = stride_of(&place, rows);
    int r;

    r = check_shape(&place, rows, err);
    if (r == 0)
        r = check_codes(&place, rows, err);
    if (r == 0)
        r = check_scales(&place, rows, err);
    if (r < 0)
        return r;

    for (uint32_t row = rows->first_row, next; row < end; row = next) {
        struct tile_place at = tile_of(matrix, rows->matrix, row);
        uint8_t *panel = expert + matrix->panels_offset + layout_panel_offset(matrix, at.panel);
        const uint8_t *codes = rows->codes + (row - rows->first_row) * stride;

        next = layout_tile_row(matrix, layout_tile(matrix, row) + 1);
        if (next > end)
            next = end;
        if (at.half)
            ops->pack_half_panel(panel, at.tile, codes, stride, next - row, matrix->columns);
        else
            pack_panel_tile(ops, matrix, panel, at.tile, codes, stride, next - row);
        for (uint32_t segment = 0; segment < matrix->segments; segment++)
            scales[((size_t)at.panel * matrix->segments + segment) * 2 + at.tile] = *from++;
    }
    return 0;
}

uint16_t kernels_unpack(const struct layout_mlp *layout, const uint8_t *expert, enum kernels_matrix which, uint32_t row, uint32_t column,
                        float *ret_scale)
{
    const struct layout_matrix *matrix = place_of(layout, which).matrix;
    const float *scales = (const float *)(const void *)(expert + matrix->scales_offset);
    struct tile_place at = tile_of(matrix, which, row);
    uint32_t in_tile = row - layout_tile_row(matrix, layout_tile(matrix, row));
    uint32_t lane = in_tile < 8 ? 2 * in_tile : 2 * (in_tile - 8) + 1;
    uint32_t which_segment = (matrix->column_origin + column) / LAYOUT_BLOCK;
    struct layout_segment segment = layout_segment(matrix, which_segment);
    uint32_t group = (column - segment.first) / LAYOUT_GROUP_COLUMNS, k = (column - segment.first) % LAYOUT_GROUP_COLUMNS;
    const uint8_t *bytes = expert + matrix->panels_offset + layout_panel_offset(matrix, at.panel), *signs, *magnitudes;
    size_t pair = 64; /* from a pair of columns to the next */
    uint32_t sign;

    if (at.half) {
        bytes += segment.offset / 2 + (size_t)group * LAYOUT_HALF_BYTES;
        signs = bytes + 4 * in_tile + 2 * at.tile;
        magnitudes = signs + 32;
        pair = 32;
    } else if (group == segment.groups) { /* the half group */
        bytes += segment.offset + (size_t)group * LAYOUT_GROUP_BYTES;
        signs = bytes + 16 * at.tile + lane - 1; /* bits 15 .. 8 are the byte itself */
        magnitudes = bytes + 32 + 32 * at.tile + 2 * lane;
    } else {
        bytes += segment.offset + (size_t)group * LAYOUT_GROUP_BYTES;
        signs = bytes + 32 * at.tile + 2 * lane;
        magnitudes = signs + 64;
    }
    sign = (signs[k < 8] >> (7 - k % 8)) & 1;
    *ret_scale = scales[((size_t)at.panel * matrix->segments + which_segment) * 2 + at.tile];
    return (uint16_t)(sign << 8 | magnitudes[pair * (k / 2) + k % 2]);
}

#include "daemon/head/load_cut.h"

#include <string.h>

#include "daemon/head/load_slice.h"
#include "proto/wire/msg_staged.h"

/* What is cut out for one rank of the rows that were read. */
struct cut {
    const struct load_rows *from;
    const struct load_target *target;
    const struct layout_mlp *layout;
    uint32_t first_row, rows; /* of the slice */
    const uint8_t *codes;     /* in the piece: of the first of these rows, the matrix's first column */
    uint32_t first_column, columns;
};

const struct layout_mlp *load_target_layout(const struct load_target *target, int expert)
{
    return expert == ARCH_EXPERT_SHARED ? &target->shared : &target->layout;
}

/* As its owners count it. */
static uint32_t wire_expert(const struct load_target *target, int expert)
{
    if (expert < 0)
        return expert == ARCH_EXPERT_SHARED ? MSG_EXPERT_SHARED : 0;
    return (uint32_t)expert - target->expert_first;
}

/* What a frame says of `rows` rows from `row` on of a cut; their scales go into the cutter's. */
static struct msg_prepare_data words(const struct load_cutter *cutter, const struct cut *cut, uint32_t row, uint32_t rows)
{
    const struct load_rows *from = cut->from;
    uint32_t first_row = cut->first_row + row;
    return (struct msg_prepare_data){
        .expert = wire_expert(cut->target, from->expert),
        .matrix = (uint8_t)from->which,
        .first_row = first_row,
        .rows = rows,
        .columns = cut->columns,
        .scale_count = load_slice_scales(from->matrix, cut->layout, from->which, first_row, rows, cutter->scales),
    };
}

static int send_frame(struct load_cutter *cutter, const struct cut *cut, uint32_t row, uint32_t rows, struct err *err)
{
    struct msg_prepare_data msg = words(cutter, cut, row, rows);
    struct outgoing *out = load_parcels_frame(cutter->parcels);
    size_t stride = cut->from->matrix->columns;
    const uint8_t *from = cut->codes + row * stride + cut->first_column;
    uint8_t *to;
    int r = load_parcels_encoded(msg_prepare_data_encode(&out->buf, cut->target->request, &msg, cutter->scales, &to), out, err);
    if (r < 0)
        return r;
    if (cut->columns == stride)
        memcpy(to, from, rows * stride);
    else
        for (uint32_t i = 0; i < rows; i++)
            memcpy(to + (size_t)i * cut->columns, from + i * stride, cut->columns);
    return load_parcels_send(cutter->parcels, cut->target->duck, out, NULL, err);
}

static int send_staged(struct load_cutter *cutter, const struct cut *cut, struct err *err)
{
    struct msg_prepare_staged msg = {
        .rows = words(cutter, cut, 0, cut->rows),
        .ticket = ++cutter->ticket,
        .offset = (uint64_t)(cut->codes + cut->first_column - cutter->stage),
        .stride = cut->from->matrix->columns,
    };
    struct outgoing *out = outgoing_new();
    int r = load_parcels_encoded(msg_prepare_staged_encode(&out->buf, cut->target->request, &msg, cutter->scales), out, err);
    if (r < 0)
        return r;
    out->staged = true;
    out->ticket = msg.ticket;
    atomic_fetch_add(&cutter->parcels->sent_bytes, (uint64_t)cut->rows * cut->columns);
    return load_parcels_send(cutter->parcels, cut->target->duck, out, cut->from->piece, err);
}

/* In frames that begin where tiles begin. */
static int send_cut(struct load_cutter *cutter, const struct cut *cut, struct err *err)
{
    uint32_t most = LOAD_FRAME_BYTES / cut->columns / LAYOUT_TILE_ROWS * LAYOUT_TILE_ROWS;
    uint32_t begin = (cut->from->which == KERNELS_DOWN ? 0 : cut->layout->begin) + cut->first_row;
    int r = 0;
    if (cut->target->staged)
        return send_staged(cutter, cut, err);
    for (uint32_t row = 0, rows; r == 0 && row < cut->rows; row += rows) {
        rows = load_slice_next_rows(begin, cut->rows, row, most ? most : LAYOUT_TILE_ROWS);
        r = send_frame(cutter, cut, row, rows, err);
    }
    return r;
}

/* down_proj: a rank's slice is a run of columns. */
static int send_columns(struct load_cutter *cutter, struct cut *cut, struct err *err)
{
    cut->first_row = cut->from->first;
    cut->rows = cut->from->rows;
    cut->first_column = cut->layout->begin;
    cut->columns = cut->layout->neurons;
    return send_cut(cutter, cut, err);
}

/* gate_proj, up_proj: a run of rows. */
static int send_rows(struct load_cutter *cutter, struct cut *cut, struct err *err)
{
    const struct layout_mlp *layout = cut->layout;
    uint32_t first = cut->from->first, end = first + cut->from->rows, slice_end = layout->begin + layout->neurons;
    uint32_t begin = first > layout->begin ? first : layout->begin;
    end = end < slice_end ? end : slice_end;
    if (begin >= end)
        return 0;
    cut->first_row = begin - layout->begin;
    cut->rows = end - begin;
    cut->columns = cut->from->matrix->columns;
    cut->codes += (size_t)(begin - first) * cut->columns;
    return send_cut(cutter, cut, err);
}

int load_cut_send(struct load_cutter *cutter, const struct load_target *target, const struct load_rows *rows, struct err *err)
{
    struct cut cut = {.from = rows, .target = target, .layout = load_target_layout(target, rows->expert), .codes = rows->piece->data};
    return rows->which == KERNELS_DOWN ? send_columns(cutter, &cut, err) : send_rows(cutter, &cut, err);
}

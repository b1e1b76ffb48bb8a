#include "proto/wire/msg_staged.h"

#include <errno.h>

#include "proto/base/size.h"
#include "proto/wire/codec.h"

#define STAGED_FIELDS 44
#define MATRIX_LAST 2 /* enum kernels_matrix */
#define COUNT_MAX (1u << 30)

int msg_prepare_staged_encode(struct buf *buf, uint64_t request, const struct msg_prepare_staged *msg, const float *scales)
{
    const struct msg_prepare_data *rows = &msg->rows;
    size_t size;
    if (!size_mul((size_t)rows->scale_count, sizeof(float), &size) || !size_add(size, (size_t)STAGED_FIELDS, &size))
        return -EMSGSIZE;
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_PREPARE_STAGED, request, size);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, msg->ticket);
    bytes_write_u64(&w.payload, msg->offset);
    bytes_write_u32(&w.payload, msg->stride);
    bytes_write_u32(&w.payload, rows->expert);
    bytes_write_u32(&w.payload, rows->matrix);
    bytes_write_u32(&w.payload, rows->first_row);
    bytes_write_u32(&w.payload, rows->rows);
    bytes_write_u32(&w.payload, rows->columns);
    bytes_write_u32(&w.payload, rows->scale_count);
    for (uint32_t i = 0; i < rows->scale_count; i++)
        bytes_write_f32(&w.payload, scales[i]);
    return codec_end(&w);
}

/* The last row ends where its columns end, not its stride. */
static bool within(const struct msg_prepare_staged *msg, uint64_t stage_bytes)
{
    uint64_t span;
    return msg->stride >= msg->rows.columns && size_mul((uint64_t)msg->rows.rows - 1, (uint64_t)msg->stride, &span) &&
           size_add(span, (uint64_t)msg->rows.columns, &span) && msg->offset <= stage_bytes && span <= stage_bytes - msg->offset;
}

int msg_prepare_staged_decode(const struct frame *frame, uint64_t stage_bytes, struct msg_prepare_staged *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_PREPARE_STAGED, err);
    struct msg_prepare_staged msg = {.ticket = codec_read_u64(&r), .offset = codec_read_u64(&r)};
    msg.stride = codec_read_u32(&r, "stride", 1, UINT32_MAX);
    msg.rows.expert = codec_read_u32(&r, "expert", 0, UINT32_MAX);
    msg.rows.matrix = (uint8_t)codec_read_u32(&r, "matrix", 0, MATRIX_LAST);
    msg.rows.first_row = codec_read_u32(&r, "first_row", 0, UINT32_MAX);
    msg.rows.rows = codec_read_u32(&r, "rows", 1, COUNT_MAX);
    msg.rows.columns = codec_read_u32(&r, "columns", 1, COUNT_MAX);
    msg.rows.scale_count = codec_read_u32(&r, "scale_count", 1, WIRE_PREPARE_PAYLOAD_MAX / sizeof(float));
    if (r.code == 0 && !r.payload.failed) {
        size_t scales = (size_t)msg.rows.scale_count * sizeof(float);
        if (scales != bytes_reader_left(&r.payload))
            codec_refuse(&r, "%u scales need %zu bytes, the frame holds %zu", msg.rows.scale_count, scales, bytes_reader_left(&r.payload));
        else if (!within(&msg, stage_bytes))
            codec_refuse(&r, "%u rows of %u columns, %u bytes apart from byte %llu on, do not lie within the stage of %llu bytes",
                         msg.rows.rows, msg.rows.columns, msg.stride, (unsigned long long)msg.offset, (unsigned long long)stage_bytes);
        msg.rows.scales = bytes_read_view(&r.payload, scales);
    }
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_staged_taken_encode(struct buf *buf, uint64_t request, uint64_t ticket)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_STAGED_TAKEN, request, sizeof ticket);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, ticket);
    return codec_end(&w);
}

int msg_staged_taken_decode(const struct frame *frame, uint64_t *ret_ticket, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_STAGED_TAKEN, err);
    uint64_t ticket = codec_read_u64(&r);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_ticket = ticket;
    return code;
}

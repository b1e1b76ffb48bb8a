#include "proto/wire/msg_prepare.h"

#include <errno.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"
#include "proto/wire/codec.h"

#define BEGIN_BYTES (DIGEST_SIZE + 4 * 7 + 16 + 4 + 16 + DIGEST_SIZE)
#define BEGIN_DIVIDED_BYTES 8 /* of experts that are not all of the layer's: which, and of how many */
#define DATA_FIELDS 24
#define SLOT_BYTES (DIGEST_SIZE + 4 * 6 + 16 + DIGEST_SIZE)
#define MATRIX_LAST 2 /* enum kernels_matrix */

static void slice_write(struct bytes_writer *w, const struct msg_slice *slice)
{
    bytes_write_u32(w, slice->hidden);
    bytes_write_u32(w, slice->begin);
    bytes_write_u32(w, slice->neurons);
    bytes_write_u32(w, slice->pad_to);
}

/* The geometry itself is layout_mlp_init's to judge. */
static void slice_read(struct bytes_reader *r, struct msg_slice *slice)
{
    slice->hidden = bytes_read_u32(r);
    slice->begin = bytes_read_u32(r);
    slice->neurons = bytes_read_u32(r);
    slice->pad_to = bytes_read_u32(r);
}

int msg_prepare_begin_encode(struct buf *buf, uint64_t request, const struct msg_prepare_begin *msg)
{
    static const struct msg_slice none;
    struct codec_writer w;
    bool divided = msg->experts_total > msg->experts;
    int r = codec_begin(&w, buf, WIRE_PREPARE_BEGIN, request, BEGIN_BYTES + (divided ? BEGIN_DIVIDED_BYTES : 0));
    if (r < 0)
        return r;
    bytes_write_copy(&w.payload, msg->model_key, DIGEST_SIZE);
    bytes_write_u32(&w.payload, msg->layout_version);
    bytes_write_u32(&w.payload, msg->tp);
    bytes_write_u32(&w.payload, msg->rank);
    bytes_write_u32(&w.payload, msg->multiple_of);
    bytes_write_u32(&w.payload, msg->layer);
    bytes_write_u32(&w.payload, (uint32_t)msg->kind);
    bytes_write_u32(&w.payload, msg->experts);
    slice_write(&w.payload, &msg->slice);
    bytes_write_u32(&w.payload, msg->has_shared);
    slice_write(&w.payload, msg->has_shared ? &msg->shared : &none);
    bytes_write_copy(&w.payload, msg->sources, DIGEST_SIZE);
    if (divided) {
        bytes_write_u32(&w.payload, msg->expert_first);
        bytes_write_u32(&w.payload, msg->experts_total);
    }
    return codec_end(&w);
}

int msg_prepare_begin_decode(const struct frame *frame, struct msg_prepare_begin *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_PREPARE_BEGIN, err);
    struct msg_prepare_begin msg = {0};
    bytes_read_copy(&r.payload, msg.model_key, DIGEST_SIZE);
    msg.layout_version = codec_read_u32(&r, "layout_version", 0, UINT32_MAX);
    msg.tp = codec_read_u32(&r, "tp", 1, UINT32_MAX);
    msg.rank = codec_read_u32(&r, "rank", 0, msg.tp ? msg.tp - 1 : 0);
    msg.multiple_of = codec_read_u32(&r, "multiple_of", 1, UINT32_MAX);
    msg.layer = codec_read_u32(&r, "layer", 0, UINT32_MAX);
    msg.kind = (enum msg_slot_kind)codec_read_u32(&r, "kind", MSG_SLOT_DENSE, MSG_SLOT_MOE);
    msg.experts = codec_read_u32(&r, "experts", 1, msg.kind == MSG_SLOT_MOE ? WIRE_EXPERTS_MAX : 1);
    slice_read(&r.payload, &msg.slice);
    msg.has_shared = codec_read_u32(&r, "has_shared", 0, msg.kind == MSG_SLOT_MOE) != 0;
    slice_read(&r.payload, &msg.shared);
    bytes_read_copy(&r.payload, msg.sources, DIGEST_SIZE);
    msg.experts_total = msg.experts;
    if (msg.kind == MSG_SLOT_MOE && bytes_reader_left(&r.payload)) {
        msg.expert_first = codec_read_u32(&r, "expert_first", 0, WIRE_EXPERTS_MAX - msg.experts);
        msg.experts_total = codec_read_u32(&r, "experts_total", msg.experts + msg.expert_first, WIRE_EXPERTS_MAX);
    }
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_prepare_data_encode(struct buf *buf, uint64_t request, const struct msg_prepare_data *msg, const float *scales, uint8_t **ret_codes)
{
    size_t codes, scale_bytes, size;
    if (!size_mul((size_t)msg->rows, (size_t)msg->columns, &codes) || !size_mul((size_t)msg->scale_count, sizeof(float), &scale_bytes) ||
        !size_add(codes, scale_bytes, &size) || !size_add(size, (size_t)DATA_FIELDS, &size))
        return -EMSGSIZE;
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_PREPARE_DATA, request, size);
    if (r < 0)
        return r;
    bytes_write_u32(&w.payload, msg->expert);
    bytes_write_u32(&w.payload, msg->matrix);
    bytes_write_u32(&w.payload, msg->first_row);
    bytes_write_u32(&w.payload, msg->rows);
    bytes_write_u32(&w.payload, msg->columns);
    bytes_write_u32(&w.payload, msg->scale_count);
    for (uint32_t i = 0; i < msg->scale_count; i++)
        bytes_write_f32(&w.payload, scales[i]);
    uint8_t *room = bytes_write_room(&w.payload, codes);
    r = codec_end(&w);
    if (r < 0)
        return r;
    *ret_codes = room;
    return 0;
}

int msg_prepare_data_decode(const struct frame *frame, struct msg_prepare_data *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_PREPARE_DATA, err);
    struct msg_prepare_data msg = {0};
    msg.expert = codec_read_u32(&r, "expert", 0, UINT32_MAX);
    msg.matrix = (uint8_t)codec_read_u32(&r, "matrix", 0, MATRIX_LAST);
    msg.first_row = codec_read_u32(&r, "first_row", 0, UINT32_MAX);
    msg.rows = codec_read_u32(&r, "rows", 1, WIRE_PREPARE_PAYLOAD_MAX);
    msg.columns = codec_read_u32(&r, "columns", 1, WIRE_PREPARE_PAYLOAD_MAX);
    msg.scale_count = codec_read_u32(&r, "scale_count", 1, WIRE_PREPARE_PAYLOAD_MAX / 4);
    if (r.code == 0 && !r.payload.failed) {
        uint64_t codes = (uint64_t)msg.rows * msg.columns, need = codes + (uint64_t)msg.scale_count * 4;
        if (need != bytes_reader_left(&r.payload))
            codec_refuse(&r, "%u rows of %u columns and %u scales need %llu bytes, the frame holds %zu", msg.rows, msg.columns,
                         msg.scale_count, (unsigned long long)need, bytes_reader_left(&r.payload));
        msg.scales = bytes_read_view(&r.payload, (size_t)msg.scale_count * 4);
        msg.codes = bytes_read_view(&r.payload, (size_t)codes);
    }
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_empty_encode(struct buf *buf, enum wire_type type, uint64_t request)
{
    if (type != WIRE_PREPARE_END && type != WIRE_PREPARE_ABORT && type != WIRE_SLOTS_GET && type != WIRE_STEP_CANCEL)
        return -EINVAL;
    struct codec_writer w;
    int r = codec_begin(&w, buf, type, request, 0);
    return r < 0 ? r : codec_end(&w);
}

int msg_empty_decode(const struct frame *frame, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, frame->type, err);
    return codec_reader_end(&r);
}

int msg_prepare_sources_encode(struct buf *buf, uint64_t request, const uint8_t sources[DIGEST_SIZE])
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_PREPARE_SOURCES, request, DIGEST_SIZE);
    if (r < 0)
        return r;
    bytes_write_copy(&w.payload, sources, DIGEST_SIZE);
    return codec_end(&w);
}

int msg_prepare_sources_decode(const struct frame *frame, uint8_t ret_sources[DIGEST_SIZE], struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_PREPARE_SOURCES, err);
    uint8_t sources[DIGEST_SIZE];
    bytes_read_copy(&r.payload, sources, DIGEST_SIZE);
    int code = codec_reader_end(&r);
    if (code == 0)
        memcpy(ret_sources, sources, DIGEST_SIZE);
    return code;
}

int msg_prepare_taken_encode(struct buf *buf, uint64_t request, uint64_t bytes)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_PREPARE_TAKEN, request, 8);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, bytes);
    return codec_end(&w);
}

int msg_prepare_taken_decode(const struct frame *frame, uint64_t *ret_bytes, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_PREPARE_TAKEN, err);
    uint64_t bytes = codec_read_u64(&r);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_bytes = bytes;
    return code;
}

static void slot_write(struct bytes_writer *w, const struct msg_slot *slot)
{
    bytes_write_copy(w, slot->model_key, DIGEST_SIZE);
    bytes_write_u32(w, slot->tp);
    bytes_write_u32(w, slot->rank);
    bytes_write_u32(w, slot->multiple_of);
    bytes_write_u32(w, slot->layer);
    bytes_write_u32(w, (uint32_t)slot->kind);
    bytes_write_u32(w, (uint32_t)slot->state);
    bytes_write_u64(w, slot->bytes);
    bytes_write_u64(w, slot->checksum);
    bytes_write_copy(w, slot->sources, DIGEST_SIZE);
}

static void slot_read(struct codec_reader *r, struct msg_slot *slot)
{
    bytes_read_copy(&r->payload, slot->model_key, DIGEST_SIZE);
    slot->tp = codec_read_u32(r, "tp", 1, UINT32_MAX);
    slot->rank = codec_read_u32(r, "rank", 0, slot->tp ? slot->tp - 1 : 0);
    slot->multiple_of = codec_read_u32(r, "multiple_of", 1, UINT32_MAX);
    slot->layer = codec_read_u32(r, "layer", 0, UINT32_MAX);
    slot->kind = (enum msg_slot_kind)codec_read_u32(r, "kind", MSG_SLOT_DENSE, MSG_SLOT_MOE);
    slot->state = (enum msg_slot_state)codec_read_u32(r, "state", MSG_SLOT_FILLING, MSG_SLOT_FINISHED);
    slot->bytes = codec_read_u64(r);
    slot->checksum = codec_read_u64(r);
    bytes_read_copy(&r->payload, slot->sources, DIGEST_SIZE);
}

int msg_slot_done_encode(struct buf *buf, uint64_t request, const struct msg_slot *msg)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_SLOT_DONE, request, SLOT_BYTES);
    if (r < 0)
        return r;
    slot_write(&w.payload, msg);
    return codec_end(&w);
}

int msg_slot_done_decode(const struct frame *frame, struct msg_slot *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_SLOT_DONE, err);
    struct msg_slot msg = {0};
    slot_read(&r, &msg);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_drop_encode(struct buf *buf, uint64_t request, const struct msg_drop *msg)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_DROP, request, 1 + DIGEST_SIZE);
    if (r < 0)
        return r;
    bytes_write_u8(&w.payload, msg->all);
    bytes_write_copy(&w.payload, msg->model_key, DIGEST_SIZE);
    return codec_end(&w);
}

int msg_drop_decode(const struct frame *frame, struct msg_drop *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_DROP, err);
    struct msg_drop msg = {.all = codec_read_bool(&r, "all")};
    bytes_read_copy(&r.payload, msg.model_key, DIGEST_SIZE);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_dropped_encode(struct buf *buf, uint64_t request, uint64_t freed_bytes)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_DROPPED, request, 8);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, freed_bytes);
    return codec_end(&w);
}

int msg_dropped_decode(const struct frame *frame, uint64_t *ret_freed_bytes, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_DROPPED, err);
    uint64_t freed = codec_read_u64(&r);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_freed_bytes = freed;
    return code;
}

int msg_slots_encode(struct buf *buf, uint64_t request, const struct msg_slot *slots, size_t count)
{
    if (count > WIRE_SLOTS_MAX)
        return -EMSGSIZE;
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_SLOTS, request, 4 + count * SLOT_BYTES);
    if (r < 0)
        return r;
    bytes_write_u32(&w.payload, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        slot_write(&w.payload, &slots[i]);
    return codec_end(&w);
}

int msg_slots_decode(const struct frame *frame, struct msg_slot **ret_slots, size_t *ret_count, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_SLOTS, err);
    uint32_t count = codec_read_u32(&r, "count", 0, WIRE_SLOTS_MAX);
    if (r.code == 0 && !r.payload.failed && bytes_reader_left(&r.payload) != (size_t)count * SLOT_BYTES)
        codec_refuse(&r, "%u slots need %zu bytes, the frame holds %zu", count, (size_t)count * SLOT_BYTES, bytes_reader_left(&r.payload));
    if (r.code < 0 || r.payload.failed)
        return codec_reader_end(&r);
    _cleanup_(freep) struct msg_slot *slots = calloc(count ? count : 1, sizeof *slots);
    if (!slots)
        return err_no_memory(err, "SLOTS frame", count * sizeof *slots);
    for (uint32_t i = 0; i < count; i++)
        slot_read(&r, &slots[i]);
    int code = codec_reader_end(&r);
    if (code < 0)
        return code;
    *ret_slots = STEAL(slots);
    *ret_count = count;
    return 0;
}

#include "proto/wire/msg_step.h"

#include <errno.h>
#include <string.h>

#include "proto/base/size.h"
#include "proto/wire/codec.h"

#define STEP_FIELDS 32
#define STEP_DONE_FIELDS 40
#define STEP_DONE_COUNTS 16
#define STEP_DONE_ONE_SHOT 40
_Static_assert(WIRE_FRAME_HEADER + STEP_DONE_FIELDS + STEP_DONE_COUNTS + STEP_DONE_ONE_SHOT <= MSG_STEP_DONE_HEAD_MAX, "all fit");
#define MODE_MAX 6

int msg_session_open_encode(struct buf *buf, uint64_t request, const struct msg_session_open *msg)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_SESSION_OPEN, request, 8 + DIGEST_SIZE + 8 + 2);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, msg->session);
    bytes_write_copy(&w.payload, msg->model_key, DIGEST_SIZE);
    bytes_write_u32(&w.payload, msg->max_tokens);
    bytes_write_u32(&w.payload, msg->top_k_max);
    bytes_write_u8(&w.payload, (uint8_t)msg->partials);
    bytes_write_u8(&w.payload, msg->one_shot);
    return codec_end(&w);
}

int msg_session_open_decode(const struct frame *frame, struct msg_session_open *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_SESSION_OPEN, err);
    struct msg_session_open msg = {.session = codec_read_u64(&r)};
    bytes_read_copy(&r.payload, msg.model_key, DIGEST_SIZE);
    msg.max_tokens = codec_read_u32(&r, "max_tokens", 1, WIRE_STEP_TOKENS_MAX);
    msg.top_k_max = codec_read_u32(&r, "top_k_max", 0, WIRE_TOP_K_MAX);
    msg.partials = (enum msg_dtype)codec_read_u8(&r, "partials", MSG_F32);
    msg.one_shot = codec_read_bool(&r, "one_shot");
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

static bool session_type(enum wire_type type)
{
    return type == WIRE_SESSION_OPENED || type == WIRE_SESSION_CLOSE || type == WIRE_SESSION_CLOSED;
}

int msg_session_encode(struct buf *buf, enum wire_type type, uint64_t request, uint64_t session)
{
    if (!session_type(type))
        return -EINVAL;
    struct codec_writer w;
    int r = codec_begin(&w, buf, type, request, 8);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, session);
    return codec_end(&w);
}

int msg_session_decode(const struct frame *frame, uint64_t *ret_session, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, session_type(frame->type) ? frame->type : WIRE_SESSION_OPENED, err);
    uint64_t session = codec_read_u64(&r);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_session = session;
    return code;
}

/* Bytes of the tensors of a step; x and ids are padded to 8. With every factor under its limit nothing here overflows. */
struct step_sizes {
    size_t x, x_padded;
    size_t ids, ids_padded;
};

static struct step_sizes step_sizes(uint32_t tokens, uint32_t hidden, uint32_t top_k)
{
    struct step_sizes s;
    s.x = (size_t)tokens * hidden * 2;
    s.x_padded = size_round_up(s.x, 8);
    s.ids = (size_t)tokens * top_k * 4;
    s.ids_padded = size_round_up(s.ids, 8);
    return s;
}

int msg_step_encode(struct buf *buf, uint64_t request, const struct msg_step *msg, uint8_t **ret_x, uint8_t **ret_ids,
                    uint8_t **ret_weights)
{
    if (msg->tokens > WIRE_STEP_TOKENS_MAX || msg->top_k > WIRE_TOP_K_MAX || msg->hidden == 0 || msg->hidden > WIRE_HIDDEN_MAX)
        return -EMSGSIZE;
    struct step_sizes s = step_sizes(msg->tokens, msg->hidden, msg->top_k);
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_STEP, request, STEP_FIELDS + s.x_padded + s.ids_padded + s.ids);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, msg->session);
    bytes_write_u32(&w.payload, msg->layer);
    bytes_write_u32(&w.payload, msg->tokens);
    bytes_write_u32(&w.payload, msg->top_k);
    bytes_write_u32(&w.payload, msg->hidden);
    bytes_write_u64(&w.payload, msg->prefill | (uint64_t)msg->batch << 8);
    uint8_t *x = bytes_write_room(&w.payload, s.x_padded);
    uint8_t *ids = bytes_write_room(&w.payload, s.ids_padded);
    uint8_t *weights = bytes_write_room(&w.payload, s.ids);
    r = codec_end(&w);
    if (r < 0)
        return r;
    memset(x + s.x, 0, s.x_padded - s.x);
    memset(ids + s.ids, 0, s.ids_padded - s.ids);
    *ret_x = x;
    *ret_ids = ids;
    *ret_weights = weights;
    return 0;
}

int msg_step_decode(const struct frame *frame, struct msg_step *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_STEP, err);
    struct msg_step msg = {.session = codec_read_u64(&r)};
    msg.layer = codec_read_u32(&r, "layer", 0, UINT32_MAX);
    msg.tokens = codec_read_u32(&r, "tokens", 0, WIRE_STEP_TOKENS_MAX);
    msg.top_k = codec_read_u32(&r, "top_k", 0, WIRE_TOP_K_MAX);
    msg.hidden = codec_read_u32(&r, "hidden", 1, WIRE_HIDDEN_MAX);
    msg.prefill = codec_read_bool(&r, "prefill");
    msg.batch = codec_read_bool(&r, "batch");
    codec_read_zeros(&r, 6);
    if (r.code == 0 && !r.payload.failed) {
        struct step_sizes s = step_sizes(msg.tokens, msg.hidden, msg.top_k);
        size_t need = s.x_padded + s.ids_padded + s.ids;
        if (need != bytes_reader_left(&r.payload))
            codec_refuse(&r, "tokens %u, hidden %u and top_k %u need %zu bytes, the frame holds %zu", msg.tokens, msg.hidden, msg.top_k,
                         need, bytes_reader_left(&r.payload));
        msg.x = bytes_read_view(&r.payload, s.x);
        codec_read_zeros(&r, s.x_padded - s.x);
        msg.ids = bytes_read_view(&r.payload, s.ids);
        codec_read_zeros(&r, s.ids_padded - s.ids);
        msg.weights = bytes_read_view(&r.payload, s.ids);
    }
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

static void write_one_shot(struct bytes_writer *w, const struct msg_one_shot *parts)
{
    bytes_write_u64(w, parts->spawn_ns);
    bytes_write_u64(w, parts->map_ns);
    bytes_write_u64(w, parts->team_ns);
    bytes_write_u64(w, parts->run_ns);
    bytes_write_u64(w, parts->exit_ns);
}

static struct msg_one_shot read_one_shot(struct codec_reader *r)
{
    struct msg_one_shot parts = {.spawn_ns = codec_read_u64(r)};
    parts.map_ns = codec_read_u64(r);
    parts.team_ns = codec_read_u64(r);
    parts.run_ns = codec_read_u64(r);
    parts.exit_ns = codec_read_u64(r);
    return parts;
}

static size_t partial_bytes(const struct msg_step_done *msg)
{
    return (size_t)msg->tokens * msg->hidden * (msg->dtype == MSG_F32 ? 4 : 2);
}

static size_t fields_of(const struct msg_step_done *msg)
{
    return STEP_DONE_FIELDS + (msg->counted ? STEP_DONE_COUNTS : 0) + (msg->one_shot ? STEP_DONE_ONE_SHOT : 0);
}

int msg_step_done_head(uint8_t ret_head[MSG_STEP_DONE_HEAD_MAX], uint64_t request, const struct msg_step_done *msg, size_t *ret_bytes)
{
    if (msg->tokens > WIRE_STEP_TOKENS_MAX || msg->hidden == 0 || msg->hidden > WIRE_HIDDEN_MAX)
        return -EMSGSIZE;
    size_t fields = fields_of(msg), payload = fields + partial_bytes(msg);
    if (payload > WIRE_STEP_PAYLOAD_MAX)
        return -EMSGSIZE;
    frame_header_write(ret_head, WIRE_STEP_DONE, request, (uint32_t)payload);
    struct bytes_writer w = bytes_writer_init(ret_head + WIRE_FRAME_HEADER, fields);
    bytes_write_u64(&w, msg->duck_time_ns);
    bytes_write_u64(&w, msg->params);
    bytes_write_u64(&w, msg->weight_bytes);
    bytes_write_u32(&w, msg->tokens);
    bytes_write_u32(&w, msg->hidden);
    bytes_write_u64(&w, (uint64_t)msg->dtype | (msg->counted ? UINT64_C(1) << 8 | (uint64_t)msg->mode << 16 : 0) |
                            (uint64_t)msg->one_shot << 24);
    if (msg->counted) {
        bytes_write_u64(&w, msg->tiles);
        bytes_write_u64(&w, msg->tile_tokens);
    }
    if (msg->one_shot)
        write_one_shot(&w, &msg->parts);
    *ret_bytes = WIRE_FRAME_HEADER + fields;
    return 0;
}

int msg_step_done_encode(struct buf *buf, uint64_t request, const struct msg_step_done *msg, uint8_t **ret_partial)
{
    uint8_t head[MSG_STEP_DONE_HEAD_MAX];
    size_t bytes;
    int r = msg_step_done_head(head, request, msg, &bytes);
    if (r == 0)
        r = buf_reserve(buf, bytes + partial_bytes(msg), FRAME_BUFFER_MAX);
    if (r < 0)
        return r;
    memcpy(buf->data + buf->length, head, bytes);
    *ret_partial = buf->data + buf->length + bytes;
    buf->length += bytes + partial_bytes(msg);
    return 0;
}

int msg_step_done_decode(const struct frame *frame, struct msg_step_done *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_STEP_DONE, err);
    struct msg_step_done msg = {.duck_time_ns = codec_read_u64(&r)};
    msg.params = codec_read_u64(&r);
    msg.weight_bytes = codec_read_u64(&r);
    msg.tokens = codec_read_u32(&r, "tokens", 0, WIRE_STEP_TOKENS_MAX);
    msg.hidden = codec_read_u32(&r, "hidden", 1, WIRE_HIDDEN_MAX);
    msg.dtype = (enum msg_dtype)codec_read_u8(&r, "dtype", MSG_F32);
    msg.counted = codec_read_bool(&r, "counted");
    msg.mode = (uint8_t)codec_read_u8(&r, "mode", msg.counted ? MODE_MAX : 0);
    msg.one_shot = codec_read_bool(&r, "one_shot");
    codec_read_zeros(&r, 4);
    if (msg.counted) {
        msg.tiles = codec_read_u64(&r);
        msg.tile_tokens = codec_read_u64(&r);
    }
    if (msg.one_shot)
        msg.parts = read_one_shot(&r);
    if (r.code == 0 && !r.payload.failed) {
        size_t need = partial_bytes(&msg);
        if (need != bytes_reader_left(&r.payload))
            codec_refuse(&r, "tokens %u and hidden %u need %zu bytes, the frame holds %zu", msg.tokens, msg.hidden, need,
                         bytes_reader_left(&r.payload));
        msg.partial = bytes_read_view(&r.payload, need);
    }
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

#include "proto/wire/msg_cache.h"

#include "proto/wire/codec.h"

#define REKEY_BYTES (3 * DIGEST_SIZE + 4 + 1)
#define VERIFY_BYTES (DIGEST_SIZE + 4 + 1 + 8)
#define VERIFIED_BYTES (4 + 8 + 8 + 4 + 4)

int msg_rekey_encode(struct buf *buf, uint64_t request, const struct msg_rekey *msg)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_REKEY, request, REKEY_BYTES);
    if (r < 0)
        return r;
    bytes_write_copy(&w.payload, msg->from, DIGEST_SIZE);
    bytes_write_copy(&w.payload, msg->to, DIGEST_SIZE);
    bytes_write_u32(&w.payload, msg->layer);
    bytes_write_copy(&w.payload, msg->sources, DIGEST_SIZE);
    bytes_write_u8(&w.payload, msg->replace);
    return codec_end(&w);
}

int msg_rekey_decode(const struct frame *frame, struct msg_rekey *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_REKEY, err);
    struct msg_rekey msg = {0};
    bytes_read_copy(&r.payload, msg.from, DIGEST_SIZE);
    bytes_read_copy(&r.payload, msg.to, DIGEST_SIZE);
    msg.layer = codec_read_u32(&r, "layer", 0, UINT32_MAX);
    bytes_read_copy(&r.payload, msg.sources, DIGEST_SIZE);
    msg.replace = codec_read_bool(&r, "replace");
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_verify_encode(struct buf *buf, uint64_t request, const struct msg_verify *msg)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_VERIFY, request, VERIFY_BYTES);
    if (r < 0)
        return r;
    bytes_write_copy(&w.payload, msg->model_key, DIGEST_SIZE);
    bytes_write_u32(&w.payload, msg->layer);
    bytes_write_u8(&w.payload, msg->expected_given);
    bytes_write_u64(&w.payload, msg->expected);
    return codec_end(&w);
}

int msg_verify_decode(const struct frame *frame, struct msg_verify *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_VERIFY, err);
    struct msg_verify msg = {0};
    bytes_read_copy(&r.payload, msg.model_key, DIGEST_SIZE);
    msg.layer = codec_read_u32(&r, "layer", 0, UINT32_MAX);
    msg.expected_given = codec_read_bool(&r, "expected_given");
    msg.expected = codec_read_u64(&r);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_verified_encode(struct buf *buf, uint64_t request, const struct msg_verified *msg)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_VERIFIED, request, VERIFIED_BYTES);
    if (r < 0)
        return r;
    bytes_write_u32(&w.payload, (uint32_t)msg->verdict);
    bytes_write_u64(&w.payload, msg->bytes);
    bytes_write_u64(&w.payload, msg->checksum);
    bytes_write_u32(&w.payload, (uint32_t)msg->expert);
    bytes_write_u32(&w.payload, msg->parts);
    return codec_end(&w);
}

int msg_verified_decode(const struct frame *frame, struct msg_verified *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_VERIFIED, err);
    struct msg_verified msg = {0};
    msg.verdict = (enum msg_verdict)codec_read_u32(&r, "verdict", MSG_VERDICT_GOOD, MSG_VERDICT_ABSENT);
    msg.bytes = codec_read_u64(&r);
    msg.checksum = codec_read_u64(&r);
    msg.expert = (int32_t)codec_read_u32(&r, "expert", 0, UINT32_MAX);
    msg.parts = codec_read_u32(&r, "parts", 0, WIRE_EXPERTS_MAX + 1);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

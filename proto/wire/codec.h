/* What the msg_*.c files share: sized encoders and decoders with sentences. Private to proto/wire. */
#ifndef FP9_WIRE_CODEC_H
#define FP9_WIRE_CODEC_H

#include "proto/base/bytes.h"
#include "proto/wire/frame.h"

/* One frame being written; its payload size is known beforehand. */
struct codec_writer {
    struct buf *buf;
    int64_t offset; /* of the frame in buf */
    struct bytes_writer payload;
};

/* -EMSGSIZE when the payload is beyond the type's limit or the buffer full, -ENOMEM; the buffer is then as before. */
int codec_begin(struct codec_writer *w, struct buf *buf, enum wire_type type, uint64_t request, size_t payload);
/* Ends the frame. -EMSGSIZE, with the frame taken back, when the payload was not filled exactly. */
int codec_end(struct codec_writer *w);
size_t codec_string_size(const char *text);

/* One frame being read. The first thing found wrong sets err; later calls do nothing, so that a decoder asks once, at its end. */
struct codec_reader {
    const struct frame *frame;
    struct bytes_reader payload;
    struct err *err;
    int code; /* negative errno of the first refusal */
};

/* What is wrong, once: kept out of the way of what is right. */
__attribute__((cold)) void codec_refuse(struct codec_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A value that is not there is told by codec_reader_end as a short payload, not as a value out of range. */
static inline bool codec_sound(const struct codec_reader *r)
{
    return r->code == 0 && !r->payload.failed;
}

static inline struct codec_reader codec_reader_init(const struct frame *frame, enum wire_type type, struct err *err)
{
    struct codec_reader r = {.frame = frame, .payload = bytes_reader_init(frame->payload, frame->length), .err = err};
    if (frame->type != type)
        codec_refuse(&r, "a %s frame was expected", frame_type_name(type));
    return r;
}

static inline uint32_t codec_read_u32(struct codec_reader *r, const char *field, uint32_t low, uint32_t high)
{
    uint32_t value = bytes_read_u32(&r->payload);
    if (codec_sound(r) && (value < low || value > high))
        codec_refuse(r, "%s is %u, allowed are %u to %u", field, value, low, high);
    return value;
}

/* 0 .. high */
static inline uint8_t codec_read_u8(struct codec_reader *r, const char *field, uint8_t high)
{
    uint8_t value = bytes_read_u8(&r->payload);
    if (codec_sound(r) && value > high)
        codec_refuse(r, "%s is %u, allowed are 0 to %u", field, value, high);
    return value;
}

static inline bool codec_read_bool(struct codec_reader *r, const char *field)
{
    return codec_read_u8(r, field, 1) == 1;
}

static inline uint64_t codec_read_u64(struct codec_reader *r)
{
    return bytes_read_u64(&r->payload);
}

static inline void codec_read_zeros(struct codec_reader *r, size_t bytes)
{
    const uint8_t *view = bytes_read_view(&r->payload, bytes);
    for (size_t i = 0; view && i < bytes; i++)
        if (view[i])
            codec_refuse(r, "a padding byte is 0x%02x, it must be zero", view[i]);
}

/* 0, or -EPROTO: a refusal, a payload that ended early, left-over bytes. */
static inline int codec_reader_end(struct codec_reader *r)
{
    if (r->payload.failed)
        codec_refuse(r, "its payload of %u bytes ends before its fields do", r->frame->length);
    else if (bytes_reader_left(&r->payload))
        codec_refuse(r, "%zu of its %u payload bytes are left over", bytes_reader_left(&r->payload), r->frame->length);
    return r->code;
}

/* Text without control characters. */
void codec_read_string(struct codec_reader *r, const char *field, char *to, size_t size);

#endif

#include "proto/wire/codec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int codec_begin(struct codec_writer *w, struct buf *buf, enum wire_type type, uint64_t request, size_t payload)
{
    if (payload > frame_payload_max(type))
        return -EMSGSIZE;
    int r = buf_reserve(buf, WIRE_FRAME_HEADER + payload, FRAME_BUFFER_MAX);
    if (r < 0)
        return r;
    int64_t offset = frame_begin(buf, type, request);
    if (offset < 0)
        return (int)offset;
    *w = (struct codec_writer){.buf = buf, .offset = offset, .payload = bytes_writer_init(buf->data + buf->length, payload)};
    buf->length += payload;
    return 0;
}

int codec_end(struct codec_writer *w)
{
    if (w->payload.failed || w->payload.at != w->payload.end) {
        w->buf->length = (size_t)w->offset;
        return -EMSGSIZE;
    }
    return frame_end(w->buf, w->offset);
}

size_t codec_string_size(const char *text)
{
    return 2 + strlen(text);
}

void codec_refuse(struct codec_reader *r, const char *format, ...)
{
    if (r->code < 0)
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->code = err_set(r->err, -EPROTO, ERR_BAD_REQUEST, "%s frame: %s", frame_type_name(r->frame->type), text);
}

struct codec_reader codec_reader_init(const struct frame *frame, enum wire_type type, struct err *err)
{
    struct codec_reader r = {.frame = frame, .payload = bytes_reader_init(frame->payload, frame->length), .err = err};
    if (frame->type != type)
        codec_refuse(&r, "a %s frame was expected", frame_type_name(type));
    return r;
}

/* A value that is not there is told by codec_reader_end as a short payload, not as a value out of range. */
static bool sound(const struct codec_reader *r)
{
    return r->code == 0 && !r->payload.failed;
}

uint32_t codec_read_u32(struct codec_reader *r, const char *field, uint32_t low, uint32_t high)
{
    uint32_t value = bytes_read_u32(&r->payload);
    if (sound(r) && (value < low || value > high))
        codec_refuse(r, "%s is %u, allowed are %u to %u", field, value, low, high);
    return value;
}

uint8_t codec_read_u8(struct codec_reader *r, const char *field, uint8_t high)
{
    uint8_t value = bytes_read_u8(&r->payload);
    if (sound(r) && value > high)
        codec_refuse(r, "%s is %u, allowed are 0 to %u", field, value, high);
    return value;
}

bool codec_read_bool(struct codec_reader *r, const char *field)
{
    return codec_read_u8(r, field, 1) == 1;
}

uint64_t codec_read_u64(struct codec_reader *r)
{
    return bytes_read_u64(&r->payload);
}

void codec_read_string(struct codec_reader *r, const char *field, char *to, size_t size)
{
    struct bytes_reader before = r->payload;
    bool whole = sound(r);
    bytes_read_string(&r->payload, to, size);
    if (whole && r->payload.failed) {
        size_t length = bytes_read_u16(&before);
        if (!before.failed && bytes_reader_left(&before) >= length)
            codec_refuse(r, "%s is %zu bytes long or holds a NUL, allowed are %zu bytes of text", field, length, size - 1);
    }
    for (const unsigned char *p = (const unsigned char *)to; *p; p++)
        if (*p < 0x20 || *p == 0x7f)
            codec_refuse(r, "%s holds the control character 0x%02x", field, *p);
}

void codec_read_zeros(struct codec_reader *r, size_t bytes)
{
    const uint8_t *view = bytes_read_view(&r->payload, bytes);
    for (size_t i = 0; view && i < bytes; i++)
        if (view[i])
            codec_refuse(r, "a padding byte is 0x%02x, it must be zero", view[i]);
}

int codec_reader_end(struct codec_reader *r)
{
    if (r->payload.failed)
        codec_refuse(r, "its payload of %u bytes ends before its fields do", r->frame->length);
    else if (bytes_reader_left(&r->payload))
        codec_refuse(r, "%zu of its %u payload bytes are left over", bytes_reader_left(&r->payload), r->frame->length);
    return r->code;
}

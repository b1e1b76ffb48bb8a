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

void codec_read_string(struct codec_reader *r, const char *field, char *to, size_t size)
{
    struct bytes_reader before = r->payload;
    bool whole = codec_sound(r);
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

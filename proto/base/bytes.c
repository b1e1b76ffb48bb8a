#include "proto/base/bytes.h"

#include <endian.h>
#include <string.h>

struct bytes_reader bytes_reader_init(const void *data, size_t length)
{
    return (struct bytes_reader){.at = data, .end = (const uint8_t *)data + length};
}

size_t bytes_reader_left(const struct bytes_reader *r)
{
    return r->failed ? 0 : (size_t)(r->end - r->at);
}

bool bytes_reader_done(const struct bytes_reader *r)
{
    return !r->failed && r->at == r->end;
}

const uint8_t *bytes_read_view(struct bytes_reader *r, size_t n)
{
    if (r->failed || n > (size_t)(r->end - r->at)) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *view = r->at;
    r->at += n;
    return view;
}

void bytes_read_copy(struct bytes_reader *r, void *to, size_t n)
{
    const uint8_t *view = bytes_read_view(r, n);
    if (!view)
        memset(to, 0, n);
    else if (n)
        memcpy(to, view, n);
}

uint8_t bytes_read_u8(struct bytes_reader *r)
{
    uint8_t v;
    bytes_read_copy(r, &v, sizeof v);
    return v;
}

uint16_t bytes_read_u16(struct bytes_reader *r)
{
    uint16_t v;
    bytes_read_copy(r, &v, sizeof v);
    return le16toh(v);
}

uint32_t bytes_read_u32(struct bytes_reader *r)
{
    uint32_t v;
    bytes_read_copy(r, &v, sizeof v);
    return le32toh(v);
}

uint64_t bytes_read_u64(struct bytes_reader *r)
{
    uint64_t v;
    bytes_read_copy(r, &v, sizeof v);
    return le64toh(v);
}

float bytes_read_f32(struct bytes_reader *r)
{
    uint32_t bits = bytes_read_u32(r);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

void bytes_read_string(struct bytes_reader *r, char *to, size_t size)
{
    size_t n = bytes_read_u16(r);
    const uint8_t *view = bytes_read_view(r, n);
    if (!view || n >= size || memchr(view, 0, n)) {
        r->failed = true;
        to[0] = '\0';
        return;
    }
    if (n)
        memcpy(to, view, n);
    to[n] = '\0';
}

struct bytes_writer bytes_writer_init(void *data, size_t length)
{
    return (struct bytes_writer){.at = data, .end = (uint8_t *)data + length};
}

uint8_t *bytes_write_room(struct bytes_writer *w, size_t n)
{
    if (w->failed || n > (size_t)(w->end - w->at)) {
        w->failed = true;
        return NULL;
    }
    uint8_t *room = w->at;
    w->at += n;
    return room;
}

void bytes_write_copy(struct bytes_writer *w, const void *from, size_t n)
{
    uint8_t *room = bytes_write_room(w, n);
    if (room && n)
        memcpy(room, from, n);
}

void bytes_write_u8(struct bytes_writer *w, uint8_t v)
{
    bytes_write_copy(w, &v, sizeof v);
}

void bytes_write_u16(struct bytes_writer *w, uint16_t v)
{
    v = htole16(v);
    bytes_write_copy(w, &v, sizeof v);
}

void bytes_write_u32(struct bytes_writer *w, uint32_t v)
{
    v = htole32(v);
    bytes_write_copy(w, &v, sizeof v);
}

void bytes_write_u64(struct bytes_writer *w, uint64_t v)
{
    v = htole64(v);
    bytes_write_copy(w, &v, sizeof v);
}

void bytes_write_f32(struct bytes_writer *w, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    bytes_write_u32(w, bits);
}

void bytes_write_string(struct bytes_writer *w, const char *text)
{
    size_t n = strlen(text);
    if (n > UINT16_MAX) {
        w->failed = true;
        return;
    }
    bytes_write_u16(w, (uint16_t)n);
    bytes_write_copy(w, text, n);
}

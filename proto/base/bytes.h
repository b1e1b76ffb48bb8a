/* Little-endian cursors over memory. A reader never reads past its end: the first failure is sticky,
 * every later read gives zero, and the caller looks once, at `failed` or by bytes_reader_done(). A writer likewise.
 *
 * Inline, for frames of steps are read and written with them. */
#ifndef FP9_BASE_BYTES_H
#define FP9_BASE_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes_reader {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
};

struct bytes_writer {
    uint8_t *at;
    uint8_t *end;
    bool failed;
};

static inline struct bytes_reader bytes_reader_init(const void *data, size_t length)
{
    return (struct bytes_reader){.at = data, .end = (const uint8_t *)data + length};
}

static inline size_t bytes_reader_left(const struct bytes_reader *r)
{
    return r->failed ? 0 : (size_t)(r->end - r->at);
}

/* True when nothing failed and nothing is left over. */
static inline bool bytes_reader_done(const struct bytes_reader *r)
{
    return !r->failed && r->at == r->end;
}

/* Pointer into the memory, or NULL when fewer than n bytes are left. */
static inline const uint8_t *bytes_read_view(struct bytes_reader *r, size_t n)
{
    if (r->failed || n > (size_t)(r->end - r->at)) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *view = r->at;
    r->at += n;
    return view;
}

/* Zeros when short. */
static inline void bytes_read_copy(struct bytes_reader *r, void *to, size_t n)
{
    const uint8_t *view = bytes_read_view(r, n);
    if (!view)
        memset(to, 0, n);
    else if (n)
        memcpy(to, view, n);
}

static inline uint8_t bytes_read_u8(struct bytes_reader *r)
{
    uint8_t v;
    bytes_read_copy(r, &v, sizeof v);
    return v;
}

static inline uint16_t bytes_read_u16(struct bytes_reader *r)
{
    uint16_t v;
    bytes_read_copy(r, &v, sizeof v);
    return le16toh(v);
}

static inline uint32_t bytes_read_u32(struct bytes_reader *r)
{
    uint32_t v;
    bytes_read_copy(r, &v, sizeof v);
    return le32toh(v);
}

static inline uint64_t bytes_read_u64(struct bytes_reader *r)
{
    uint64_t v;
    bytes_read_copy(r, &v, sizeof v);
    return le64toh(v);
}

static inline float bytes_read_f32(struct bytes_reader *r)
{
    uint32_t bits = bytes_read_u32(r);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* u16 length + bytes into a NUL-terminated array; fails when it does not fit or holds a NUL. */
void bytes_read_string(struct bytes_reader *r, char *to, size_t size);

static inline struct bytes_writer bytes_writer_init(void *data, size_t length)
{
    return (struct bytes_writer){.at = data, .end = (uint8_t *)data + length};
}

/* Room for n bytes to be filled by the caller, or NULL. */
static inline uint8_t *bytes_write_room(struct bytes_writer *w, size_t n)
{
    if (w->failed || n > (size_t)(w->end - w->at)) {
        w->failed = true;
        return NULL;
    }
    uint8_t *room = w->at;
    w->at += n;
    return room;
}

static inline void bytes_write_copy(struct bytes_writer *w, const void *from, size_t n)
{
    uint8_t *room = bytes_write_room(w, n);
    if (room && n)
        memcpy(room, from, n);
}

static inline void bytes_write_u8(struct bytes_writer *w, uint8_t v)
{
    bytes_write_copy(w, &v, sizeof v);
}

static inline void bytes_write_u16(struct bytes_writer *w, uint16_t v)
{
    v = htole16(v);
    bytes_write_copy(w, &v, sizeof v);
}

static inline void bytes_write_u32(struct bytes_writer *w, uint32_t v)
{
    v = htole32(v);
    bytes_write_copy(w, &v, sizeof v);
}

static inline void bytes_write_u64(struct bytes_writer *w, uint64_t v)
{
    v = htole64(v);
    bytes_write_copy(w, &v, sizeof v);
}

static inline void bytes_write_f32(struct bytes_writer *w, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    bytes_write_u32(w, bits);
}

void bytes_write_string(struct bytes_writer *w, const char *text);

#endif

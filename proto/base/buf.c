#include "proto/base/buf.h"

#include <errno.h>
#include <string.h>

int buf_reserve(struct buf *buf, size_t more, size_t limit)
{
    if (buf->length > limit || more > limit - buf->length)
        return -EMSGSIZE;
    size_t need = buf->length + more;
    if (need <= buf->capacity)
        return 0;
    size_t capacity = buf->capacity ? buf->capacity : 256;
    while (capacity < need)
        capacity = capacity > limit / 2 ? limit : capacity * 2;
    uint8_t *data = realloc(buf->data, capacity);
    if (!data)
        return -ENOMEM;
    buf->data = data;
    buf->capacity = capacity;
    return 0;
}

int buf_append(struct buf *buf, const void *data, size_t length, size_t limit)
{
    int r = buf_reserve(buf, length, limit);
    if (r < 0)
        return r;
    if (length)
        memcpy(buf->data + buf->length, data, length);
    buf->length += length;
    return 0;
}

void buf_consume(struct buf *buf, size_t n)
{
    if (n < buf->length)
        memmove(buf->data, buf->data + n, buf->length - n);
    buf->length -= n < buf->length ? n : buf->length;
}

void buf_release(struct buf *buf)
{
    free(buf->data);
    *buf = (struct buf){0};
}

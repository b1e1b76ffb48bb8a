#include "proto/base/bytes.h"

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

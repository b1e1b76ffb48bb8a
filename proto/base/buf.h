/* A growable byte buffer with a limit. Zero-initialised is empty and valid. */
#ifndef FP9_BASE_BUF_H
#define FP9_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/cleanup.h"

struct buf {
    uint8_t *data;   /* owned */
    size_t length;   /* bytes in use */
    size_t capacity; /* bytes allocated */
};

/* Makes room for `more` bytes after length. -EMSGSIZE when length + more would pass `limit`, -ENOMEM. */
int buf_reserve(struct buf *buf, size_t more, size_t limit);
int buf_append(struct buf *buf, const void *data, size_t length, size_t limit);
/* Drops the first n bytes (n <= length) and moves the rest down. */
void buf_consume(struct buf *buf, size_t n);
/* Frees the memory and leaves an empty buffer. */
void buf_release(struct buf *buf);

#endif

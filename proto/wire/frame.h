/* Frames: header codec and an incremental reader (a frame may arrive in any pieces). */
#ifndef FP9_WIRE_FRAME_H
#define FP9_WIRE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/buf.h"
#include "proto/base/err.h"
#include "proto/wire/wire.h"

struct frame {
    enum wire_type type;
    uint64_t request;
    uint32_t length;
    const uint8_t *payload; /* view; valid until the next call on its reader */
};

const char *frame_type_name(enum wire_type type); /* "STEP"; "?" for an unknown one */
uint32_t frame_payload_max(enum wire_type type);  /* 0 for an unknown type */

/* Begins a frame in `buf` (header with length 0); returns its offset or a negative errno. frame_end() fills in the length. */
int64_t frame_begin(struct buf *buf, enum wire_type type, uint64_t request);
int frame_end(struct buf *buf, int64_t offset);

/* Collects bytes from a stream socket and gives whole frames. Zero-initialised is empty. */
struct frame_reader {
    struct buf buf;
    size_t taken; /* bytes at the front that the last frame occupied */
};

/* Room to read into: *ret_room bytes at the returned address (at least the rest of the current frame, up to a limit); NULL when out of memory. */
uint8_t *frame_reader_room(struct frame_reader *reader, size_t *ret_room);
void frame_reader_added(struct frame_reader *reader, size_t bytes);
/* 1 and *ret_frame, 0 when no whole frame is there, -EPROTO with a sentence (bad magic, unknown type, too long). */
int frame_reader_next(struct frame_reader *reader, struct frame *ret_frame, struct err *err);
void frame_reader_release(struct frame_reader *reader);

#endif

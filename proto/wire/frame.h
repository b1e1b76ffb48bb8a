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
    const uint8_t *payload; /* view, 8-byte aligned; valid until the next call on its reader */
};

const char *frame_type_name(enum wire_type type); /* "STEP"; "?" for an unknown one */
uint32_t frame_payload_max(enum wire_type type);  /* 0 for an unknown type */

/* The WIRE_FRAME_HEADER bytes at the front of a frame: type, request and length, payload NULL. -EPROTO with a sentence. */
int frame_header_parse(const uint8_t *header, struct frame *ret_frame, struct err *err);

/* Writes those bytes. */
void frame_header_write(uint8_t *header, enum wire_type type, uint64_t request, uint32_t length);

#define FRAME_BUFFER_MAX (UINT32_C(1) << 30) /* bytes of frames that may wait in one buffer; beyond it encoders give -EMSGSIZE */

/* Begins a frame in `buf` (header with length 0); returns its offset or a negative errno. frame_end() fills in the length:
 * -EMSGSIZE when that is beyond the type's limit, and the frame is taken out of the buffer again. */
int64_t frame_begin(struct buf *buf, enum wire_type type, uint64_t request);
int frame_end(struct buf *buf, int64_t offset);

/* Collects bytes from a stream socket and gives whole frames. Zero-initialised is empty. */
struct frame_reader {
    struct buf buf;
    size_t taken; /* bytes at the front that were given out as frames */
};

/* Room to read into: *ret_room bytes at the returned address (the rest of the current frame or a little read-ahead, at most some MiB at a
 * time, so that a header alone makes nobody allocate what it claims); NULL when out of memory. */
uint8_t *frame_reader_room(struct frame_reader *reader, size_t *ret_room);
void frame_reader_added(struct frame_reader *reader, size_t bytes);
/* 1 and *ret_frame, 0 when no whole frame is there, -EPROTO with a sentence (bad magic, unknown type, too long). */
int frame_reader_next(struct frame_reader *reader, struct frame *ret_frame, struct err *err);
void frame_reader_release(struct frame_reader *reader);

#endif

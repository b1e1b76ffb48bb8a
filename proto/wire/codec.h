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

struct codec_reader codec_reader_init(const struct frame *frame, enum wire_type type, struct err *err);
uint32_t codec_read_u32(struct codec_reader *r, const char *field, uint32_t low, uint32_t high);
bool codec_read_bool(struct codec_reader *r, const char *field);
uint8_t codec_read_u8(struct codec_reader *r, const char *field, uint8_t high); /* 0 .. high */
uint64_t codec_read_u64(struct codec_reader *r);
/* Text without control characters. */
void codec_read_string(struct codec_reader *r, const char *field, char *to, size_t size);
void codec_read_zeros(struct codec_reader *r, size_t bytes);
void codec_refuse(struct codec_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* 0, or -EPROTO: a refusal, a payload that ended early, left-over bytes. */
int codec_reader_end(struct codec_reader *r);

#endif

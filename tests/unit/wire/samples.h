/* One good frame of every type, with every field set to something that shows. */
#ifndef FP9_TESTS_WIRE_SAMPLES_H
#define FP9_TESTS_WIRE_SAMPLES_H

#include "proto/wire/msg_buffer.h"
#include "proto/wire/msg_cache.h"
#include "proto/wire/msg_hello.h"
#include "proto/wire/msg_staged.h"
#include "proto/wire/msg_step.h"

#define SAMPLES 32
#define SAMPLES_STAGE_BYTES (64 + 15 * 7 + 5) /* just enough for the sample of PREPARE_STAGED */

/* Appends them all; offsets[i] is where frame i begins, offsets[SAMPLES] the end. Aborts when an encoder fails. */
void samples_make(struct buf *buf, size_t offsets[SAMPLES + 1]);

/* The frame in its encoded bytes, payload 8-byte aligned when data is. Aborts when the bytes are no frame. */
struct frame samples_frame(const uint8_t *data, size_t length);

/* Decodes with the type's decoder and frees what it gave. */
int samples_decode(const struct frame *frame, struct err *err);

extern const struct msg_prepare_begin samples_begin;
extern const struct msg_slot samples_slot;

#endif

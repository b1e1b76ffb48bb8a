/* Frames as text, for debugging and tests. */
#ifndef FP9_WIRE_DUMP_H
#define FP9_WIRE_DUMP_H

#include "proto/wire/frame.h"

#define WIRE_DUMP_MAX 512

/* One line without a newline, cut to size: "STEP #7 48 bytes: session 3 layer 1 tokens 1 top_k 2 hidden 4"; for a payload that does
 * not decode the decoder's sentence stands after "BAD". Any frame that a reader gave is safe here. Returns `text`. */
const char *wire_dump(const struct frame *frame, char *text, size_t size);

#endif

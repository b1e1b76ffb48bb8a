/* Base64 (RFC 4648, with padding) for small tensors that travel inside a JSON line. Strict: no blanks, no other alphabet, no bits left
 * over. */
#ifndef FP9_CONTROL_B64_H
#define FP9_CONTROL_B64_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

#define B64_BYTES_MAX 65536 /* decoded bytes of one tensor */

/* Characters of `bytes` encoded, without the NUL. */
#define B64_TEXT_LENGTH(bytes) (((bytes) + 2) / 3 * 4)

/* Writes B64_TEXT_LENGTH(length) characters and a NUL to `to`. */
void b64_encode(const void *data, size_t length, char *to);

/* Decodes exactly `expected` bytes into `to`. BAD_SHAPE when the text holds another count (values "expected", "found"),
 * BAD_REQUEST when it is no base64 or more than B64_BYTES_MAX. `to` is written on success only. */
int b64_decode(const char *text, size_t text_length, void *to, size_t expected, struct err *err);

#endif

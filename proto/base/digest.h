/* SHA-256, for identity: model keys, source tensors. For integrity: checksum.h. */
#ifndef FP9_BASE_DIGEST_H
#define FP9_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIGEST_SIZE 32
#define DIGEST_HEX_SIZE (2 * DIGEST_SIZE + 1) /* with the NUL */

struct digest; /* a running SHA-256; one thread at a time */

struct digest *digest_new(void); /* NULL when out of memory */
void digest_free(struct digest *digest);
void digest_update(struct digest *digest, const void *data, size_t length);
void digest_update_u64(struct digest *digest, uint64_t value); /* as 8 little-endian bytes */
void digest_update_string(struct digest *digest, const char *text); /* with its NUL, so that fields cannot run together */
/* Gives the digest and starts anew. */
void digest_finish(struct digest *digest, uint8_t ret_digest[DIGEST_SIZE]);

/* 64 lower-case hex digits; false for anything else. */
bool digest_parse(const char *hex, uint8_t ret_digest[DIGEST_SIZE]);
void digest_hex(const uint8_t digest[DIGEST_SIZE], char ret_hex[DIGEST_HEX_SIZE]);

#endif

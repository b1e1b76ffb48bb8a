/* SHA-256's block function with the x86 SHA instructions, for one stream or two at once, which take turns in the unit. */
#ifndef FP9_BASE_SHA256_NI_H
#define FP9_BASE_SHA256_NI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHA256_BLOCK 64

bool sha256_ni_here(void);
/* `blocks` blocks of each stream; the states are a .. h. To be called only where they are there. */
void sha256_ni_one(uint32_t state[8], const uint8_t *data, size_t blocks);
void sha256_ni_two(uint32_t state_a[8], const uint8_t *a, uint32_t state_b[8], const uint8_t *b, size_t blocks);

#endif

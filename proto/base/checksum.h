/* XXH3-64, for integrity: slot checksums. For identity: digest.h. */
#ifndef FP9_BASE_CHECKSUM_H
#define FP9_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Of one range, seed 0. */
uint64_t checksum_of(const void *data, size_t length);

struct checksum; /* the same in pieces; one thread at a time */
struct checksum *checksum_new(void); /* NULL when out of memory */
void checksum_free(struct checksum *checksum);
void checksum_update(struct checksum *checksum, const void *data, size_t length);
uint64_t checksum_finish(struct checksum *checksum); /* and starts anew */

#endif

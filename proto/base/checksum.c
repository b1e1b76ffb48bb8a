#include "proto/base/checksum.h"

#include <xxhash.h>
/* The library's own choice by CPU, where it has one: its plain functions are SSE2 code. The sums are the same. */
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

uint64_t checksum_of(const void *data, size_t length)
{
    return XXH3_64bits(data, length);
}

/* XXH3's state is a type of its own that only its pointers name here. */
struct checksum *checksum_new(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state)
        XXH3_64bits_reset(state);
    return (struct checksum *)state;
}

void checksum_free(struct checksum *checksum)
{
    XXH3_freeState((XXH3_state_t *)checksum);
}

void checksum_update(struct checksum *checksum, const void *data, size_t length)
{
    XXH3_64bits_update((XXH3_state_t *)checksum, data, length);
}

uint64_t checksum_finish(struct checksum *checksum)
{
    uint64_t sum = XXH3_64bits_digest((XXH3_state_t *)checksum);
    XXH3_64bits_reset((XXH3_state_t *)checksum);
    return sum;
}

/* Pure reads: what the memory gives when nothing is computed. No one way of reading is the fastest everywhere, so there are several. */
#ifndef FP9_TESTS_BENCH_READER_H
#define FP9_TESTS_BENCH_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define READERS_MAX 8

struct reader {
    const char *name;
    /* Reads every byte of [data, data + bytes), 64-byte aligned, bytes a multiple of 64; returns something that depends on them. */
    uint64_t (*read)(const uint8_t *data, size_t bytes);
};

/* Those that run on this CPU; returns how many. */
size_t readers_all(struct reader ret_readers[READERS_MAX]);

#endif

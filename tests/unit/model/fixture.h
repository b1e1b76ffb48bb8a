/* A copy of the trained checkpoint in a directory of its own, to be broken by code. */
#ifndef FP9_TESTS_MODEL_FIXTURE_H
#define FP9_TESTS_MODEL_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#define FIXTURE_SHARD1 "model-00001-of-00002.safetensors"
#define FIXTURE_SHARD2 "model-00002-of-00002.safetensors"
#define FIXTURE_INDEX "model.safetensors.index.json"

/* cmocka set-up and tear-down: *state is the directory (char *). */
int fixture_make(void **state);
int fixture_remove(void **state);

/* "DIR/NAME" in one of a few static buffers. */
const char *fixture_path(const char *dir, const char *name);
/* Whole file, malloced, with a NUL after its end. Any failure here fails the test. */
uint8_t *fixture_read(const char *path, size_t *ret_length);
void fixture_write(const char *path, const void *bytes, size_t length);
/* Replaces the first `from` in a text file, which must be there. */
void fixture_replace(const char *path, const char *from, const char *to);
/* The same in a safetensors header, whose length may change. */
void fixture_replace_header(const char *path, const char *from, const char *to);
/* Where a tensor's data begin in the file (from its header text). */
size_t fixture_offset(const char *path, const char *tensor);
/* Overwrites bytes in the middle. */
void fixture_poke(const char *path, size_t offset, const void *bytes, size_t length);

#endif

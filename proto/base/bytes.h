/* Little-endian cursors over memory. A reader never reads past its end: the first failure is sticky,
 * every later read gives zero, and the caller asks bytes_reader_ok() once. A writer likewise. */
#ifndef FP9_BASE_BYTES_H
#define FP9_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes_reader {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
};

struct bytes_writer {
    uint8_t *at;
    uint8_t *end;
    bool failed;
};

struct bytes_reader bytes_reader_init(const void *data, size_t length);
size_t bytes_reader_left(const struct bytes_reader *r);
/* True when nothing failed and nothing is left over. */
bool bytes_reader_done(const struct bytes_reader *r);

uint8_t bytes_read_u8(struct bytes_reader *r);
uint16_t bytes_read_u16(struct bytes_reader *r);
uint32_t bytes_read_u32(struct bytes_reader *r);
uint64_t bytes_read_u64(struct bytes_reader *r);
float bytes_read_f32(struct bytes_reader *r);
/* Pointer into the memory, or NULL when fewer than n bytes are left. */
const uint8_t *bytes_read_view(struct bytes_reader *r, size_t n);
void bytes_read_copy(struct bytes_reader *r, void *to, size_t n); /* zeros when short */
/* u16 length + bytes into a NUL-terminated array; fails when it does not fit or holds a NUL. */
void bytes_read_string(struct bytes_reader *r, char *to, size_t size);

struct bytes_writer bytes_writer_init(void *data, size_t length);
void bytes_write_u8(struct bytes_writer *w, uint8_t v);
void bytes_write_u16(struct bytes_writer *w, uint16_t v);
void bytes_write_u32(struct bytes_writer *w, uint32_t v);
void bytes_write_u64(struct bytes_writer *w, uint64_t v);
void bytes_write_f32(struct bytes_writer *w, float v);
void bytes_write_copy(struct bytes_writer *w, const void *from, size_t n);
void bytes_write_string(struct bytes_writer *w, const char *text);
/* Room for n bytes to be filled by the caller, or NULL. */
uint8_t *bytes_write_room(struct bytes_writer *w, size_t n);

#endif

/* safetensors files: a strict reader of the header with reads by tensor, and a small writer.
 *
 * A file is: u64 little-endian header length N; N bytes of JSON, {"name":{"dtype":"F32","shape":[2,3],"data_offsets":[begin,end]},...,
 * "__metadata__":{string:string}}, perhaps padded with spaces; then the data. data_offsets count from the end of the header. The ranges
 * cover the data without holes or overlaps; tensors may stand in any order and unaligned; shapes [] (one element) and [0] are legal.
 *
 * Nothing in a file is believed before it is checked, memory grows only with header bytes that were really read, and files are never
 * mapped, so that one that shrinks gives an error and not SIGBUS. Errors are BAD_CHECKPOINT with file, tensor and numbers.
 *
 * Threads: an open file belongs to one thread at a time; look-ups alone may come from several. */
#ifndef FP9_BASE_SAFETENSORS_H
#define FP9_BASE_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/buf.h"
#include "proto/base/cleanup.h"
#include "proto/base/digest.h"
#include "proto/base/err.h"

#define SAFETENSORS_HEADER_MAX 100000000u
#define SAFETENSORS_TENSORS_MAX (1u << 20)
#define SAFETENSORS_NAME_MAX 512 /* bytes, without the NUL */
#define SAFETENSORS_DIMS_MAX 8
#define SAFETENSORS_DTYPE_MAX 24 /* with the NUL */

enum safetensors_dtype {
    SAFETENSORS_OTHER, /* a name this version does not know: its range was checked, its size could not be */
    SAFETENSORS_BOOL,
    SAFETENSORS_F4,
    SAFETENSORS_F6_E2M3,
    SAFETENSORS_F6_E3M2,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_F8_E4M3FNUZ,
    SAFETENSORS_F8_E5M2FNUZ,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F32,
    SAFETENSORS_C64,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_U64,
    SAFETENSORS_DTYPES_,
};
const char *safetensors_dtype_name(enum safetensors_dtype dtype);
uint32_t safetensors_dtype_bits(enum safetensors_dtype dtype); /* of one element; 0 for SAFETENSORS_OTHER */
enum safetensors_dtype safetensors_dtype_find(const char *name);

struct safetensors_tensor {
    const char *name;
    enum safetensors_dtype dtype;
    char dtype_name[SAFETENSORS_DTYPE_MAX]; /* as the file has it */
    uint32_t dims;
    uint64_t shape[SAFETENSORS_DIMS_MAX]; /* [dims] */
    uint64_t begin, end;                  /* bytes from the start of the data */
};
/* "[48, 16]"; returns `text`. */
const char *safetensors_shape_format(const struct safetensors_tensor *tensor, char *text, size_t size);

struct safetensors; /* one file */

/* Opens and checks a regular file (a FIFO or device is refused without waiting on it). The file stays open. NO_SUCH when it is not
 * there. */
int safetensors_open(const char *path, struct safetensors **ret_file, struct err *err);
/* The same from a memfd that nobody can change any more: sealed against shrinking and writing (F_SEAL_WRITE), refused otherwise
 * (BAD_REQUEST). `name` stands for a path in messages. The descriptor is not taken: another one of the same memory is kept. */
int safetensors_check_sealed(int fd, const char *name, struct err *err);
int safetensors_open_sealed(int fd, const char *name, struct safetensors **ret_file, struct err *err);
void safetensors_free(struct safetensors *file);
CLEANUP_DEFINE(struct safetensors *, safetensors_free);

const char *safetensors_path(const struct safetensors *file);
uint64_t safetensors_data_offset(const struct safetensors *file); /* of the data's first byte in the file */
size_t safetensors_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_at(const struct safetensors *file, size_t i);           /* by ascending name; i < count */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name); /* NULL when there is none */

/* What the file was when it was opened. */
struct safetensors_identity {
    uint64_t device, inode, size;
    int64_t mtime_ns, ctime_ns;
    uint8_t header[DIGEST_SIZE]; /* SHA-256 of the length and the header bytes */
};
const struct safetensors_identity *safetensors_identity(const struct safetensors *file);

/* Reads `length` bytes at `offset` of a tensor (offset + length within it). Fails when the file is short or is no longer what it was
 * when opened. */
int safetensors_read(struct safetensors *file, const struct safetensors_tensor *tensor, uint64_t offset, uint64_t length, void *to,
                     struct err *err);

/* For those who hold many: closes the descriptor; the next read opens the path anew and refuses another file. */
void safetensors_park(struct safetensors *file);
bool safetensors_parked(const struct safetensors *file);

/* ---- writing ---------------------------------------------------------------------------------- */

struct safetensors_item {
    const char *name; /* without control characters; at most SAFETENSORS_NAME_MAX bytes */
    enum safetensors_dtype dtype;
    uint32_t dims;
    const uint64_t *shape;
    const void *data; /* safetensors_item_bytes of them; not looked at by safetensors_format_header */
};
/* Bytes of an item's data; -EINVAL BAD_SHAPE when dims or the product is out of range or no whole number of bytes. */
int safetensors_item_bytes(const struct safetensors_item *item, uint64_t *ret_bytes, struct err *err);

/* Appends length and header of a file whose data are these items one after another; padded with spaces to a multiple of 8 bytes. */
int safetensors_format_header(const struct safetensors_item *items, size_t count, struct buf *header, struct err *err);

/* Writes a whole file beside `path` and renames it there: whoever looks sees the old file or all of the new one. */
int safetensors_write(const char *path, const struct safetensors_item *items, size_t count, struct err *err);

#endif

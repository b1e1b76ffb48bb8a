#include "proto/base/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/base/safetensors_table.h"
#include "proto/base/size.h"

#define PIECE_BYTES (256 * 1024)
#define READ_MAX (UINT64_C(1) << 30) /* one pread; Linux moves at most 2 GiB at once */

typedef unsigned long long ull; /* for %llu */

struct safetensors {
    char *path; /* owned */
    int fd;     /* -1 while parked */
    struct safetensors_identity identity;
    uint64_t data_offset;
    struct safetensors_table table;
};

static const char lfs_start[] = "version https://git-lfs";

static int bad(const struct safetensors *file, struct err *err)
{
    err_value_str(err, "file", file->path);
    return -EINVAL;
}

static int64_t nanoseconds(struct timespec time)
{
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static struct safetensors_identity identity_of(const struct stat *st)
{
    return (struct safetensors_identity){
        .device = st->st_dev,
        .inode = st->st_ino,
        .size = (uint64_t)st->st_size,
        .mtime_ns = nanoseconds(st->st_mtim),
        .ctime_ns = nanoseconds(st->st_ctim),
    };
}

static bool same(const struct safetensors_identity *a, const struct safetensors_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size && a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

static int open_file(struct safetensors *file, struct stat *ret_stat, struct err *err)
{
    /* O_NONBLOCK: opening a FIFO that nobody writes must not hang. */
    _cleanup_(closep) int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, ret_stat) < 0)
        return err_errno(err, "%s", file->path);
    if (!S_ISREG(ret_stat->st_mode)) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s is not a regular file", file->path);
        return bad(file, err);
    }
    file->fd = STEAL_FD(fd);
    return 0;
}

static int changed(const struct safetensors *file, const struct safetensors_identity *now, struct err *err)
{
    if (now->size != file->identity.size)
        err_set(err, -ESTALE, ERR_BAD_CHECKPOINT, "%s changed while it was in use: it had %llu byte%s, now it has %llu", file->path,
                (ull)file->identity.size, size_plural(file->identity.size), (ull)now->size);
    else
        err_set(err, -ESTALE, ERR_BAD_CHECKPOINT, "%s changed while it was in use: it was written or replaced", file->path);
    err_value_str(err, "file", file->path);
    return -ESTALE;
}

static int check_unchanged(const struct safetensors *file, struct err *err)
{
    struct stat st;
    if (fstat(file->fd, &st) < 0)
        return err_errno(err, "%s", file->path);
    struct safetensors_identity now = identity_of(&st);
    return same(&now, &file->identity) ? 0 : changed(file, &now, err);
}

/* Whole or failed. */
static int read_at(const struct safetensors *file, uint64_t offset, void *to, uint64_t length, struct err *err)
{
    uint8_t *at = to;
    while (length > 0) {
        ssize_t n = pread(file->fd, at, length < READ_MAX ? length : READ_MAX, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, "%s: read at %llu", file->path, (ull)offset);
        if (n == 0) {
            err_set(err, -ESTALE, ERR_BAD_CHECKPOINT, "%s: ends at %llu, %llu more byte%s expected: it shrank while it was in use",
                    file->path, (ull)offset, (ull)length, length == 1 ? " was" : "s were");
            err_value_str(err, "file", file->path);
            return -ESTALE;
        }
        at += n;
        offset += (uint64_t)n;
        length -= (uint64_t)n;
    }
    return 0;
}

/* The first bytes: a Git LFS pointer, a length that cannot be, a header that is cut. */
static int read_length(const struct safetensors *file, uint64_t *ret_length, struct err *err)
{
    uint8_t start[sizeof lfs_start - 1] = {0};
    uint64_t size = file->identity.size;
    int r = read_at(file, 0, start, size < sizeof start ? size : sizeof start, err);
    if (r < 0)
        return r;
    if (memcmp(start, lfs_start, sizeof start) == 0) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s looks like a Git LFS pointer, 'git lfs pull' was not run", file->path);
        return bad(file, err);
    }
    if (size < sizeof(uint64_t)) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: truncated: expected at least 8 bytes, the file has %llu", file->path, (ull)size);
        return bad(file, err);
    }
    uint64_t length;
    memcpy(&length, start, sizeof length);
    length = le64toh(length);
    if (length > SAFETENSORS_HEADER_MAX) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: header of %llu bytes, the limit is %u: not a safetensors file?", file->path,
                (ull)length, SAFETENSORS_HEADER_MAX);
        return bad(file, err);
    }
    if (length > size - sizeof length) {
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT,
                "%s: truncated in the header (incomplete download?): expected at least %llu bytes, the file has %llu", file->path,
                (ull)(length + sizeof length), (ull)size);
        err_value_int(err, "expected", (long long)(length + sizeof length));
        err_value_int(err, "actual", (long long)size);
        return bad(file, err);
    }
    *ret_length = length;
    return 0;
}

static int read_header(struct safetensors *file, struct err *err)
{
    uint64_t length;
    int r = read_length(file, &length, err);
    if (r < 0)
        return r;
    _cleanup_(freep) uint8_t *piece = malloc(PIECE_BYTES);
    _cleanup_(safetensors_parser_freep) struct safetensors_parser *parser = safetensors_parser_new(file->path, &file->table);
    struct digest *digest = digest_new();
    if (!piece || !parser || !digest) {
        digest_free(digest);
        return err_no_memory(err, file->path, PIECE_BYTES);
    }
    digest_update_u64(digest, length);
    for (uint64_t at = 0; at < length && r == 0;) {
        size_t n = length - at < PIECE_BYTES ? (size_t)(length - at) : PIECE_BYTES;
        r = read_at(file, sizeof length + at, piece, n, err);
        if (r == 0 && at == 0 && piece[0] != '{') {
            err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: header begins with byte 0x%02x, not with '{'", file->path, piece[0]);
            r = bad(file, err);
        }
        if (r == 0) {
            digest_update(digest, piece, n);
            r = safetensors_parser_feed(parser, piece, n, err);
        }
        at += n;
    }
    if (r == 0)
        r = safetensors_parser_finish(parser, err);
    digest_finish(digest, file->identity.header);
    digest_free(digest);
    if (r < 0)
        return r;
    file->data_offset = sizeof length + length;
    return safetensors_table_check(&file->table, file->path, file->identity.size - file->data_offset, err);
}

/* F_SEAL_FUTURE_WRITE would not do: mappings that were there before may still be written through. */
int safetensors_check_sealed(int fd, const char *name, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(err, "%s", name);
    int seals = S_ISREG(st.st_mode) ? fcntl(fd, F_GET_SEALS) : -1;
    if (seals < 0)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: is no memfd", name);
    bool shrink = seals & F_SEAL_SHRINK, write = seals & F_SEAL_WRITE;
    if (shrink && write)
        return 0;
    return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: is not sealed against %s: F_SEAL_SHRINK and F_SEAL_WRITE are needed", name,
                   shrink  ? "writing"
                   : write ? "shrinking"
                           : "shrinking and writing");
}

static int take_sealed(struct safetensors *file, int fd, struct stat *ret_stat, struct err *err)
{
    int r = safetensors_check_sealed(fd, file->path, err);
    if (r < 0)
        return r;
    file->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    return file->fd < 0 || fstat(file->fd, ret_stat) < 0 ? err_errno(err, "%s", file->path) : 0;
}

/* fd -1: the file at `path`. */
static int open_any(const char *path, int fd, struct safetensors **ret_file, struct err *err)
{
    _cleanup_(safetensors_freep) struct safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return err_no_memory(err, path, sizeof *file);
    file->fd = -1;
    file->path = strdup(path);
    if (!file->path)
        return err_no_memory(err, path, strlen(path));
    struct stat st;
    int r = fd < 0 ? open_file(file, &st, err) : take_sealed(file, fd, &st, err);
    if (r < 0)
        return r;
    file->identity = identity_of(&st);
    r = read_header(file, err);
    if (r == 0)
        r = check_unchanged(file, err);
    if (r < 0)
        return r;
    *ret_file = STEAL(file);
    return 0;
}

int safetensors_open(const char *path, struct safetensors **ret_file, struct err *err)
{
    return open_any(path, -1, ret_file, err);
}

int safetensors_open_sealed(int fd, const char *name, struct safetensors **ret_file, struct err *err)
{
    return open_any(name, fd, ret_file, err);
}

void safetensors_free(struct safetensors *file)
{
    if (!file)
        return;
    closep(&file->fd);
    safetensors_table_release(&file->table);
    free(file->path);
    free(file);
}

const char *safetensors_path(const struct safetensors *file)
{
    return file->path;
}

uint64_t safetensors_data_offset(const struct safetensors *file)
{
    return file->data_offset;
}

size_t safetensors_count(const struct safetensors *file)
{
    return file->table.count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *file, size_t i)
{
    return &file->table.tensors[i];
}

static int name_against(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct safetensors_tensor *)tensor)->name);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    if (file->table.count == 0)
        return NULL;
    return bsearch(name, file->table.tensors, file->table.count, sizeof *file->table.tensors, name_against);
}

const struct safetensors_identity *safetensors_identity(const struct safetensors *file)
{
    return &file->identity;
}

static int unpark(struct safetensors *file, struct err *err)
{
    struct stat st;
    int r = open_file(file, &st, err);
    return r < 0 ? r : check_unchanged(file, err);
}

int safetensors_read(struct safetensors *file, const struct safetensors_tensor *tensor, uint64_t offset, uint64_t length, void *to,
                     struct err *err)
{
    uint64_t bytes = tensor->end - tensor->begin;
    if (offset > bytes || length > bytes - offset) {
        err_set(err, -EINVAL, ERR_INTERNAL, "%s: tensor %s has %llu bytes, asked for %llu at %llu", file->path, tensor->name, (ull)bytes,
                (ull)length, (ull)offset);
        return -EINVAL;
    }
    int r = file->fd < 0 ? unpark(file, err) : 0;
    if (r == 0)
        r = read_at(file, file->data_offset + tensor->begin + offset, to, length, err);
    /* Asked after the read: what was read is then known to be of the file that was opened. */
    if (r == 0)
        r = check_unchanged(file, err);
    return r;
}

void safetensors_park(struct safetensors *file)
{
    closep(&file->fd);
}

bool safetensors_parked(const struct safetensors *file)
{
    return file->fd < 0;
}

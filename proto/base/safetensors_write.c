#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/base/bytes.h"
#include "proto/base/safetensors.h"
#include "proto/base/size.h"

int safetensors_item_bytes(const struct safetensors_item *item, uint64_t *ret_bytes, struct err *err)
{
    uint64_t bits = safetensors_dtype_bits(item->dtype);
    bool ok = item->dims <= SAFETENSORS_DIMS_MAX && bits != 0;
    for (uint32_t i = 0; i < item->dims && ok; i++)
        ok = size_mul(bits, item->shape[i], &bits);
    if (!ok || bits % 8 != 0)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "tensor %s: %s with %u dimensions has no size that a file can hold", item->name,
                       safetensors_dtype_name(item->dtype), item->dims);
    *ret_bytes = bits / 8;
    return 0;
}

static int append(struct buf *header, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int append(struct buf *header, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return buf_append(header, text, (size_t)n, SAFETENSORS_HEADER_MAX + sizeof(uint64_t));
}

static int append_name(struct buf *header, const char *name, struct err *err)
{
    size_t length = strlen(name);
    if (length == 0 || length > SAFETENSORS_NAME_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "tensor name \"%.64s\" has %zu bytes, 1 to %d are possible", name, length,
                       SAFETENSORS_NAME_MAX);
    int r = append(header, "\"");
    for (; *name && r == 0; name++) {
        if ((unsigned char)*name < 0x20 || *name == 0x7f)
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "a tensor's name has a control character in it");
        r = append(header, *name == '"' || *name == '\\' ? "\\%c" : "%c", *name);
    }
    return r < 0 ? r : append(header, "\"");
}

static int append_item(struct buf *header, const struct safetensors_item *item, uint64_t begin, uint64_t end, struct err *err)
{
    int r = append_name(header, item->name, err);
    if (r == 0)
        r = append(header, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype_name(item->dtype));
    for (uint32_t i = 0; i < item->dims && r == 0; i++)
        r = append(header, "%s%llu", i ? "," : "", (unsigned long long)item->shape[i]);
    if (r == 0)
        r = append(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin, (unsigned long long)end);
    return r;
}

int safetensors_format_header(const struct safetensors_item *items, size_t count, struct buf *header, struct err *err)
{
    size_t start = header->length;
    struct err quiet = {0};
    err = err ? err : &quiet;
    err->code = 0;
    int r = append(header, "        {\"__metadata__\":{\"format\":\"pt\"}");
    uint64_t begin = 0;
    for (size_t i = 0; i < count && r == 0; i++) {
        uint64_t bytes = 0, end = 0;
        r = safetensors_item_bytes(&items[i], &bytes, err);
        if (r == 0 && !size_add(begin, bytes, &end))
            r = err_set(err, -EINVAL, ERR_BAD_SHAPE, "tensor %s: more than 2^64 bytes in one file", items[i].name);
        if (r == 0)
            r = append(header, ",");
        if (r == 0)
            r = append_item(header, &items[i], begin, end, err);
        begin = end;
    }
    if (r == 0)
        r = append(header, "}");
    while (r == 0 && (header->length - start) % 8 != 0)
        r = append(header, " ");
    if (r < 0) {
        header->length = start;
        return err->code ? r : err_set(err, r, ERR_NO_MEMORY, "safetensors header of %zu tensors: %s", count, strerror(-r));
    }
    struct bytes_writer length = bytes_writer_init(header->data + start, sizeof(uint64_t));
    bytes_write_u64(&length, header->length - start - sizeof(uint64_t));
    return 0;
}

static int write_all(int fd, const void *data, uint64_t length, const char *path, struct err *err)
{
    const uint8_t *at = data;
    while (length > 0) {
        ssize_t n = write(fd, at, length < (1U << 30) ? length : (1U << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, "%s: write", path);
        at += n;
        length -= (uint64_t)n;
    }
    return 0;
}

static int write_file(int fd, const char *path, const struct safetensors_item *items, size_t count, struct err *err)
{
    struct buf header = {0};
    int r = safetensors_format_header(items, count, &header, err);
    if (r == 0)
        r = write_all(fd, header.data, header.length, path, err);
    buf_release(&header);
    for (size_t i = 0; i < count && r == 0; i++) {
        uint64_t bytes;
        r = safetensors_item_bytes(&items[i], &bytes, err);
        if (r == 0)
            r = write_all(fd, items[i].data, bytes, path, err);
    }
    return r;
}

/* Where the bytes belong: a symbolic link is followed, and what is no regular file (a device, a FIFO) is never renamed over. */
static int find_target(const char *path, char **ret_target, struct err *err)
{
    struct stat info;
    char *target;
    if (lstat(path, &info) == 0) {
        target = realpath(path, NULL);
        if (!target)
            return err_errno(err, "%s", path);
        if (stat(target, &info) == 0 && !S_ISREG(info.st_mode)) {
            free(target);
            return err_set(err, -EEXIST, ERR_BAD_REQUEST, "%s: something that is no regular file is in its place", path);
        }
    } else {
        if (errno != ENOENT)
            return err_errno(err, "%s", path);
        target = strdup(path);
        if (!target)
            return err_no_memory(err, path, strlen(path));
    }
    *ret_target = target;
    return 0;
}

int safetensors_write(const char *given, const struct safetensors_item *items, size_t count, struct err *err)
{
    _cleanup_(freep) char *partial = NULL, *path = NULL;
    int r = find_target(given, &path, err);
    if (r < 0)
        return r;
    if (asprintf(&partial, "%s.partial-XXXXXX", path) < 0) {
        partial = NULL;
        return err_no_memory(err, path, strlen(path));
    }
    _cleanup_(closep) int fd = mkostemp(partial, O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "%s", path);
    r = write_file(fd, path, items, count, err);
    /* mkostemp gives 0600; the file is meant to be as readable as any other that the user makes. */
    mode_t mask = umask(0);
    umask(mask);
    if (r == 0 && (fchmod(fd, 0666 & ~mask) < 0 || rename(partial, path) < 0))
        r = err_errno(err, "%s", path);
    if (r < 0)
        unlink(partial);
    return r;
}

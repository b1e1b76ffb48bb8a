#include "daemon/model/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static const char lfs_start[] = "version https://git-lfs";

int text_file_read(const char *path, size_t limit, struct buf *ret_text, struct err *err)
{
    /* O_NONBLOCK: opening a FIFO that nobody writes must not hang. */
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return err_errno(err, "%s", path);
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(err, "%s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s is not a regular file", path);
    if ((uint64_t)st.st_size > limit) {
        err_set(err, -EFBIG, ERR_BAD_CHECKPOINT, "%s has %lld bytes, the limit is %zu", path, (long long)st.st_size, limit);
        err_value_int(err, "bytes", st.st_size);
        err_value_int(err, "limit", (long long)limit);
        return -EFBIG;
    }
    struct buf text = {0};
    int r = buf_reserve(&text, (size_t)st.st_size + 1, limit + 1);
    if (r < 0)
        return err_no_memory(err, path, (size_t)st.st_size);
    while (text.length < (size_t)st.st_size) {
        ssize_t n = read(fd, text.data + text.length, (size_t)st.st_size - text.length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            if (n < 0)
                r = err_errno(err, "%s", path);
            else
                r = err_set(err, -EIO, ERR_BAD_CHECKPOINT, "%s shrank while it was being read: %zu of %lld bytes", path, text.length,
                            (long long)st.st_size);
            buf_release(&text);
            return r;
        }
        text.length += (size_t)n;
    }
    if (text.length >= sizeof lfs_start - 1 && memcmp(text.data, lfs_start, sizeof lfs_start - 1) == 0) {
        buf_release(&text);
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s looks like a Git LFS pointer, 'git lfs pull' was not run", path);
    }
    *ret_text = text;
    return 0;
}

/* Memory of the weight buffer is taken from the system: too little of it is an error here and no SIGBUS later. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/duck/wbuf_format.h"
#include "daemon/duck/wbuf_huge.h"
#include "proto/base/background.h"
#include "proto/base/huge.h"

/* A thread of low priority that is long in the kernel is not preempted there before the next tick. */
#define WBUF_PAGES_AT_ONCE (UINT64_C(256) * 1024)

int wbuf_take_file(int fd, uint64_t offset, uint64_t bytes, struct err *err)
{
    int r;
    do
        r = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
    while (r < 0 && errno == EINTR);
    if (r < 0) {
        err_errno(err, "weight buffer: the system has no %" PRIu64 " bytes", bytes);
        err_value_int(err, "needs", (long long)bytes);
        return err ? err->code : -errno;
    }
    return 0;
}

/* Taken, cleared and mapped at once. Before Linux 5.14 that cannot be asked for: then they are taken, and mapped as they are written to. */
static int populate(const struct wbuf_pages *pages, uint64_t begin, uint64_t bytes, struct err *err)
{
    int r;
    do
        r = madvise(pages->map + begin, bytes, MADV_POPULATE_WRITE);
    while (r < 0 && errno == EINTR);
    if (r == 0)
        return 0;
    if (errno == EINVAL)
        return wbuf_take_file(pages->fd, pages->offset + begin, bytes, err);
    int code = errno == EFAULT ? ENOMEM : errno; /* a page that is not to be had would be a SIGBUS */
    err_set(err, -code, ERR_NO_MEMORY, "weight buffer: the system has no %" PRIu64 " bytes: %s", bytes, strerror(code));
    err_value_int(err, "needs", (long long)bytes);
    return -code;
}

/* How much of `bytes` next: of a block that is to become a huge page first one small page, so that little of it has to be moved. */
static uint64_t piece_at(const struct wbuf_pages *pages, uint64_t at, uint64_t bytes)
{
    uint64_t within = (pages->offset + at) % HUGE_PAGE, most = WBUF_PAGES_AT_ONCE;
    if (pages->huge && within == 0)
        most = WBUF_SLOT_ALIGN;
    else if (pages->huge && HUGE_PAGE - within < most)
        most = HUGE_PAGE - within;
    return bytes < most ? bytes : most;
}

int wbuf_take_pages(const struct wbuf_pages *pages, uint64_t begin, uint64_t bytes, struct err *err)
{
    uint64_t at = begin / WBUF_SLOT_ALIGN * WBUF_SLOT_ALIGN, end = begin + bytes;
    int r = 0;
    for (uint64_t next; r == 0 && at < end; at = next) {
        next = at + piece_at(pages, at, end - at);
        r = populate(pages, at, next - at, err);
        if (r == 0)
            wbuf_huge_pages(pages, at, next - at);
    }
    return r;
}

static int write_piece(const struct wbuf_pages *pages, uint64_t at, const uint8_t *from, uint64_t bytes, struct err *err)
{
    while (bytes) {
        ssize_t n = pwrite(pages->fd, from, bytes, (off_t)(pages->offset + at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int code = n < 0 ? errno : EIO;
            err_set(err, -code, ERR_NO_MEMORY, "weight buffer: the system has no %" PRIu64 " bytes: %s", bytes, strerror(code));
            err_value_int(err, "needs", (long long)bytes);
            return -code;
        }
        at += (uint64_t)n;
        from += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* A fault for reading maps what is around it, too, and costs less than one for writing. Where it cannot be asked for, steps do it. */
static void map_pages(const struct wbuf_pages *pages, uint64_t begin, uint64_t bytes)
{
    uint64_t at = begin / WBUF_SLOT_ALIGN * WBUF_SLOT_ALIGN;
    (void)madvise(pages->map + at, begin + bytes - at, MADV_POPULATE_READ);
}

int wbuf_write_pages(const struct wbuf_pages *pages, uint64_t begin, const uint8_t *from, uint64_t bytes, struct err *err)
{
    int r = 0;
    for (uint64_t at = 0, step; r == 0 && at < bytes; at += step) {
        step = piece_at(pages, begin + at, bytes - at);
        r = write_piece(pages, begin + at, from + at, step, err);
        if (r == 0) {
            wbuf_huge_pages(pages, begin + at, step);
            map_pages(pages, begin + at, step);
        }
        background_yield();
    }
    return r;
}

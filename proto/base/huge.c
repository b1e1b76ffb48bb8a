#include "proto/base/huge.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <linux/magic.h>

#include "proto/base/size.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* of Linux 6.1; not in every C library's headers */
#endif
#define TRIES 3 /* a page that somebody holds for a moment is -EAGAIN */

void *huge_map(int fd, uint64_t offset, uint64_t bytes, int prot)
{
    uint64_t room;
    if (bytes < HUGE_PAGE)
        return mmap(NULL, bytes, prot, MAP_SHARED, fd, (off_t)offset);
    if (!size_add(bytes, HUGE_PAGE, &room)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    uint8_t *all = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return MAP_FAILED;
    uint8_t *at = all + (offset - (uint64_t)(uintptr_t)all) % HUGE_PAGE;
    void *map = mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
    if (map == MAP_FAILED) {
        int code = errno;
        (void)munmap(all, room);
        errno = code;
        return MAP_FAILED;
    }
    uint8_t *end = at + size_round_up(bytes, 4096);
    if (at > all)
        (void)munmap(all, (size_t)(at - all));
    if (all + room > end)
        (void)munmap(end, (size_t)(all + room - end));
    return map;
}

bool huge_file(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

int huge_make(void *block)
{
    int r = 0;
    for (int i = 0; i < TRIES; i++) {
        r = madvise(block, HUGE_PAGE, MADV_COLLAPSE) < 0 ? -errno : 0;
        if (r != -EAGAIN && r != -EINTR)
            break;
    }
    return r;
}

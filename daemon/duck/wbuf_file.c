#include "daemon/duck/wbuf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/duck/wbuf.h"
#include "daemon/duck/wbuf_format.h"

#define WBUF_LOCK_POLL_MS 5
#define WBUF_LOCK_WAIT_MS 5000 /* a killed process with many pages takes its time */

int wbuf_file_own(uint64_t bytes, int *ret_fd, struct err *err)
{
    _cleanup_(closep) int fd = memfd_create("fp9-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_errno(err, "weight buffer: memfd_create");
    if (bytes > INT64_MAX || ftruncate(fd, (off_t)bytes) < 0)
        return err_errno(err, "weight buffer of %" PRIu64 " bytes", bytes);
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int wbuf_file_size(int fd, uint64_t bytes, uint64_t *ret_size, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(err, "weight buffer: descriptor %d", fd);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "weight buffer: descriptor %d is no memfd or file", fd);
    if (st.st_size == 0) {
        if (bytes > INT64_MAX || ftruncate(fd, (off_t)bytes) < 0)
            return err_errno(err, "weight buffer of %" PRIu64 " bytes", bytes);
        st.st_size = (off_t)bytes;
    }
    if ((uint64_t)st.st_size < WBUF_BYTES_MIN)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "weight buffer: %lld bytes, at least %" PRIu64 " are needed", (long long)st.st_size,
                       WBUF_BYTES_MIN);
    /* A file that shrinks under the mapping would kill us. A file that is no memfd cannot be sealed; its owner must be trusted. */
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

/* Two processes on one buffer would write over each other's slots: a duck that is dying and the one that is started in its place. A record
 * lock belongs to the process; one of the descriptor (flock) would be shared with everybody the memfd was handed to. */
int wbuf_file_lock(int fd, struct err *err)
{
    for (int waited_ms = 0;; waited_ms += WBUF_LOCK_POLL_MS) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        if (fcntl(fd, F_SETLK, &lock) == 0)
            return 0;
        if (errno != EAGAIN && errno != EACCES)
            return err_errno(err, "weight buffer: lock");
        if (waited_ms >= WBUF_LOCK_WAIT_MS) {
            bool known = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
            return err_set(err, -EBUSY, ERR_BUSY, "weight buffer: process %d uses it", known ? (int)lock.l_pid : 0);
        }
        poll(NULL, 0, WBUF_LOCK_POLL_MS);
    }
}

bool wbuf_file_give_back(int fd, uint64_t offset, uint64_t bytes)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes) == 0;
}

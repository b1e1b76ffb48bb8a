#include "ctl/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)1 << 30)

static int fill(int memory, int file)
{
    ssize_t n;
    do
        n = sendfile(memory, file, NULL, PIECE_BYTES);
    while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0)
        return -1;
    return fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
}

enum ctl_exit memory_of_file(const struct ctl *ctl, const char *path, int *ret_fd)
{
    struct stat st;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hold it up */
    if (file < 0)
        return ctl_fail_with(ctl, errno == EACCES ? "DENIED" : "NO_SUCH", "%s: %s", path, strerror(errno));
    if (fstat(file, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(file);
        return ctl_fail_with(ctl, "BAD_REQUEST", "%s: is no regular file; a safetensors file is wanted", path);
    }
    int memory = memfd_create("fp9-weights-of-a-client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int r = memory < 0 ? -1 : fill(memory, file), number = errno;
    close(file);
    if (r == 0) {
        *ret_fd = memory;
        return CTL_DONE;
    }
    if (memory >= 0)
        close(memory);
    return ctl_fail_with(ctl, "NO_MEMORY", "%s: cannot be copied into memory: %s", path, strerror(number));
}

#include "daemon/duck/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int stage_open(int fd, struct stage *ret_stage, struct err *err)
{
    _cleanup_(closep) int owned = fd;
    struct stat info;
    int seals = fcntl(owned, F_GET_SEALS);
    if (seals < 0 || fstat(owned, &info) < 0)
        return err_errno(err, "stage");
    if (!(seals & F_SEAL_SHRINK) || info.st_size <= 0)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "stage: a memfd of some size is needed, sealed against shrinking");
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, owned, 0);
    if (map == MAP_FAILED)
        return err_errno(err, "stage of %lld bytes", (long long)info.st_size);
    *ret_stage = (struct stage){.bytes = map, .size = (uint64_t)info.st_size};
    return 0;
}

void stage_release(struct stage *stage)
{
    if (stage->bytes)
        munmap((void *)stage->bytes, stage->size);
    *stage = (struct stage){0};
}

#include "daemon/head/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define STAGE_BYTES ((size_t)STAGE_PIECES * STAGE_PIECE_BYTES)

int stage_new(struct stage **ret_stage, struct err *err)
{
    _cleanup_(stage_freep) struct stage *stage = calloc(1, sizeof *stage);
    if (!stage)
        return err_no_memory(err, "stage", sizeof *stage);
    stage->fd = memfd_create("fp9-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (stage->fd < 0 || ftruncate(stage->fd, (off_t)STAGE_BYTES) < 0 ||
        fcntl(stage->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return err_errno(err, "stage of %zu bytes", STAGE_BYTES);
    void *map = mmap(NULL, STAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, stage->fd, 0);
    if (map == MAP_FAILED)
        return err_errno(err, "stage of %zu bytes", STAGE_BYTES);
    stage->bytes = map;
    *ret_stage = STEAL(stage);
    return 0;
}

void stage_free(struct stage *stage)
{
    if (!stage)
        return;
    if (stage->bytes)
        munmap(stage->bytes, STAGE_BYTES);
    closep(&stage->fd);
    free(stage);
}

void stage_give_back(struct stage *stage)
{
    (void)fallocate(stage->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)STAGE_BYTES); /* kept at worst */
}

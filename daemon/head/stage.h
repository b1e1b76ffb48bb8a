/* The stage: memory in which fp9d has what it reads of a checkpoint and which its local ducks see, so that rows reach them uncopied
 * (proto/wire/msg_staged.h). One for a daemon; one load at a time uses it.
 *
 * A memfd of fixed size: STAGE_PIECES parts of STAGE_PIECE_BYTES. Its memory is taken as it is written to, and given back after a load. */
#ifndef FP9_HEAD_STAGE_H
#define FP9_HEAD_STAGE_H

#include <stdint.h>

#include "proto/base/cleanup.h"
#include "proto/base/err.h"

#define STAGE_PIECES 20
#define STAGE_PIECE_BYTES (5u * 1024 * 1024)

struct stage {
    int fd; /* owned; ducks inherit it */
    uint8_t *bytes;
};

int stage_new(struct stage **ret_stage, struct err *err);
void stage_free(struct stage *stage);
CLEANUP_DEFINE(struct stage *, stage_free);
/* Any thread, when no duck reads any of it. */
void stage_give_back(struct stage *stage);

#endif

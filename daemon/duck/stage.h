/* The stage: fp9d's memory that holds rows of a checkpoint while local ducks pack them (proto/wire/msg_staged.h). Read only here. */
#ifndef FP9_DUCK_STAGE_H
#define FP9_DUCK_STAGE_H

#include "proto/base/cleanup.h"
#include "proto/base/err.h"

#include <stdint.h>

/* Zero-initialised: there is none. */
struct stage {
    const uint8_t *bytes;
    uint64_t size;
};

/* fd: fp9d's memfd of it; closed here, also on an error. Its size must be sealed: rows that vanish are a SIGBUS. */
int stage_open(int fd, struct stage *ret_stage, struct err *err);
void stage_release(struct stage *stage);

#endif

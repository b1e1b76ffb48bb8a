/* Digests weights without sending them: to tell which slots on the ducks can stay. */
#ifndef FP9_HEAD_LOAD_DIGEST_H
#define FP9_HEAD_LOAD_DIGEST_H

#include "daemon/model/checkpoint.h"

struct load_digest {
    const struct arch *arch; /* borrowed */
    const bool *layers;      /* borrowed, [arch->layers]: which ones */
    const _Atomic bool *cancelled;
    _Atomic uint64_t *read_bytes; /* counts up */
};

/* Bulk worker: every digest of those layers is in the checkpoint afterwards. Reads each matrix once, in the order of the files as far as
 * the layers follow it. -ECANCELED soon after a cancel. */
int load_digest_run(const struct load_digest *digest, struct checkpoint *checkpoint, struct err *err);

#endif

#include "daemon/head/load_digest.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "proto/base/background.h"

#define DIGEST_CHUNK_BYTES (256u * 1024) /* some 200 us; the system reads ahead */

CLEANUP_DEFINE(struct digest *, digest_free);

struct work {
    const struct load_digest *what;
    struct checkpoint *checkpoint;
    struct digest *digest;
    uint8_t *chunk;
    size_t chunk_bytes;
};

static int digest_matrix(struct work *work, const struct checkpoint_matrix *matrix, struct err *err)
{
    if (checkpoint_digest_known(work->checkpoint, matrix))
        return 0;
    uint32_t most = (uint32_t)(work->chunk_bytes / matrix->columns);
    for (uint32_t row = 0; row < matrix->rows; row += most) {
        uint32_t rows = matrix->rows - row < most ? matrix->rows - row : most;
        if (atomic_load(work->what->cancelled))
            return err_set(err, -ECANCELED, ERR_CANCELLED, "load was cancelled");
        int r = checkpoint_read(work->checkpoint, matrix, row, rows, work->chunk, err);
        if (r < 0)
            return r;
        digest_update(work->digest, work->chunk, (size_t)rows * matrix->columns);
        atomic_fetch_add(work->what->read_bytes, (uint64_t)rows * matrix->columns);
        background_yield();
    }
    uint8_t digest[DIGEST_SIZE];
    digest_finish(work->digest, digest);
    checkpoint_digest_set(work->checkpoint, matrix, digest);
    return 0;
}

static int digest_expert(struct work *work, uint32_t layer, int expert, struct err *err)
{
    int r = 0;
    for (enum kernels_matrix which = KERNELS_GATE; r == 0 && which <= KERNELS_DOWN; which++)
        r = digest_matrix(work, checkpoint_find(work->checkpoint, layer, expert, which), err);
    return r;
}

static int digest_layer(struct work *work, uint32_t layer, struct err *err)
{
    const struct arch *arch = work->what->arch;
    if (!arch->layer_is_moe[layer])
        return digest_expert(work, layer, ARCH_EXPERT_DENSE, err);
    int r = 0;
    for (uint32_t expert = 0; r == 0 && expert < arch->experts; expert++)
        r = digest_expert(work, layer, (int)expert, err);
    if (r == 0 && arch->shared_intermediate)
        r = digest_expert(work, layer, ARCH_EXPERT_SHARED, err);
    return r;
}

int load_digest_run(const struct load_digest *what, struct checkpoint *checkpoint, struct err *err)
{
    const struct arch *arch = what->arch;
    uint32_t widest = arch_widest(arch);
    size_t bytes = widest > DIGEST_CHUNK_BYTES ? widest : DIGEST_CHUNK_BYTES;
    _cleanup_(digest_freep) struct digest *digest = digest_new();
    _cleanup_(freep) uint8_t *chunk = malloc(bytes);
    if (!digest || !chunk)
        return err_no_memory(err, "digest buffer", bytes);
    struct work work = {.what = what, .checkpoint = checkpoint, .digest = digest, .chunk = chunk, .chunk_bytes = bytes};
    for (uint32_t layer = 0; layer < arch->layers; layer++) {
        int r = what->layers[layer] ? digest_layer(&work, layer, err) : 0;
        if (r < 0)
            return err_prefix(err, "layer %u", layer);
    }
    return 0;
}

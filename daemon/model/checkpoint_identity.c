#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/checkpoint_state.h"
#include "daemon/model/plan.h"
#include "daemon/model/text_file.h"

CLEANUP_DEFINE(struct digest *, digest_free);

static int add_config(const struct checkpoint *checkpoint, struct digest *digest, struct err *err)
{
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s/config.json", checkpoint->dir) < 0) {
        path = NULL;
        return err_no_memory(err, checkpoint->dir, strlen(checkpoint->dir));
    }
    struct buf text = {0};
    int r = text_file_read(path, ARCH_CONFIG_BYTES_MAX, &text, err);
    if (r < 0)
        return r;
    digest_update_u64(digest, text.length);
    digest_update(digest, text.data, text.length);
    buf_release(&text);
    return 0;
}

static void add_shard(const struct checkpoint_shard *shard, struct digest *digest)
{
    const struct safetensors_identity *identity = safetensors_identity(shard->file);
    digest_update_string(digest, shard->name);
    digest_update_u64(digest, identity->size);
    digest_update(digest, identity->header, sizeof identity->header);
    digest_update_u64(digest, identity->device);
    digest_update_u64(digest, identity->inode);
    digest_update_u64(digest, (uint64_t)identity->mtime_ns);
    digest_update_u64(digest, (uint64_t)identity->ctime_ns);
}

static void add_matrix(const struct checkpoint_matrix *matrix, struct digest *digest)
{
    digest_update_string(digest, matrix->name);
    digest_update_u64(digest, matrix->shard);
    digest_update_u64(digest, matrix->offset);
}

int checkpoint_identify(struct checkpoint *checkpoint, struct err *err)
{
    _cleanup_(digest_freep) struct digest *digest = digest_new();
    if (!digest)
        return err_no_memory(err, checkpoint->dir, 0);
    digest_update_string(digest, "fp9 checkpoint");
    int r = add_config(checkpoint, digest, err);
    if (r < 0)
        return r;
    if (checkpoint->memory_model) { /* the same for whatever part of the model memory holds */
        digest_update_string(digest, "memory");
        digest_update_string(digest, checkpoint->memory_model);
        digest_finish(digest, checkpoint->identity);
        return 0;
    }
    digest_update_u64(digest, checkpoint->index->file_count);
    for (size_t i = 0; i < checkpoint->index->file_count; i++)
        add_shard(&checkpoint->shards[i], digest);
    digest_update_u64(digest, checkpoint->matrix_count);
    for (size_t i = 0; i < checkpoint->matrix_count; i++)
        add_matrix(&checkpoint->matrices[i], digest);
    digest_update(digest, checkpoint->layer_scales, checkpoint->layers * sizeof *checkpoint->layer_scales);
    digest_finish(digest, checkpoint->identity);
    return 0;
}

void checkpoint_identity(const struct checkpoint *checkpoint, uint8_t ret_digest[DIGEST_SIZE])
{
    memcpy(ret_digest, checkpoint->identity, DIGEST_SIZE);
}

static void add_plan(struct digest *digest, const struct arch *arch, const struct plan *plan)
{
    digest_update_u64(digest, LAYOUT_VERSION);
    digest_update_string(digest, arch_family_name(arch));
    const uint32_t numbers[] = {arch->hidden,  arch->layers, arch->dense_intermediate, arch->moe_intermediate,
                                arch->experts, arch->top_k,  arch->shared_intermediate};
    for (size_t i = 0; i < ARRAY_LENGTH(numbers); i++)
        digest_update_u64(digest, numbers[i]);
    for (uint32_t i = 0; i < arch->layers; i++)
        digest_update_u64(digest, arch->layer_is_moe[i]);
    digest_update_u64(digest, plan->tp);
    digest_update_u64(digest, plan->multiple_of);
    char strategy[PLAN_STRATEGY_TEXT];
    digest_update_string(digest, plan_strategy_name(plan->strategy, strategy));
}

int checkpoint_provisional_key(const struct checkpoint *checkpoint, const struct arch *arch, const struct plan *plan,
                               uint8_t ret_key[DIGEST_SIZE], struct err *err)
{
    _cleanup_(digest_freep) struct digest *digest = digest_new();
    if (!digest)
        return err_no_memory(err, "model key", 0);
    digest_update_string(digest, "fp9 provisional key");
    add_plan(digest, arch, plan);
    digest_update(digest, checkpoint->identity, DIGEST_SIZE);
    digest_finish(digest, ret_key);
    return 0;
}

int checkpoint_model_key(const struct checkpoint *checkpoint, const struct arch *arch, const struct plan *plan,
                         uint8_t ret_key[DIGEST_SIZE], struct err *err)
{
    _cleanup_(digest_freep) struct digest *digest = digest_new();
    if (!digest)
        return err_no_memory(err, "model key", 0);
    digest_update_string(digest, "fp9 model key");
    add_plan(digest, arch, plan);
    for (uint32_t layer = 0; layer < checkpoint->layers; layer++) {
        uint8_t sources[DIGEST_SIZE];
        if (!checkpoint_layer_sources(checkpoint, layer, sources))
            return err_set(err, -EAGAIN, ERR_NOT_READY, "layer %u: its weights have not been digested yet", layer);
        digest_update(digest, sources, DIGEST_SIZE);
    }
    digest_finish(digest, ret_key);
    return 0;
}

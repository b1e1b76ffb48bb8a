/* What to say of a tensor that is not there: often another stands in its place, which tells what kind of checkpoint this is. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/arch_family.h"
#include "daemon/model/arch_layers.h"
#include "daemon/model/checkpoint_state.h"

/* In place of a matrix's weight. */
static const struct {
    const char *end; /* behind the matrix's name */
    const char *what;
} packed[] = {
    {".weight_packed", "packed weights of fewer bits, as compressed-tensors has INT4 and FP4"},
    {".qweight", "packed INT4 or INT8, as GPTQ and AWQ have it"},
};

/* In place of all experts', behind the experts' block. */
static const struct {
    const char *name;
    bool four_bits;
} stacks[] = {
    {"gate_up_proj_blocks", true}, {"gate_up_proj", false},     {"gate_up_proj.weight", false},
    {"gate_proj", false},          {"gate_proj.weight", false},
};

#define FOUND_MAX (CHECKPOINT_TENSOR_NAME_MAX + 32)

/* The tensor that stands in place of `weight`; NULL when there is none, else what it is. */
static const char *find_other(const struct checkpoint *checkpoint, const char *prefix, const char *weight, char ret_name[FOUND_MAX])
{
    const char *block = checkpoint->arch->family->experts_block;
    int base = (int)(strlen(weight) - strlen(".weight"));
    uint32_t shard;
    for (size_t i = 0; i < ARRAY_LENGTH(packed); i++) {
        snprintf(ret_name, FOUND_MAX, "%.*s%s", base, weight, packed[i].end);
        if (checkpoint_tensor(checkpoint, ret_name, &shard))
            return packed[i].what;
    }
    for (size_t i = 0; block && i < ARRAY_LENGTH(stacks); i++) {
        snprintf(ret_name, FOUND_MAX, "%s%s.%s", prefix, block, stacks[i].name);
        if (checkpoint_tensor(checkpoint, ret_name, &shard))
            return stacks[i].four_bits ? "all experts in MXFP4" : "all experts in one tensor, in a way that is not known of this family";
    }
    return NULL;
}

/* "model.layers.1.mlp.experts.", also for a family that has no experts. */
static void experts_prefix(const struct checkpoint *checkpoint, uint32_t layer, char ret_prefix[FOUND_MAX])
{
    const char *block = checkpoint->arch->family->experts_block;
    char prefix[ARCH_NAME_MAX];
    arch_layer_prefix(checkpoint->arch, layer, prefix);
    snprintf(ret_prefix, FOUND_MAX, "%s%s.", prefix, block ? block : "mlp.experts");
}

/* How many experts of the layer have tensors of their own, counted from 0 on. */
static uint32_t count_experts(const struct checkpoint *checkpoint, uint32_t layer)
{
    char prefix[FOUND_MAX], one[FOUND_MAX + 16];
    uint32_t count = 0;
    experts_prefix(checkpoint, layer, prefix);
    do
        snprintf(one, sizeof one, "%s%u.", prefix, count);
    while (checkpoint_index_prefix(checkpoint->index, one) && ++count < ARCH_EXPERTS_MAX);
    return count;
}

/* One MLP is what config.json makes of a layer of which `tensor` is there, a part of experts. */
static int is_not_dense(const struct checkpoint *checkpoint, uint32_t layer, const char *tensor, struct err *err)
{
    const struct arch *arch = checkpoint->arch;
    uint32_t shard, count = count_experts(checkpoint, layer);
    const struct safetensors_tensor *at = checkpoint_tensor(checkpoint, tensor, &shard);
    char shape[256] = "", why[160], right[64] = "";
    if (at && !count && at->dims > 2 && at->shape[0] <= ARCH_EXPERTS_MAX)
        count = (uint32_t)at->shape[0];
    if (!arch->experts_key)
        snprintf(why, sizeof why, "a %s has no experts", arch->family->name);
    else if (!arch->experts_said)
        snprintf(why, sizeof why, "%s is 0", arch->experts_key);
    else
        snprintf(why, sizeof why, "by %s; %s is %u", arch_layers_keys(arch), arch->experts_key, arch->experts_said);
    if (arch->experts_key && !arch->experts_said && count)
        snprintf(right, sizeof right, "; %s should be %u", arch->experts_key, count);
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT,
            "%s: layer %u is one dense MLP in config.json (%s), but there are experts of it: %s in %s%s%s%s",
            checkpoint->dir, layer, why, tensor, at ? checkpoint->shards[shard].name : "no file", at ? " has shape " : "",
            at ? safetensors_shape_format(at, shape, sizeof shape) : "", right);
    err_value_int(err, "layer", layer);
    return -EINVAL;
}

/* The other way round: experts are asked for, of which nothing is there, but `tensor` of one MLP is. */
static int is_not_moe(const struct checkpoint *checkpoint, uint32_t layer, const char *tensor, uint32_t shard, struct err *err)
{
    const struct arch *arch = checkpoint->arch;
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT,
            "%s: layer %u has experts in config.json (by %s; %s is %u), but there is one dense MLP: %s in %s",
            checkpoint->dir, layer, arch_layers_keys(arch), arch->experts_key, arch->experts_said, tensor, checkpoint->shards[shard].name);
    err_value_int(err, "layer", layer);
    return -EINVAL;
}

/* The layer is of another kind than config.json says: 0 when that is not why a tensor of the expert is missing. */
static int check_kind(const struct checkpoint *checkpoint, uint32_t layer, int expert, struct err *err)
{
    const struct arch *arch = checkpoint->arch;
    char prefix[FOUND_MAX], dense[CHECKPOINT_TENSOR_NAME_MAX];
    uint32_t shard;
    bool is_dense = false;
    experts_prefix(checkpoint, layer, prefix);
    const char *held = checkpoint_index_prefix(checkpoint->index, prefix);
    for (int matrix = KERNELS_GATE; arch->family->dense_block && matrix <= KERNELS_DOWN && !is_dense; matrix++) {
        checkpoint_single_name(arch, layer, ARCH_EXPERT_DENSE, (enum kernels_matrix)matrix, dense);
        is_dense = checkpoint_tensor(checkpoint, dense, &shard) != NULL;
    }
    if (expert == ARCH_EXPERT_DENSE && held && !is_dense)
        return is_not_dense(checkpoint, layer, held, err);
    return expert != ARCH_EXPERT_DENSE && is_dense && !held ? is_not_moe(checkpoint, layer, dense, shard, err) : 0;
}

int checkpoint_missing_weight(const struct checkpoint *checkpoint, uint32_t layer, int expert, const char *weight, const char *fused,
                              struct err *err)
{
    char prefix[ARCH_NAME_MAX], other[FOUND_MAX];
    uint32_t mtp = checkpoint->arch->mtp ? checkpoint->arch->mtp_layers : 0;
    const char *what = NULL;
    int r = -EINVAL;
    arch_layer_prefix(checkpoint->arch, layer, prefix);
    if (!checkpoint_index_prefix(checkpoint->index, prefix)) {
        err_set(err, r, ERR_BAD_CHECKPOINT, "%s: layer %u is missing: num_hidden_layers is %u%s, but no tensor %s* is in any file",
                checkpoint->dir, layer, checkpoint->arch->layers - mtp, mtp ? " and layers for MTP are asked for" : "", prefix);
        err_value_int(err, "layer", layer);
        err_value_int(err, "layers", checkpoint->layers);
    } else if (!fused && (r = check_kind(checkpoint, layer, expert, err)) < 0) {
        return r;
    } else if (!fused && (what = find_other(checkpoint, prefix, weight, other))) {
        r = err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL,
                    "%s: missing weight tensor %s; there is %s: %s; needs 128x128 block FP8, a tensor of F8_E4M3 for each matrix",
                    checkpoint->dir, weight, other, what);
    } else {
        char counted[96] = "";
        uint32_t count = arch_part_of(checkpoint->arch, expert) == ARCH_PART_EXPERTS && !fused ? count_experts(checkpoint, layer) : 0;
        if (count && count <= (uint32_t)expert)
            snprintf(counted, sizeof counted, "; %s is %u in config.json, but there are %u", checkpoint->arch->experts_key,
                     checkpoint->arch->experts_said, count);
        r = err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: missing weight tensor %s%s%s%s", checkpoint->dir, weight, fused ? " or " : "",
                    fused ? fused : "", counted);
    }
    err_value_str(err, "tensor", weight);
    return r;
}

int checkpoint_missing_scale(const struct checkpoint *checkpoint, const char *scale, const char *file, struct err *err)
{
    char other[CHECKPOINT_TENSOR_NAME_MAX];
    uint32_t shard;
    snprintf(other, sizeof other, "%.*s", (int)(strlen(scale) - strlen("_inv")), scale);
    bool per_channel = checkpoint_tensor(checkpoint, other, &shard) != NULL;
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: missing scale tensor %s (its weight is in %s)%s%s%s", checkpoint->dir, scale, file,
            per_channel ? "; there is a " : "", per_channel ? other : "",
            per_channel ? ": needs 128x128 block FP8, this is per-tensor or per-channel" : "");
    err_value_str(err, "tensor", scale);
    return -EINVAL;
}

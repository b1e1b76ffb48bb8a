/* What to say of a tensor that is not there: often another stands in its place, which tells what kind of checkpoint this is. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

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

int checkpoint_missing_weight(const struct checkpoint *checkpoint, uint32_t layer, const char *weight, const char *fused, struct err *err)
{
    char prefix[ARCH_NAME_MAX], other[FOUND_MAX];
    uint32_t mtp = checkpoint->arch->mtp ? checkpoint->arch->mtp_layers : 0;
    const char *what = NULL;
    int r = -EINVAL;
    arch_layer_prefix(checkpoint->arch, layer, prefix);
    if (!checkpoint_index_has_prefix(checkpoint->index, prefix)) {
        err_set(err, r, ERR_BAD_CHECKPOINT, "%s: layer %u is missing: num_hidden_layers is %u%s, but no tensor %s* is in any file",
                checkpoint->dir, layer, checkpoint->arch->layers - mtp, mtp ? " and layers for MTP are asked for" : "", prefix);
        err_value_int(err, "layer", layer);
        err_value_int(err, "layers", checkpoint->layers);
    } else if (!fused && (what = find_other(checkpoint, prefix, weight, other))) {
        r = err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL,
                    "%s: missing weight tensor %s; there is %s: %s; needs 128x128 block FP8, a tensor of F8_E4M3 for each matrix",
                    checkpoint->dir, weight, other, what);
    } else {
        err_set(err, r, ERR_BAD_CHECKPOINT, "%s: missing weight tensor %s%s%s", checkpoint->dir, weight, fused ? " or " : "",
                fused ? fused : "");
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

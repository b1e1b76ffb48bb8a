#include "daemon/model/arch_layers.h"

#include <errno.h>
#include <string.h>

#include "daemon/model/arch_family.h"
#include "daemon/model/arch_json.h"
#include "proto/base/size.h"

static const char *const step_keys[ARCH_KEYS_MAX] = {"decoder_sparse_step"};
static const char *const first_keys[ARCH_KEYS_MAX] = {"first_k_dense_replace"};
static const char *const every_keys[ARCH_KEYS_MAX] = {"moe_layer_freq"};

/* As HuggingFace's Qwen3MoeDecoderLayer decides. */
static int sparse_step(const json_t *config, const char *where, struct arch *arch, struct err *err)
{
    uint32_t step;
    int r = arch_json_u32_or(config, step_keys, 1, UINT32_MAX, 1, where, &step, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < arch->layers; i++)
        arch->layer_is_moe[i] = arch->experts > 0 && ((uint64_t)i + 1) % step == 0;
    const json_t *only = json_object_get(config, "mlp_only_layers");
    if (!only || json_is_null(only))
        return 0;
    char shown[96];
    if (!json_is_array(only))
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: mlp_only_layers is %s, must be a list of layer numbers", where,
                       arch_json_show(only, shown, sizeof shown));
    for (size_t i = 0; i < json_array_size(only); i++) {
        const json_t *at = json_array_get(only, i);
        if (!json_is_integer(at) || json_integer_value(at) < 0)
            return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: mlp_only_layers[%zu] is %s, must be a layer number", where, i,
                           arch_json_show(at, shown, sizeof shown));
        if (json_integer_value(at) < (json_int_t)arch->layers)
            arch->layer_is_moe[json_integer_value(at)] = false;
    }
    return 0;
}

static bool is_moe_word(const json_t *at, bool *ret_moe)
{
    const char *word = json_string_value(at);
    if (word && (strcmp(word, "sparse") == 0 || strcmp(word, "dense") == 0))
        *ret_moe = strcmp(word, "sparse") == 0;
    else if (json_is_integer(at) && (json_integer_value(at) == 0 || json_integer_value(at) == 1))
        *ret_moe = json_integer_value(at) == 1;
    else
        return false;
    return true;
}

/* One entry a layer: "dense" and "sparse", or 0 and 1. */
static int by_list(const json_t *list, const char *key, const char *where, struct arch *arch, struct err *err)
{
    if (json_array_size(list) != arch->layers)
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s has %zu entr%s for %u layer%s", where, key, json_array_size(list),
                       json_array_size(list) == 1 ? "y" : "ies", arch->layers, size_plural(arch->layers));
    for (uint32_t i = 0; i < arch->layers; i++) {
        const json_t *at = json_array_get(list, i);
        char shown[96];
        if (!is_moe_word(at, &arch->layer_is_moe[i]))
            return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s[%u] is %s, must be \"dense\" or \"sparse\", or 0 or 1", where, key, i,
                           arch_json_show(at, shown, sizeof shown));
    }
    return 0;
}

/* As DeepseekV3DecoderLayer decides. A list, where there is one, is about the same and is told layer by layer. */
static int first_dense(const json_t *config, const char *where, struct arch *arch, struct err *err)
{
    static const char *const lists[] = {"mlp_layer_types", "moe_layer_freq"};
    for (size_t i = 0; i < ARRAY_LENGTH(lists); i++) {
        const json_t *list = json_object_get(config, lists[i]);
        if (json_is_array(list))
            return by_list(list, lists[i], where, arch, err);
    }
    uint32_t first, every;
    int r = arch_json_u32(config, first_keys, 0, ARCH_LAYERS_MAX, where, &first, err);
    if (r == 0)
        r = arch_json_u32_or(config, every_keys, 1, ARCH_LAYERS_MAX, 1, where, &every, err);
    for (uint32_t i = 0; r == 0 && i < arch->layers; i++)
        arch->layer_is_moe[i] = arch->experts > 0 && i >= first && i % every == 0;
    return r;
}

int arch_layers_fill(const json_t *config, const char *where, struct arch *arch, struct err *err)
{
    switch (arch->family->pattern) {
    case ARCH_PATTERN_DENSE: return 0;
    case ARCH_PATTERN_SPARSE_STEP: return sparse_step(config, where, arch, err);
    case ARCH_PATTERN_FIRST_DENSE: return first_dense(config, where, arch, err);
    case ARCH_PATTERN_MOE: break;
    }
    memset(arch->layer_is_moe, true, arch->layers * sizeof arch->layer_is_moe[0]);
    return 0;
}

const char *arch_layers_keys(const struct arch *arch)
{
    switch (arch->family->pattern) {
    case ARCH_PATTERN_SPARSE_STEP: return "decoder_sparse_step and mlp_only_layers";
    case ARCH_PATTERN_FIRST_DENSE: return "first_k_dense_replace, moe_layer_freq and mlp_layer_types";
    case ARCH_PATTERN_DENSE:
    case ARCH_PATTERN_MOE: break;
    }
    return "model_type";
}

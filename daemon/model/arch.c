#include "daemon/model/arch.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/model/arch_family.h"
#include "daemon/model/arch_json.h"
#include "daemon/model/arch_quant.h"
#include "daemon/model/text_file.h"

static const char *const hidden_keys[ARCH_KEYS_MAX] = {"hidden_size"};
static const char *const layers_keys[ARCH_KEYS_MAX] = {"num_hidden_layers"};
static const char *const step_keys[ARCH_KEYS_MAX] = {"decoder_sparse_step"};

static int find_family(const json_t *config, const char *where, const struct arch_family **ret_family, struct err *err)
{
    const json_t *type = json_object_get(config, "model_type");
    if (!json_is_string(type))
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: no model_type string; looked for model_type", where);
    *ret_family = arch_family_find(json_string_value(type));
    if (*ret_family)
        return 0;
    char supported[256], quant[256];
    arch_families_list(supported, sizeof supported);
    err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: model_type \"%.100s\" (quantization %s) is not supported; supported: %s", where,
            json_string_value(type), arch_quant_describe(config, quant, sizeof quant), supported);
    err_value_str(err, "model_type", json_string_value(type));
    err_value_str(err, "supported", supported);
    return -ENOTSUP;
}

static int check_activation(const json_t *config, const char *where, struct err *err)
{
    const json_t *act = json_object_get(config, "hidden_act");
    char shown[96];
    if (!act || (json_is_string(act) && strcmp(json_string_value(act), "silu") == 0))
        return 0;
    err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: hidden_act is %s, only \"silu\" is supported", where,
            arch_json_show(act, shown, sizeof shown));
    return -ENOTSUP;
}

/* As HuggingFace's Qwen3MoeDecoderLayer decides. */
static int sparse_step_layers(const json_t *config, const char *where, struct arch *arch, struct err *err)
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

static int read_experts(const json_t *config, const char *where, struct arch *arch, struct err *err)
{
    const struct arch_family *family = arch->family;
    if (family->pattern == ARCH_PATTERN_DENSE)
        return 0;
    int r = arch_json_u32(config, family->experts_keys, 0, ARCH_EXPERTS_MAX, where, &arch->experts, err);
    if (r < 0)
        return r;
    return sparse_step_layers(config, where, arch, err);
}

static int read_moe(const json_t *config, const char *where, struct arch *arch, struct err *err)
{
    const struct arch_family *family = arch->family;
    int r = arch_json_u32(config, family->moe_intermediate_keys, 1, LAYOUT_NEURONS_MAX, where, &arch->moe_intermediate, err);
    if (r < 0)
        return r;
    uint32_t top_k_max = arch->experts < KERNELS_TOP_K_MAX ? arch->experts : KERNELS_TOP_K_MAX;
    r = arch_json_u32(config, family->top_k_keys, 1, top_k_max, where, &arch->top_k, err);
    if (r < 0)
        return r;
    r = arch_json_u32_or(config, family->shared_keys, 0, LAYOUT_NEURONS_MAX, 0, where, &arch->shared_intermediate, err);
    if (r < 0)
        return r;
    if (arch->shared_intermediate && !family->shared_block)
        return err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: %s is %u, but a shared expert is not known for %s", where,
                       family->shared_keys[0], arch->shared_intermediate, family->name);
    return 0;
}

static int fill(const json_t *config, const char *where, struct arch *arch, struct err *err)
{
    int r = check_activation(config, where, err);
    if (r < 0)
        return r;
    r = arch_json_u32(config, hidden_keys, 1, LAYOUT_HIDDEN_MAX, where, &arch->hidden, err);
    if (r < 0)
        return r;
    r = arch_json_u32(config, layers_keys, 1, ARCH_LAYERS_MAX, where, &arch->layers, err);
    if (r < 0)
        return r;
    r = read_experts(config, where, arch, err);
    if (r < 0)
        return r;
    uint32_t moe = 0;
    for (uint32_t i = 0; i < arch->layers; i++)
        moe += arch->layer_is_moe[i];
    if (moe < arch->layers) {
        r = arch_json_u32(config, arch->family->dense_intermediate_keys, 1, LAYOUT_NEURONS_MAX, where, &arch->dense_intermediate, err);
        if (r < 0)
            return r;
    }
    if (moe > 0)
        return read_moe(config, where, arch, err);
    arch->experts = 0;
    return 0;
}

/* What to make of quantization_config. */
enum quantized {
    QUANTIZED_MUST,   /* 128x128-block FP8 or nothing */
    QUANTIZED_IF_ANY, /* likewise, but it may be absent: the shape of a BF16 original is that of its FP8 conversion */
    QUANTIZED_ANY,
};

static int parse(const char *text, size_t length, const char *where, enum quantized quantized, struct arch **ret_arch, struct err *err)
{
    if (length > ARCH_CONFIG_BYTES_MAX)
        return err_set(err, -EFBIG, ERR_BAD_CHECKPOINT, "%s has %zu bytes, the limit is %u", where, length, ARCH_CONFIG_BYTES_MAX);
    json_error_t at;
    _cleanup_(json_decrefp) json_t *config = json_loadb(text, length, JSON_REJECT_DUPLICATES, &at);
    if (!config)
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: line %d: %s", where, at.line, at.text);
    if (!json_is_object(config))
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: must be a JSON object", where);
    _cleanup_(arch_freep) struct arch *arch = calloc(1, sizeof *arch);
    if (!arch)
        return err_no_memory(err, where, sizeof *arch);
    int r = find_family(config, where, &arch->family, err);
    if (r < 0)
        return r;
    arch->quantized = arch_quant_present(config);
    if (quantized == QUANTIZED_MUST || (quantized == QUANTIZED_IF_ANY && arch->quantized)) {
        r = arch_quant_check(config, where, err);
        if (r < 0)
            return r;
    }
    r = fill(config, where, arch, err);
    if (r < 0)
        return r;
    *ret_arch = STEAL(arch);
    return 0;
}

int arch_parse(const char *text, size_t length, const char *where, struct arch **ret_arch, struct err *err)
{
    return parse(text, length, where, QUANTIZED_MUST, ret_arch, err);
}

int arch_parse_shape(const char *text, size_t length, const char *where, struct arch **ret_arch, struct err *err)
{
    return parse(text, length, where, QUANTIZED_ANY, ret_arch, err);
}

static int read_config(const char *dir, enum quantized quantized, struct arch **ret_arch, struct err *err)
{
    _cleanup_(freep) char *path = NULL;
    struct stat st;
    bool file = stat(dir, &st) == 0 && S_ISREG(st.st_mode);
    if (file && quantized == QUANTIZED_MUST)
        return err_set(err, -ENOTDIR, ERR_BAD_REQUEST, "%s: is a file; the directory that holds config.json and weights is wanted", dir);
    if (asprintf(&path, file ? "%s" : "%s/config.json", dir) < 0) {
        path = NULL;
        return err_no_memory(err, dir, strlen(dir));
    }
    struct buf text = {0};
    int r = text_file_read(path, ARCH_CONFIG_BYTES_MAX, &text, err);
    if (r < 0)
        return r;
    r = parse((const char *)text.data, text.length, path, quantized, ret_arch, err);
    buf_release(&text);
    return r;
}

int arch_read(const char *dir, struct arch **ret_arch, struct err *err)
{
    return read_config(dir, QUANTIZED_MUST, ret_arch, err);
}

int arch_read_for_plan(const char *dir, struct arch **ret_arch, struct err *err)
{
    return read_config(dir, QUANTIZED_IF_ANY, ret_arch, err);
}

void arch_free(struct arch *arch)
{
    free(arch);
}

const char *arch_family_name(const struct arch *arch)
{
    return arch->family->name;
}

void arch_matrix_name(const struct arch *arch, uint32_t layer, int expert, enum kernels_matrix matrix, char ret_name[ARCH_NAME_MAX])
{
    const struct arch_family *family = arch->family;
    const char *proj = family->matrices[matrix];
    if (expert == ARCH_EXPERT_DENSE)
        snprintf(ret_name, ARCH_NAME_MAX, "model.layers.%u.%s.%s", layer, family->dense_block, proj);
    else if (expert == ARCH_EXPERT_SHARED)
        snprintf(ret_name, ARCH_NAME_MAX, "model.layers.%u.%s.%s", layer, family->shared_block, proj);
    else
        snprintf(ret_name, ARCH_NAME_MAX, "model.layers.%u.%s.%d.%s", layer, family->experts_block, expert, proj);
}

uint32_t arch_intermediate(const struct arch *arch, int expert)
{
    if (expert == ARCH_EXPERT_DENSE)
        return arch->dense_intermediate;
    return expert == ARCH_EXPERT_SHARED ? arch->shared_intermediate : arch->moe_intermediate;
}

#include "daemon/model/arch.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/model/arch_family.h"
#include "daemon/model/arch_json.h"
#include "daemon/model/arch_layers.h"
#include "daemon/model/arch_quant.h"
#include "daemon/model/text_file.h"

static const char *const hidden_keys[ARCH_KEYS_MAX] = {"hidden_size"};
static const char *const layers_keys[ARCH_KEYS_MAX] = {"num_hidden_layers"};

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

/* The object with the numbers of the text model. */
static int find_numbers(const json_t *config, const char *where, const struct arch_family *family, const json_t **ret_numbers,
                        struct err *err)
{
    *ret_numbers = config;
    if (!family->text_name)
        return 0;
    const json_t *text = json_object_get(config, "text_config"), *type = json_object_get(text, "model_type");
    char shown[96];
    if (!json_is_object(text))
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: no text_config, in which the numbers of a %s are", where, family->name);
    if (!json_is_string(type) || strcmp(json_string_value(type), family->text_name) != 0)
        return err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: model_type of text_config is %s, that of a %s is \"%s\"", where,
                       type ? arch_json_show(type, shown, sizeof shown) : "missing", family->name, family->text_name);
    *ret_numbers = text;
    return 0;
}

static int check_activation(const json_t *config, const char *where, struct err *err)
{
    const json_t *act = json_object_get(config, "hidden_act"), *limit = json_object_get(config, "swiglu_limit");
    char shown[96];
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: hidden_act is %s, only \"silu\" is supported", where,
                       arch_json_show(act, shown, sizeof shown));
    if (limit && !json_is_null(limit))
        return err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: swiglu_limit is %s, a clamped activation is not supported", where,
                       arch_json_show(limit, shown, sizeof shown));
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
    arch->experts_key = arch_json_key(config, family->experts_keys);
    arch->experts_said = arch->experts;
    return arch_layers_fill(config, where, arch, err);
}

/* A shared expert of the client's weighing is an expert like any other: the last one. */
static int gate_shared(const char *where, struct arch *arch, struct err *err)
{
    uint32_t wide = arch->shared_intermediate;
    if (wide != arch->moe_intermediate)
        return err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL,
                       "%s: %s is %u but %s is %u: a gated shared expert must be as wide as the others", where,
                       arch->family->shared_keys[0], wide, arch->family->moe_intermediate_keys[0], arch->moe_intermediate);
    if (arch->experts >= ARCH_EXPERTS_MAX || arch->top_k >= KERNELS_TOP_K_MAX)
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %u experts, %u for a token, and a shared one: at most %u and %u", where,
                       arch->experts, arch->top_k, ARCH_EXPERTS_MAX, KERNELS_TOP_K_MAX);
    arch->shared_intermediate = 0;
    arch->shared_key = NULL;
    arch->gated_shared = true;
    arch->experts++;
    arch->top_k++;
    return 0;
}

static int read_shared(const json_t *config, const char *where, struct arch *arch, struct err *err)
{
    const struct arch_family *family = arch->family;
    uint32_t count, wide;
    int r = arch_json_u32_or(config, family->shared_count_keys, 0, LAYOUT_NEURONS_MAX, 0, where, &count, err);
    if (r == 0)
        r = arch_json_u32_or(config, family->shared_keys, 0, LAYOUT_NEURONS_MAX, 0, where, &wide, err);
    if (r < 0)
        return r;
    uint64_t all = count ? (uint64_t)count * arch->moe_intermediate : wide;
    if (all > LAYOUT_NEURONS_MAX)
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s is %u: %llu neurons, at most %u are possible", where,
                       family->shared_count_keys[0], count, (unsigned long long)all, LAYOUT_NEURONS_MAX);
    arch->shared_intermediate = (uint32_t)all;
    if (all == 0)
        return 0;
    arch->shared_key = count ? NULL : arch_json_key(config, family->shared_keys);
    if (family->shared == ARCH_SHARED_NONE)
        return err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: %s is %u, but a shared expert is not known for %s", where,
                       family->shared_keys[0], arch->shared_intermediate, family->name);
    return family->shared == ARCH_SHARED_GATED ? gate_shared(where, arch, err) : 0;
}

static int no_experts(const char *where, const struct arch *arch, struct err *err)
{
    uint32_t layer = 0;
    while (!arch->layer_is_moe[layer])
        layer++;
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s is 0, but layer %u has experts by %s", where, arch->experts_key, layer,
            arch_layers_keys(arch));
    err_value_str(err, "key", arch->experts_key);
    return -EINVAL;
}

static int read_moe(const json_t *config, const char *where, struct arch *arch, struct err *err)
{
    const struct arch_family *family = arch->family;
    if (!arch->experts)
        return no_experts(where, arch, err);
    int r = arch_json_u32(config, family->moe_intermediate_keys, 1, LAYOUT_NEURONS_MAX, where, &arch->moe_intermediate, err);
    if (r < 0)
        return r;
    arch->moe_key = arch_json_key(config, family->moe_intermediate_keys);
    uint32_t top_k_max = arch->experts < KERNELS_TOP_K_MAX ? arch->experts : KERNELS_TOP_K_MAX;
    r = arch_json_u32(config, family->top_k_keys, 1, top_k_max, where, &arch->top_k, err);
    if (r < 0)
        return r;
    return read_shared(config, where, arch, err);
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
    r = arch_json_u32_or(config, arch->family->mtp_keys, 0, UINT32_MAX, 0, where, &arch->mtp_layers, err);
    if (r == 0)
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
        arch->dense_key = arch_json_key(config, arch->family->dense_intermediate_keys);
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
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: no JSON: line %d: %s", where, at.line, at.text);
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
    const json_t *numbers;
    r = find_numbers(config, where, arch->family, &numbers, err);
    if (r == 0)
        r = fill(numbers, where, arch, err);
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
    if (stat(dir, &st) < 0)
        return err_errno(err, "%s", dir);
    bool file = S_ISREG(st.st_mode);
    if (!file && !S_ISDIR(st.st_mode))
        return err_set(err, -ENOTDIR, ERR_BAD_REQUEST, "%s: is no directory; that which holds config.json and weights is wanted", dir);
    if (file && quantized == QUANTIZED_MUST)
        return err_set(err, -ENOTDIR, ERR_BAD_REQUEST, "%s: is a file; the directory that holds config.json and weights is wanted", dir);
    if (asprintf(&path, file ? "%s" : "%s/config.json", dir) < 0) {
        path = NULL;
        return err_no_memory(err, dir, strlen(dir));
    }
    struct buf text = {0};
    int r = text_file_read(path, ARCH_CONFIG_BYTES_MAX, &text, err);
    if (r == -ENOENT)
        return err_set(err, r, ERR_NO_SUCH, "%s: No such file; a model's directory, with config.json and weights in it, is wanted", path);
    if (r < 0)
        return r;
    _cleanup_(arch_freep) struct arch *arch = NULL;
    r = parse((const char *)text.data, text.length, path, QUANTIZED_IF_ANY, &arch, err);
    if (r == 0 && !arch->quantized) {
        r = arch_quant_check_beside(dir, err);
        if (r == 0 && quantized == QUANTIZED_MUST) {
            arch_free(STEAL(arch));
            r = parse((const char *)text.data, text.length, path, quantized, &arch, err); /* refused in its words */
        }
    }
    buf_release(&text);
    if (r < 0)
        return r;
    *ret_arch = STEAL(arch);
    return 0;
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

int arch_add_mtp(struct arch *arch, const char *where, struct err *err)
{
    const struct arch_family *family = arch->family;
    if (arch->mtp)
        return 0;
    if (arch->mtp_layers == 0) {
        const char *key = family->mtp_keys[0];
        if (!key)
            return err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: family %s has no MTP layers that fp9 knows", where, family->name);
        return err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL, "%s: no layers for multi-token prediction: %s is 0", where, key);
    }
    if (arch->mtp_layers > ARCH_LAYERS_MAX - arch->layers)
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s is %u; with %u layers before them at most %u are possible", where,
                       family->mtp_keys[0], arch->mtp_layers, arch->layers, ARCH_LAYERS_MAX - arch->layers);
    for (uint32_t i = 0; i < arch->mtp_layers; i++)
        arch->layer_is_moe[arch->layers + i] = arch->experts > 0;
    arch->layers += arch->mtp_layers;
    arch->mtp = true;
    return 0;
}

void arch_layer_prefix(const struct arch *arch, uint32_t layer, char ret_prefix[ARCH_NAME_MAX])
{
    const struct arch_family *family = arch->family;
    uint32_t before = arch->layers - arch->mtp_layers;
    if (arch->mtp && family->mtp_prefix && layer >= before)
        snprintf(ret_prefix, ARCH_NAME_MAX, "%s.%u.", family->mtp_prefix, layer - before);
    else
        snprintf(ret_prefix, ARCH_NAME_MAX, "%s.%u.", family->prefix, layer);
}

void arch_matrix_name(const struct arch *arch, uint32_t layer, int expert, enum kernels_matrix matrix, char ret_name[ARCH_NAME_MAX])
{
    const struct arch_family *family = arch->family;
    const char *proj = family->matrices[matrix];
    arch_layer_prefix(arch, layer, ret_name);
    size_t at = strlen(ret_name), room = ARCH_NAME_MAX - at;
    if (expert == ARCH_EXPERT_DENSE)
        snprintf(ret_name + at, room, "%s.%s", family->dense_block, proj);
    else if (expert == ARCH_EXPERT_SHARED || (arch->gated_shared && expert == (int)arch->experts - 1))
        snprintf(ret_name + at, room, "%s.%s", family->shared_block, proj);
    else
        snprintf(ret_name + at, room, "%s.%d.%s", family->experts_block, expert, proj);
}

uint32_t arch_intermediate(const struct arch *arch, int expert)
{
    if (expert == ARCH_EXPERT_DENSE)
        return arch->dense_intermediate;
    return expert == ARCH_EXPERT_SHARED ? arch->shared_intermediate : arch->moe_intermediate;
}

uint32_t arch_widest(const struct arch *arch)
{
    uint32_t widest = arch->hidden;
    const uint32_t widths[] = {arch->dense_intermediate, arch->moe_intermediate, arch->shared_intermediate};
    for (size_t i = 0; i < ARRAY_LENGTH(widths); i++)
        widest = widths[i] > widest ? widths[i] : widest;
    return widest;
}

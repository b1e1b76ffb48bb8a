#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/arch_family.h"
#include "daemon/model/text_file.h"
#include "proto/base/size.h"
#include "tests/tools/mkckpt.h"

static int override(json_t *config, const char *const *keys, uint32_t value, const char *option, const struct mkckpt_options *options,
                    struct err *err)
{
    if (value == 0)
        return 0;
    for (int i = 0; i < ARCH_KEYS_MAX && keys[i]; i++)
        if (json_object_get(config, keys[i]))
            return json_object_set_new(config, keys[i], json_integer(value));
    return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: has no %s, so %s has no meaning", options->like, keys[0] ? keys[0] : "such key",
                   option);
}

/* Lists with an entry a layer lose those of the layers that are left out. */
static void shorten(json_t *config, uint32_t layers)
{
    static const char *const lists[] = {"mlp_layer_types", "moe_layer_freq"};
    for (size_t i = 0; i < ARRAY_LENGTH(lists); i++)
        for (json_t *list = json_object_get(config, lists[i]); layers && json_array_size(list) > layers;)
            json_array_remove(list, json_array_size(list) - 1);
}

static int apply(json_t *config, const struct arch_family *family, const struct mkckpt_options *options, struct err *err)
{
    static const char *const layers[ARCH_KEYS_MAX] = {"num_hidden_layers"};
    static const char *const hidden[ARCH_KEYS_MAX] = {"hidden_size"};
    int r = override(config, layers, options->layers, "--layers", options, err);
    shorten(config, options->layers);
    if (r == 0)
        r = override(config, hidden, options->hidden, "--hidden", options, err);
    if (r == 0)
        r = override(config, family->dense_intermediate_keys, options->intermediate, "--intermediate", options, err);
    if (r == 0)
        r = override(config, family->moe_intermediate_keys, options->moe_intermediate, "--moe-intermediate", options, err);
    if (r == 0)
        r = override(config, family->experts_keys, options->experts, "--experts", options, err);
    if (r < 0 || options->experts == 0)
        return r;
    /* Fewer experts than a token asks for would be no model. */
    for (int i = 0; i < ARCH_KEYS_MAX && family->top_k_keys[i]; i++) {
        const json_t *top_k = json_object_get(config, family->top_k_keys[i]);
        if (json_is_integer(top_k) && json_integer_value(top_k) > options->experts)
            json_object_set_new(config, family->top_k_keys[i], json_integer(options->experts));
    }
    return 0;
}

int mkckpt_config(const struct mkckpt_options *options, char **ret_text, struct arch **ret_arch, struct err *err)
{
    struct buf text = {0};
    int r = text_file_read(options->like, ARCH_CONFIG_BYTES_MAX, &text, err);
    if (r < 0)
        return r;
    json_error_t at;
    json_auto_t *config = json_loadb((const char *)text.data, text.length, JSON_REJECT_DUPLICATES, &at);
    buf_release(&text);
    if (!config)
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: line %d: %s", options->like, at.line, at.text);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const struct arch_family *family = type ? arch_family_find(type) : NULL;
    if (family) { /* an unknown one is refused by arch_parse_shape below, in its words */
        r = apply(family->text_name ? json_object_get(config, "text_config") : config, family, options, err);
        if (r < 0)
            return r;
    }
    json_object_del(config, "expert_dtype");
    json_object_del(json_object_get(config, "text_config"), "quantization_config");
    json_object_set_new(config, "quantization_config",
                        json_pack("{s:s, s:s, s:s, s:[i, i]}", "quant_method", "fp8", "fmt", "e4m3", "activation_scheme", "dynamic",
                                  "weight_block_size", LAYOUT_BLOCK, LAYOUT_BLOCK));
    _cleanup_(freep) char *written = json_dumps(config, JSON_INDENT(2));
    if (!written)
        return err_no_memory(err, options->like, 0);
    r = arch_parse_shape(written, strlen(written), options->like, ret_arch, err);
    if (r == 0 && options->mtp)
        r = arch_add_mtp(*ret_arch, options->like, err);
    if (r < 0)
        return r;
    *ret_text = STEAL(written);
    return 0;
}

void mkckpt_list_release(struct mkckpt_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->tensors[i].name);
    free(list->tensors);
    *list = (struct mkckpt_list){0};
}

static int add(struct mkckpt_list *list, const char *base, const char *suffix, enum mkckpt_kind kind, enum safetensors_dtype dtype,
               uint64_t rows, uint64_t columns, struct err *err)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 256;
        struct mkckpt_tensor *grown = reallocarray(list->tensors, capacity, sizeof *grown);
        if (!grown)
            return err_no_memory(err, "tensor list", capacity * sizeof *grown);
        list->tensors = grown;
        list->capacity = capacity;
    }
    struct mkckpt_tensor tensor = {.kind = kind, .dtype = dtype, .shape = {rows, columns}};
    tensor.bytes = rows * columns * (safetensors_dtype_bits(dtype) / 8); /* at most 2^16 * 2^18 */
    if (asprintf(&tensor.name, "%s%s", base, suffix) < 0)
        return err_no_memory(err, base, strlen(base));
    list->bytes += tensor.bytes;
    list->tensors[list->count++] = tensor;
    return 0;
}

static int add_expert(struct mkckpt_list *list, const struct arch *arch, uint32_t layer, int expert, enum safetensors_dtype scale_dtype,
                      struct err *err)
{
    uint32_t wide = arch_intermediate(arch, expert);
    int r = 0;
    for (int matrix = KERNELS_GATE; matrix <= KERNELS_DOWN && r == 0; matrix++) {
        char name[ARCH_NAME_MAX];
        arch_matrix_name(arch, layer, expert, (enum kernels_matrix)matrix, name);
        uint64_t rows = matrix == KERNELS_DOWN ? arch->hidden : wide, columns = matrix == KERNELS_DOWN ? wide : arch->hidden;
        r = add(list, name, ".weight", MKCKPT_WEIGHT, SAFETENSORS_F8_E4M3, rows, columns, err);
        if (r == 0)
            r = add(list, name, ".weight_scale_inv", MKCKPT_SCALE, scale_dtype, size_ceil_div(rows, LAYOUT_BLOCK),
                    size_ceil_div(columns, LAYOUT_BLOCK), err);
    }
    return r;
}

static int add_router(struct mkckpt_list *list, const struct arch *arch, uint32_t layer, const char *what, uint64_t rows, struct err *err)
{
    char name[ARCH_NAME_MAX];
    arch_layer_prefix(arch, layer, name);
    size_t at = strlen(name);
    snprintf(name + at, sizeof name - at, "%s", what);
    return add(list, name, ".weight", MKCKPT_ROUTER, SAFETENSORS_BF16, rows, arch->hidden, err);
}

int mkckpt_list_make(const struct arch *arch, enum safetensors_dtype scale_dtype, struct mkckpt_list *list, struct err *err)
{
    int r = 0;
    for (uint32_t layer = 0; layer < arch->layers && r == 0; layer++) {
        if (!arch->layer_is_moe[layer]) {
            r = add_expert(list, arch, layer, ARCH_EXPERT_DENSE, scale_dtype, err);
            continue;
        }
        r = add_router(list, arch, layer, arch->family->router, arch->experts - arch->gated_shared, err);
        if (r == 0 && arch->gated_shared)
            r = add_router(list, arch, layer, arch->family->shared_gate, 1, err);
        for (uint32_t expert = 0; expert < arch->experts && r == 0; expert++)
            r = add_expert(list, arch, layer, (int)expert, scale_dtype, err);
        if (arch->shared_intermediate && r == 0)
            r = add_expert(list, arch, layer, ARCH_EXPERT_SHARED, scale_dtype, err);
    }
    return r;
}

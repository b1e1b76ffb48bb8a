#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/arch_family.h"
#include "daemon/model/text_file.h"
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
    if (r == 0 && family->shared == ARCH_SHARED_GATED && json_integer_value(json_object_get(config, family->shared_keys[0])) > 0)
        r = override(config, family->shared_keys, options->moe_intermediate, "--moe-intermediate", options, err); /* it is as wide */
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

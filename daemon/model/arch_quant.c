#include "daemon/model/arch_quant.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/arch_json.h"
#include "kernels/layout.h"

static const json_t *quantization(const json_t *config)
{
    const json_t *quant = json_object_get(config, "quantization_config");
    if (!quant || json_is_null(quant))
        quant = json_object_get(json_object_get(config, "text_config"), "quantization_config");
    return quant && !json_is_null(quant) ? quant : NULL;
}

bool arch_quant_present(const json_t *config)
{
    return quantization(config) != NULL;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

const char *arch_quant_describe(const json_t *config, char *text, size_t size)
{
    const json_t *quant = quantization(config);
    if (!quant) {
        const char *dtype = text_of(config, "torch_dtype");
        if (!*dtype)
            dtype = text_of(config, "dtype");
        snprintf(text, size, "none%s%.40s", *dtype ? ", weights " : "", dtype);
        return text;
    }
    const char *producer = text_of(json_object_get(quant, "producer"), "name");
    const char *parts[] = {text_of(quant, "quant_method"), producer, text_of(quant, "quant_algo"), text_of(quant, "format"),
                           text_of(quant, "fmt")};
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (*parts[i] && at < size)
            at += (size_t)snprintf(text + at, size - at, "%s%.40s", at ? " " : "", parts[i]);
    if (at == 0)
        snprintf(text, size, "unknown");
    return text;
}

static int refuse(const json_t *config, const char *where, const char *why, struct err *err)
{
    char what[256];
    arch_quant_describe(config, what, sizeof what);
    err_set(err, -ENOTSUP, ERR_UNSUPPORTED_MODEL,
            "%s: needs 128x128 block FP8 (quant_method fp8, fmt e4m3, weight_block_size [128, 128]); quantization is %s%s%s", where, what,
            *why ? ": " : "", why);
    err_value_str(err, "quantization", what);
    err_value_str(err, "supported", "fp8 e4m3, weight_block_size [128, 128]");
    return -ENOTSUP;
}

int arch_quant_check(const json_t *config, const char *where, struct err *err)
{
    const json_t *quant = quantization(config);
    if (!quant)
        return refuse(config, where, "there is no quantization_config", err);
    char shown[96], why[192];
    if (!json_is_object(quant)) {
        snprintf(why, sizeof why, "quantization_config is %s", arch_json_show(quant, shown, sizeof shown));
        return refuse(config, where, why, err);
    }
    const json_t *method = json_object_get(quant, "quant_method");
    const json_t *block = json_object_get(quant, "weight_block_size");
    if (method && strcmp(text_of(quant, "quant_method"), "fp8") != 0) {
        snprintf(why, sizeof why, "quant_method is %s", arch_json_show(method, shown, sizeof shown));
        return refuse(config, where, why, err);
    }
    if (!block || json_is_null(block))
        return refuse(config, where, "no weight_block_size, so scales are per-tensor or per-channel", err);
    if (!method)
        return refuse(config, where, "no quant_method", err);
    if (!json_is_array(block) || json_array_size(block) != 2) {
        snprintf(why, sizeof why, "weight_block_size is %s", arch_json_show(block, shown, sizeof shown));
        return refuse(config, where, why, err);
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *side = json_array_get(block, i);
        if (!json_is_integer(side) || json_integer_value(side) != LAYOUT_BLOCK) {
            snprintf(why, sizeof why, "weight_block_size[%zu] is %s", i, arch_json_show(side, shown, sizeof shown));
            return refuse(config, where, why, err);
        }
    }
    const json_t *fmt = json_object_get(quant, "fmt");
    if (fmt && !json_is_null(fmt) && strcmp(text_of(quant, "fmt"), "e4m3") != 0 && strcmp(text_of(quant, "fmt"), "float8_e4m3fn") != 0) {
        snprintf(why, sizeof why, "fmt is %s", arch_json_show(fmt, shown, sizeof shown));
        return refuse(config, where, why, err);
    }
    return 0;
}

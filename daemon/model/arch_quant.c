#include "daemon/model/arch_quant.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/model/arch.h"
#include "daemon/model/arch_json.h"
#include "daemon/model/text_file.h"
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

/* "int4 group 32 weights" of the first group that says so; "" otherwise. */
static const char *bits_text(const json_t *quant, char *text, size_t size)
{
    const char *key;
    json_t *group;
    text[0] = '\0';
    json_object_foreach(json_object_get(quant, "config_groups"), key, group)
    {
        const json_t *weights = json_object_get(group, "weights"), *bits = json_object_get(weights, "num_bits"),
                     *run = json_object_get(weights, "group_size");
        if (!json_is_integer(bits))
            continue;
        const char *strategy = text_of(weights, "strategy");
        int n = snprintf(text, size, "%.16s%lld%s%.16s", text_of(weights, "type"), (long long)json_integer_value(bits),
                         *strategy ? " " : "", strategy);
        if (json_is_integer(run) && n > 0 && (size_t)n < size)
            snprintf(text + n, size - (size_t)n, " %lld", (long long)json_integer_value(run));
        break;
    }
    return text;
}

const char *arch_quant_describe(const json_t *config, char *text, size_t size)
{
    const json_t *quant = quantization(config);
    const char *experts = text_of(config, "expert_dtype");
    if (!quant) {
        const char *dtype = text_of(config, "torch_dtype");
        if (!*dtype)
            dtype = text_of(config, "dtype");
        if (!*dtype)
            dtype = text_of(json_object_get(config, "text_config"), "dtype");
        snprintf(text, size, "none%s%.40s", *dtype ? ", weights " : "", dtype);
        return text;
    }
    char bits[64];
    const char *producer = text_of(json_object_get(quant, "producer"), "name");
    const char *parts[] = {text_of(quant, "quant_method"), producer,
                           text_of(quant, "quant_algo"),   text_of(quant, "format"),
                           text_of(quant, "fmt"),          bits_text(quant, bits, sizeof bits),
                           *experts ? "experts" : "",      experts};
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
    const json_t *experts = json_object_get(config, "expert_dtype");
    if (experts && !json_is_null(experts) && strcmp(text_of(config, "expert_dtype"), "fp8") != 0) {
        snprintf(why, sizeof why, "expert_dtype is %s", arch_json_show(experts, shown, sizeof shown));
        return refuse(config, where, why, err);
    }
    const json_t *fmt = json_object_get(quant, "fmt");
    if (fmt && !json_is_null(fmt) && strcmp(text_of(quant, "fmt"), "e4m3") != 0 && strcmp(text_of(quant, "fmt"), "float8_e4m3fn") != 0) {
        snprintf(why, sizeof why, "fmt is %s", arch_json_show(fmt, shown, sizeof shown));
        return refuse(config, where, why, err);
    }
    return 0;
}

int arch_quant_check_beside(const char *dir, struct err *err)
{
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s/hf_quant_config.json", dir) < 0) {
        path = NULL;
        return err_no_memory(err, dir, strlen(dir));
    }
    if (access(path, F_OK) < 0)
        return 0;
    struct buf text = {0};
    int r = text_file_read(path, ARCH_CONFIG_BYTES_MAX, &text, err);
    if (r < 0)
        return r;
    json_error_t at;
    json_auto_t *beside = json_loadb((const char *)text.data, text.length, JSON_REJECT_DUPLICATES, &at);
    buf_release(&text);
    if (!beside)
        return err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: line %d: %s", path, at.line, at.text);
    json_auto_t *config = json_pack("{s:O?}", "quantization_config", json_object_get(beside, "quantization"));
    return refuse(config, path, "that is not in blocks of 128x128", err);
}

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/model/arch.h"

#define QUANT "\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}"
#define DENSE "\"model_type\":\"qwen3\",\"hidden_size\":1024,\"intermediate_size\":3072,\"num_hidden_layers\":28"
#define MOE_BUT_LAYERS                                                                                                                     \
    "\"model_type\":\"qwen3_moe\",\"hidden_size\":256,\"intermediate_size\":768,\"moe_intermediate_size\":192,\"num_experts_per_tok\":2"
#define MOE MOE_BUT_LAYERS ",\"num_experts\":8,\"num_hidden_layers\":6"

static struct arch *parsed(const char *text)
{
    struct arch *arch = NULL;
    struct err err = {0};
    if (arch_parse(text, strlen(text), "config.json", &arch, &err) < 0)
        fail_msg("%s", err.message);
    return arch;
}

static void refused(const char *text, enum err_name name, const char *const *words)
{
    struct arch *arch = NULL;
    struct err err = {0};
    int r = arch_parse(text, strlen(text), "config.json", &arch, &err);
    assert_true(r < 0);
    assert_null(arch);
    assert_int_equal(err.code, r);
    if (err.name != name)
        fail_msg("%s: %s", err_name_text(err.name), err.message);
    assert_non_null(strstr(err.message, "config.json"));
    for (; *words; words++)
        if (!strstr(err.message, *words))
            fail_msg("\"%s\" does not say \"%s\"", err.message, *words);
}
#define UNSUPPORTED(text, ...) refused(text, ERR_UNSUPPORTED_MODEL, (const char *const[]){__VA_ARGS__, NULL})
#define BAD(text, ...) refused(text, ERR_BAD_CHECKPOINT, (const char *const[]){__VA_ARGS__, NULL})

static void dense(void **state)
{
    (void)state;
    struct arch *arch = parsed("{" DENSE "," QUANT "}");
    assert_string_equal(arch_family_name(arch), "qwen3");
    assert_int_equal(arch->hidden, 1024);
    assert_int_equal(arch->layers, 28);
    assert_int_equal(arch->dense_intermediate, 3072);
    assert_int_equal(arch->moe_intermediate, 0);
    assert_int_equal(arch->experts, 0);
    for (uint32_t i = 0; i < 28; i++)
        assert_false(arch->layer_is_moe[i]);
    char name[ARCH_NAME_MAX];
    arch_matrix_name(arch, 27, ARCH_EXPERT_DENSE, KERNELS_DOWN, name);
    assert_string_equal(name, "model.layers.27.mlp.down_proj");
    arch_free(arch);
}

static void layers_of(const char *more, const char *want)
{
    char text[800];
    snprintf(text, sizeof text, "{" MOE ",%s" QUANT "}", more);
    struct arch *arch = parsed(text);
    for (uint32_t i = 0; i < arch->layers; i++)
        if (arch->layer_is_moe[i] != (want[i] == 'm'))
            fail_msg("%s: layer %u", more, i);
    if (strchr(want, 'd'))
        assert_int_equal(arch->dense_intermediate, 768);
    else
        assert_int_equal(arch->dense_intermediate, 0);
    arch_free(arch);
}

/* As HuggingFace's Qwen3MoeDecoderLayer decides. */
static void moe_layers(void **state)
{
    (void)state;
    layers_of("", "mmmmmm");
    layers_of("\"mlp_only_layers\":null,", "mmmmmm");
    layers_of("\"mlp_only_layers\":[0],", "dmmmmm");
    layers_of("\"decoder_sparse_step\":2,", "dmdmdm");
    layers_of("\"decoder_sparse_step\":3,", "ddmddm");
    layers_of("\"decoder_sparse_step\":2,\"mlp_only_layers\":[3,0,99],", "dmdddm");
    layers_of("\"decoder_sparse_step\":7,", "dddddd");
    struct arch *arch = parsed("{" MOE_BUT_LAYERS ",\"num_experts\":0,\"num_hidden_layers\":2," QUANT "}");
    assert_false(arch->layer_is_moe[0] || arch->layer_is_moe[1]);
    arch_free(arch);
    arch = parsed("{" MOE "," QUANT "}");
    assert_int_equal(arch->experts, 8);
    assert_int_equal(arch->top_k, 2);
    assert_int_equal(arch_intermediate(arch, 3), 192);
    char name[ARCH_NAME_MAX];
    arch_matrix_name(arch, 3, 5, KERNELS_GATE, name);
    assert_string_equal(name, "model.layers.3.mlp.experts.5.gate_proj");
    arch_free(arch);
}

/* modules_to_not_convert is by whole path; no part of the reader may match "gate" inside gate_proj. */
static void a30_not_convert(void **state)
{
    (void)state;
    arch_free(parsed("{" DENSE ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
                     "\"modules_to_not_convert\":[\"gate\",\"mlp.gate\",\"lm_head\"]}}"));
}

static void a32_a33_other_quantizations(void **state)
{
    (void)state;
    UNSUPPORTED("{" DENSE ",\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}}", "128x128", "fp8",
                "no weight_block_size", "per-tensor");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":{\"quant_algo\":\"FP8\",\"producer\":{\"name\":\"modelopt\"}}}", "modelopt FP8",
                "no weight_block_size");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}}",
                "compressed-tensors", "pack-quantized");
    UNSUPPORTED("{" DENSE ",\"torch_dtype\":\"bfloat16\"}", "bfloat16", "no quantization_config");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":null}", "no quantization_config");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":7}", "quantization_config is 7");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,64]}}",
                "weight_block_size[1] is 64");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}}", "weight_block_size");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128.0,128]}}", "weight_block_size[0]");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\",\"weight_block_size\":[128,128]}}",
                "fmt is \"e5m2\"");
    UNSUPPORTED("{" DENSE ",\"quantization_config\":{\"weight_block_size\":[128,128]}}", "no quant_method");
}

static void other_families(void **state)
{
    (void)state;
    UNSUPPORTED("{\"model_type\":\"kimi_k25\",\"text_config\":{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}}",
                "compressed-tensors", "128x128");
    UNSUPPORTED("{\"model_type\":\"llama\"," QUANT "}", "\"llama\"", "supported: qwen3, qwen3_moe");
    BAD("{" QUANT "}", "model_type");
    BAD("{\"model_type\":3}", "model_type");
    UNSUPPORTED("{" DENSE ",\"hidden_act\":\"gelu\"," QUANT "}", "hidden_act is \"gelu\"", "silu");
    UNSUPPORTED("{" DENSE ",\"hidden_act\":null," QUANT "}", "hidden_act is null");
    UNSUPPORTED("{" MOE ",\"shared_expert_intermediate_size\":64," QUANT "}", "shared_expert_intermediate_size is 64");
}

static void a37_spellings(void **state)
{
    (void)state;
    static const char *const keys[] = {"num_experts", "n_routed_experts", "num_local_experts"};
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++) {
        char text[600];
        snprintf(text, sizeof text, "{" MOE_BUT_LAYERS ",\"%s\":16,\"num_hidden_layers\":2," QUANT "}", keys[i]);
        struct arch *arch = parsed(text);
        assert_int_equal(arch->experts, 16);
        arch_free(arch);
    }
    BAD("{" MOE_BUT_LAYERS ",\"num_hidden_layers\":2," QUANT "}", "num_experts, n_routed_experts, num_local_experts");
    BAD("{" MOE ",\"num_local_experts\":9," QUANT "}", "num_experts is 8 but num_local_experts is 9");
    BAD("{\"model_type\":\"qwen3\"," QUANT "}", "looked for hidden_size");
    BAD("{\"model_type\":\"qwen3_moe\",\"hidden_size\":256,\"num_experts\":8,\"num_hidden_layers\":2,\"num_experts_per_tok\":2," QUANT "}",
        "looked for moe_intermediate_size");
}

static void hostile(void **state)
{
    (void)state;
    static const char *const bad[] = {"2147483648", "1025", "0", "-1", "28.0", "\"28\"", "[28]", "{}", "true", "1e2", "99999999999"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "{\"model_type\":\"qwen3\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":%s," QUANT "}", bad[i]);
        BAD(text, "num_hidden_layers", "from 1 to 1024");
        snprintf(text, sizeof text,
                 "{\"model_type\":\"qwen3\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":2," QUANT
                 ",\"mlp_only_layers\":%s}",
                 bad[i]);
        arch_free(parsed(text)); /* not a key of this family */
    }
    BAD("{\"model_type\":\"qwen3\",\"hidden_size\":65537,\"intermediate_size\":64,\"num_hidden_layers\":2," QUANT "}",
        "hidden_size is 65537");
    BAD("{\"model_type\":\"qwen3\",\"hidden_size\":64,\"intermediate_size\":262145,\"num_hidden_layers\":2," QUANT "}", "262145");
    BAD("{" MOE_BUT_LAYERS ",\"num_experts\":4097,\"num_hidden_layers\":2," QUANT "}", "num_experts is 4097", "4096");
    BAD("{" MOE_BUT_LAYERS ",\"num_experts\":1,\"num_hidden_layers\":2," QUANT "}", "num_experts_per_tok is 2", "from 1 to 1");
    BAD("{" MOE ",\"mlp_only_layers\":[-1]," QUANT "}", "mlp_only_layers[0] is -1");
    BAD("{" MOE ",\"mlp_only_layers\":[0.5]," QUANT "}", "mlp_only_layers[0]");
    BAD("{" MOE ",\"mlp_only_layers\":7," QUANT "}", "mlp_only_layers is 7");
    BAD("{" MOE ",\"decoder_sparse_step\":0," QUANT "}", "decoder_sparse_step is 0");
    BAD("[]", "JSON object");
    BAD("{", "line 1");
    BAD("{\"model_type\":\"qwen3\",\"model_type\":\"qwen3\"}", "duplicate");
    BAD("", "line");
    size_t length = 100000;
    char *deep = malloc(length + 1);
    assert_non_null(deep);
    memset(deep, '[', length);
    deep[length] = '\0';
    BAD(deep, "depth");
    free(deep);
    struct err err = {0};
    struct arch *arch = NULL;
    assert_true(arch_parse("", ARCH_CONFIG_BYTES_MAX + 1u, "config.json", &arch, &err) < 0);
    assert_non_null(strstr(err.message, "limit"));
}

static void shape_only(void **state)
{
    (void)state;
    const char *text = "{" DENSE ",\"torch_dtype\":\"bfloat16\"}";
    struct arch *arch = NULL;
    assert_int_equal(arch_parse_shape(text, strlen(text), "config.json", &arch, NULL), 0);
    assert_int_equal(arch->dense_intermediate, 3072);
    arch_free(arch);
}

static void from_directory(void **state)
{
    (void)state;
    struct arch *arch = NULL;
    struct err err = {0};
    assert_int_equal(arch_read(TEST_DATA "/shakespeare-moe-fp8", &arch, &err), 0);
    assert_int_equal(arch->layers, 4);
    assert_int_equal(arch->dense_intermediate, 768);
    assert_int_equal(arch->moe_intermediate, 192);
    assert_false(arch->layer_is_moe[0]);
    assert_true(arch->layer_is_moe[1] && arch->layer_is_moe[3]);
    arch_free(arch);
    arch = NULL;
    assert_int_equal(arch_read(TEST_DATA "/none", &arch, &err), -ENOENT);
    assert_int_equal(err.name, ERR_NO_SUCH);
    assert_non_null(strstr(err.message, "none: No such file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense),           cmocka_unit_test(moe_layers),
        cmocka_unit_test(a30_not_convert), cmocka_unit_test(a32_a33_other_quantizations),
        cmocka_unit_test(other_families),  cmocka_unit_test(a37_spellings),
        cmocka_unit_test(hostile),         cmocka_unit_test(shape_only),
        cmocka_unit_test(from_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The config.json files of public models, and tensor names family by family. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/model/arch.h"

#define CONFIG_MAX 65536

static int parse(const char *name, bool shape_only, struct arch **ret_arch, struct err *err)
{
    char path[512], text[CONFIG_MAX];
    snprintf(path, sizeof path, "%s/configs/%s.json", TEST_DATA, name);
    FILE *file = fopen(path, "re");
    if (!file)
        fail_msg("%s: %s", path, strerror(errno));
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    assert_true(length > 0 && length < sizeof text);
    return (shape_only ? arch_parse_shape : arch_parse)(text, length, path, ret_arch, err);
}

static struct arch *parsed(const char *name, bool shape_only)
{
    struct arch *arch = NULL;
    struct err err = {0};
    if (parse(name, shape_only, &arch, &err) < 0)
        fail_msg("%s", err.message);
    return arch;
}

static void supported(void **state)
{
    (void)state;
    static const struct {
        const char *config, *family;
        bool bf16; /* published without quantization_config: its shape is known, a load is refused */
        uint32_t hidden, layers, mtp, first_moe, dense, moe, experts, top_k, shared;
    } models[] = {
        {"qwen3-0.6b", "qwen3", true, 1024, 28, 0, 28, 3072, 0, 0, 0, 0},
        {"qwen3-32b-fp8", "qwen3", false, 5120, 64, 0, 64, 25600, 0, 0, 0, 0},
        {"qwen3-30b-a3b-fp8", "qwen3_moe", false, 2048, 48, 0, 0, 0, 768, 128, 8, 0},
        {"qwen3-coder-480b-a35b-instruct", "qwen3_moe", true, 6144, 62, 0, 0, 0, 2560, 160, 8, 0},
        {"qwen3.5-35b-a3b", "qwen3_5_moe", true, 2048, 40, 1, 0, 0, 512, 257, 9, 0},
        {"qwen3.5-397b-a17b", "qwen3_5_moe", true, 4096, 60, 1, 0, 0, 1024, 513, 11, 0},
        {"deepseek-r1", "deepseek_v3", false, 7168, 61, 1, 3, 18432, 2048, 256, 8, 2048},
        {"deepseek-v3", "deepseek_v3", false, 7168, 61, 1, 3, 18432, 2048, 256, 8, 2048},
        {"deepseek-v3.2", "deepseek_v32", false, 7168, 61, 1, 3, 18432, 2048, 256, 8, 2048},
        {"deepseek-v3.1-nvfp4", "deepseek_v3", true, 7168, 61, 1, 3, 18432, 2048, 256, 8, 2048},
        {"kimi-k2-instruct", "kimi_k2", false, 7168, 61, 0, 1, 18432, 2048, 384, 8, 2048},
        {"glm-5-fp8", "glm_moe_dsa", false, 6144, 78, 1, 3, 12288, 2048, 256, 8, 2048},
        {"glm-5.2-fp8", "glm_moe_dsa", false, 6144, 78, 1, 3, 12288, 2048, 256, 8, 2048},
        {"mimo-v2-flash", "mimo_v2_flash", false, 4096, 48, 0, 1, 16384, 2048, 256, 8, 0},
        {"minimax-m2.5", "minimax_m2", false, 3072, 62, 0, 0, 0, 1536, 256, 8, 0},
        {"minimax-m2.7", "minimax_m2", false, 3072, 62, 0, 0, 0, 1536, 256, 8, 0},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(models); i++) {
        print_message("%s\n", models[i].config);
        struct arch *arch = parsed(models[i].config, models[i].bf16);
        assert_string_equal(arch_family_name(arch), models[i].family);
        assert_int_equal(arch->quantized, !models[i].bf16);
        assert_int_equal(arch->hidden, models[i].hidden);
        assert_int_equal(arch->layers, models[i].layers);
        assert_int_equal(arch->mtp_layers, models[i].mtp);
        for (uint32_t layer = 0; layer < arch->layers; layer++)
            assert_int_equal(arch->layer_is_moe[layer], layer >= models[i].first_moe);
        assert_int_equal(arch->dense_intermediate, models[i].dense);
        assert_int_equal(arch->moe_intermediate, models[i].moe);
        assert_int_equal(arch->experts, models[i].experts);
        assert_int_equal(arch->top_k, models[i].top_k);
        assert_int_equal(arch->shared_intermediate, models[i].shared);
        arch_free(arch);
        if (models[i].bf16) {
            struct err err = {0};
            assert_int_equal(parse(models[i].config, false, &arch, &err), -ENOTSUP);
            if (err.name != ERR_UNSUPPORTED_MODEL || !strstr(err.message, "none, weights bfloat16"))
                fail_msg("%s", err.message);
        }
    }
}

static void refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *config, *words[4];
    } models[] = {
        {"qwen3-32b-fp8-static-pertensor", {"modelopt FP8", "no weight_block_size", "per-tensor or per-channel"}},
        {"kimi-k2.5", {"compressed-tensors pack-quantized", "int4 group 32", "128x128"}},
        {"deepseek-v4-flash", {"\"deepseek_v4\"", "experts fp4", "supported: qwen3, qwen3_moe"}},
        {"deepseek-v4-flash-fp8", {"\"deepseek_ref\"", "fp8 e4m3"}},
        {"step-3.7-flash-fp8", {"\"step3p7\"", "fp8"}},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(models); i++) {
        struct arch *arch = NULL;
        struct err err = {0};
        assert_int_equal(parse(models[i].config, false, &arch, &err), -ENOTSUP);
        assert_null(arch);
        assert_int_equal(err.name, ERR_UNSUPPORTED_MODEL);
        for (size_t w = 0; w < ARRAY_LENGTH(models[i].words) && models[i].words[w]; w++)
            if (!strstr(err.message, models[i].words[w]))
                fail_msg("\"%s\" does not say \"%s\"", err.message, models[i].words[w]);
    }
}

static void name_is(const struct arch *arch, uint32_t layer, int expert, enum kernels_matrix matrix, const char *want)
{
    char name[ARCH_NAME_MAX], prefix[ARCH_NAME_MAX];
    arch_matrix_name(arch, layer, expert, matrix, name);
    assert_string_equal(name, want);
    arch_layer_prefix(arch, layer, prefix);
    assert_int_equal(strncmp(name, prefix, strlen(prefix)), 0);
    assert_int_equal(prefix[strlen(prefix) - 1], '.');
}

static void names(void **state)
{
    (void)state;
    struct arch *arch = parsed("deepseek-v3.2", false);
    name_is(arch, 2, ARCH_EXPERT_DENSE, KERNELS_GATE, "model.layers.2.mlp.gate_proj");
    name_is(arch, 3, 255, KERNELS_UP, "model.layers.3.mlp.experts.255.up_proj");
    name_is(arch, 60, ARCH_EXPERT_SHARED, KERNELS_DOWN, "model.layers.60.mlp.shared_experts.down_proj");
    assert_int_equal(arch_add_mtp(arch, "x", NULL), 0);
    assert_int_equal(arch->layers, 62);
    assert_true(arch->layer_is_moe[61]);
    name_is(arch, 61, 0, KERNELS_GATE, "model.layers.61.mlp.experts.0.gate_proj");
    assert_int_equal(arch_add_mtp(arch, "x", NULL), 0); /* once */
    assert_int_equal(arch->layers, 62);
    arch_free(arch);
    arch = parsed("minimax-m2.5", false);
    name_is(arch, 0, 7, KERNELS_GATE, "model.layers.0.block_sparse_moe.experts.7.w1");
    name_is(arch, 0, 7, KERNELS_UP, "model.layers.0.block_sparse_moe.experts.7.w3");
    name_is(arch, 0, 7, KERNELS_DOWN, "model.layers.0.block_sparse_moe.experts.7.w2");
    arch_free(arch);
    arch = parsed("qwen3.5-35b-a3b", true);
    assert_true(arch->gated_shared);
    name_is(arch, 39, 255, KERNELS_GATE, "model.language_model.layers.39.mlp.experts.255.gate_proj");
    name_is(arch, 39, 256, KERNELS_GATE, "model.language_model.layers.39.mlp.shared_expert.gate_proj");
    assert_int_equal(arch_add_mtp(arch, "x", NULL), 0);
    name_is(arch, 40, 3, KERNELS_DOWN, "mtp.layers.0.mlp.experts.3.down_proj");
    arch_free(arch);
}

static struct arch *deepseek(const char *more, struct err *err)
{
    char text[1024];
    struct arch *arch = NULL;
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"deepseek_v3\",\"hidden_size\":256,\"intermediate_size\":512,\"moe_intermediate_size\":128,"
                     "\"n_routed_experts\":8,\"num_experts_per_tok\":2,%s\"quantization_config\":{\"quant_method\":\"fp8\","
                     "\"weight_block_size\":[128,128]}}",
                     more);
    return arch_parse(text, (size_t)n, "config.json", &arch, err) < 0 ? NULL : arch;
}

static void layers_are(const char *more, const char *kinds)
{
    struct err err = {0};
    struct arch *arch = deepseek(more, &err);
    if (!arch)
        fail_msg("%s", err.message);
    assert_int_equal(arch->layers, strlen(kinds));
    for (uint32_t i = 0; i < arch->layers; i++)
        if (arch->layer_is_moe[i] != (kinds[i] == 'm'))
            fail_msg("%s: layer %u", more, i);
    arch_free(arch);
}

static void bad(const char *more, const char *words)
{
    struct err err = {0};
    assert_null(deepseek(more, &err));
    if (!strstr(err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void first_dense_layers(void **state)
{
    (void)state;
    layers_are("\"num_hidden_layers\":5,\"first_k_dense_replace\":3,", "dddmm");
    layers_are("\"num_hidden_layers\":5,\"first_k_dense_replace\":0,", "mmmmm");
    layers_are("\"num_hidden_layers\":2,\"first_k_dense_replace\":3,", "dd");
    layers_are("\"num_hidden_layers\":6,\"first_k_dense_replace\":1,\"moe_layer_freq\":2,", "ddmdmd");
    layers_are("\"num_hidden_layers\":4,\"moe_layer_freq\":[0,1,0,1],", "dmdm");
    layers_are("\"num_hidden_layers\":3,\"first_k_dense_replace\":1,\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\"],", "dmm");
    bad("\"num_hidden_layers\":3,\"moe_layer_freq\":[0,1],", "moe_layer_freq has 2 entries for 3 layers");
    bad("\"num_hidden_layers\":2,\"moe_layer_freq\":[0,2],", "moe_layer_freq[1] is 2");
    bad("\"num_hidden_layers\":2,\"mlp_layer_types\":[\"dense\",\"moe\"],", "mlp_layer_types[1] is \"moe\"");
    bad("\"num_hidden_layers\":2,", "looked for first_k_dense_replace");
    bad("\"num_hidden_layers\":2,\"first_k_dense_replace\":1,\"moe_layer_freq\":0,", "moe_layer_freq is 0");
    bad("\"num_hidden_layers\":2,\"first_k_dense_replace\":1,\"n_shared_experts\":3000,", "n_shared_experts is 3000: 384000 neurons");
    bad("\"num_hidden_layers\":2,\"first_k_dense_replace\":1,\"swiglu_limit\":7.0,", "swiglu_limit is 7");
}

static void shared_experts(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        uint32_t wide;
    } cases[] = {{"\"n_shared_experts\":1,", 128}, {"\"n_shared_experts\":2,", 256}, {"\"n_shared_experts\":null,", 0}, {"", 0}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        char more[200];
        snprintf(more, sizeof more, "\"num_hidden_layers\":2,\"first_k_dense_replace\":1,%s", cases[i].more);
        struct arch *arch = deepseek(more, NULL);
        assert_non_null(arch);
        assert_int_equal(arch->shared_intermediate, cases[i].wide);
        assert_false(arch->gated_shared);
        arch_free(arch);
    }
}

/* A35: nothing is made of what nobody asked for. */
static void a35_announced_layers(void **state)
{
    (void)state;
    struct err err = {0};
    struct arch *arch = deepseek("\"num_hidden_layers\":8,\"first_k_dense_replace\":1,\"num_nextn_predict_layers\":2147483648,", &err);
    assert_non_null(arch);
    assert_int_equal(arch->layers, 8);
    assert_int_equal(arch_add_mtp(arch, "config.json", &err), -EINVAL);
    assert_non_null(strstr(err.message, "num_nextn_predict_layers is 2147483648; with 8 layers before them at most 1016"));
    assert_int_equal(arch->layers, 8);
    arch_free(arch);
    arch = deepseek("\"num_hidden_layers\":1024,\"first_k_dense_replace\":1,\"num_nextn_predict_layers\":1,", &err);
    assert_int_equal(arch_add_mtp(arch, "config.json", &err), -EINVAL);
    arch_free(arch);
    arch = parsed("kimi-k2-instruct", false);
    assert_int_equal(arch_add_mtp(arch, "config.json", &err), -ENOTSUP);
    assert_non_null(strstr(err.message, "num_nextn_predict_layers is 0"));
    arch_free(arch);
    arch = parsed("minimax-m2.5", false);
    assert_int_equal(arch_add_mtp(arch, "config.json", &err), -ENOTSUP);
    assert_non_null(strstr(err.message, "family minimax_m2 has no MTP layers that fp9 knows"));
    arch_free(arch);
}

static void text_config(void **state)
{
    (void)state;
    struct err err = {0};
    struct arch *arch = NULL;
    const char *none = "{\"model_type\":\"qwen3_5_moe\",\"hidden_size\":256}", *other = "{\"model_type\":\"qwen3_5_moe\",\"text_config\":{"
                                                                                        "\"model_type\":\"qwen3_moe\"}}";
    assert_int_equal(arch_parse_shape(none, strlen(none), "config.json", &arch, &err), -EINVAL);
    assert_non_null(strstr(err.message, "no text_config"));
    assert_int_equal(arch_parse_shape(other, strlen(other), "config.json", &arch, &err), -ENOTSUP);
    assert_non_null(strstr(err.message, "is \"qwen3_moe\", that of a qwen3_5_moe is \"qwen3_5_moe_text\""));
    const char *wide = "{\"model_type\":\"qwen3_5_moe\",\"text_config\":{\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":256,"
                       "\"num_hidden_layers\":2,\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64,"
                       "\"shared_expert_intermediate_size\":128}}";
    assert_int_equal(arch_parse_shape(wide, strlen(wide), "config.json", &arch, &err), -ENOTSUP);
    assert_non_null(strstr(err.message, "shared_expert_intermediate_size is 128 but moe_intermediate_size is 64"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(supported),          cmocka_unit_test(refused_by_name), cmocka_unit_test(names),
        cmocka_unit_test(first_dense_layers), cmocka_unit_test(shared_experts),  cmocka_unit_test(a35_announced_layers),
        cmocka_unit_test(text_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

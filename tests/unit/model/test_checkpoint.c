#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "daemon/model/checkpoint.h"
#include "daemon/model/plan.h"
#include "proto/base/safetensors.h"
#include "tests/unit/model/fixture.h"

static int try_open(const char *dir, struct checkpoint **ret_checkpoint, struct err *err)
{
    struct arch *arch = NULL;
    int r = arch_read(dir, &arch, err);
    if (r == 0)
        r = checkpoint_open(dir, arch, ret_checkpoint, err);
    arch_free(arch);
    return r;
}

static struct checkpoint *opened(const char *dir)
{
    struct checkpoint *checkpoint = NULL;
    struct err err = {0};
    if (try_open(dir, &checkpoint, &err) < 0)
        fail_msg("%s", err.message);
    return checkpoint;
}

static void refused(const char *dir, const char *const *words)
{
    struct checkpoint *checkpoint = NULL;
    struct err err = {0};
    int r = try_open(dir, &checkpoint, &err);
    assert_true(r < 0);
    assert_null(checkpoint);
    assert_int_equal(err.code, r);
    if (err.name != ERR_BAD_CHECKPOINT)
        fail_msg("%s: %s", err_name_text(err.name), err.message);
    for (; *words; words++)
        if (!strstr(err.message, *words))
            fail_msg("\"%s\" does not say \"%s\"", err.message, *words);
}
#define REFUSED(dir, ...) refused(dir, (const char *const[]){__VA_ARGS__, NULL})

static uint8_t *read_all(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix)
{
    struct err err = {0};
    uint8_t *bytes = malloc((size_t)matrix->rows * matrix->columns);
    assert_non_null(bytes);
    if (checkpoint_read(checkpoint, matrix, 0, matrix->rows, bytes, &err) < 0)
        fail_msg("%s", err.message);
    return bytes;
}

static void opens_whole(void **state)
{
    const char *dir = *state;
    struct checkpoint *checkpoint = opened(dir);
    assert_string_equal(checkpoint_ignored(checkpoint), "");
    assert_string_equal(checkpoint_dir(checkpoint), dir);
    assert_int_equal(checkpoint_weight_bytes(checkpoint), 3 * 256 * (768 + 3 * 8 * 192));
    const struct checkpoint_matrix *down = checkpoint_find(checkpoint, 2, 5, KERNELS_DOWN);
    assert_string_equal(down->name, "model.layers.2.mlp.experts.5.down_proj");
    assert_int_equal(down->rows, 256);
    assert_int_equal(down->columns, 192);
    assert_int_equal(down->scale_rows, 2);
    assert_int_equal(down->scale_columns, 2);
    assert_string_equal(checkpoint_shard_name(checkpoint, down->shard), FIXTURE_SHARD2);
    assert_int_equal(down->offset, fixture_offset(fixture_path(dir, FIXTURE_SHARD2), "model.layers.2.mlp.experts.5.down_proj.weight"));
    const struct checkpoint_matrix *gate = checkpoint_find(checkpoint, 0, ARCH_EXPERT_DENSE, KERNELS_GATE);
    assert_int_equal(gate->rows, 768);
    assert_int_equal(gate->columns, 256);
    assert_null(checkpoint_find(checkpoint, 4, 0, KERNELS_GATE));
    assert_null(checkpoint_find(checkpoint, 1, 8, KERNELS_GATE));

    uint8_t *bytes = read_all(checkpoint, down), part[3 * 192];
    size_t length;
    uint8_t *file = fixture_read(fixture_path(dir, FIXTURE_SHARD2), &length);
    assert_memory_equal(bytes, file + down->offset, 256 * 192);
    assert_int_equal(checkpoint_read(checkpoint, down, 100, 3, part, NULL), 0);
    assert_memory_equal(part, bytes + 100 * 192, sizeof part);
    assert_true(checkpoint_read(checkpoint, down, 255, 2, part, NULL) < 0);
    free(file);
    free(bytes);
    checkpoint_free(checkpoint);
}

static void a01_git_lfs_pointer(void **state)
{
    const char *text = "version https://git-lfs.github.com/spec/v1\n"
                       "oid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 4998528\n";
    fixture_write(fixture_path(*state, FIXTURE_SHARD2), text, strlen(text));
    REFUSED(*state, FIXTURE_SHARD2, "looks like a Git LFS pointer");
}

static void a03_truncated(void **state)
{
    assert_int_equal(truncate(fixture_path(*state, FIXTURE_SHARD1), 2244192 - 1), 0);
    REFUSED(*state, FIXTURE_SHARD1, "truncated", "expected 2234936 bytes", "has 2234935");
    assert_int_equal(truncate(fixture_path(*state, FIXTURE_SHARD1), 100), 0);
    REFUSED(*state, FIXTURE_SHARD1, "truncated in the header");
}

static void a05_same_range_twice(void **state)
{
    fixture_replace_header(fixture_path(*state, FIXTURE_SHARD1), "[492720,689328]", "[296088,492696]");
    REFUSED(*state, "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight", "overlap");
}

static void a12_missing_shards(void **state)
{
    unlink(fixture_path(*state, FIXTURE_SHARD1));
    REFUSED(*state, "1 of 2 files", FIXTURE_SHARD1, "incomplete download");
    unlink(fixture_path(*state, FIXTURE_SHARD2));
    REFUSED(*state, "2 of 2 files", FIXTURE_SHARD1, FIXTURE_SHARD2);
    unlink(fixture_path(*state, FIXTURE_INDEX));
    REFUSED(*state, "nor any *.safetensors");
}

static void a14_extra_files_are_ignored(void **state)
{
    const char *dir = *state;
    struct checkpoint *checkpoint = opened(dir);
    const struct checkpoint_matrix *matrix = checkpoint_find(checkpoint, 1, 0, KERNELS_UP);
    uint8_t *before = read_all(checkpoint, matrix);
    checkpoint_free(checkpoint);
    size_t length;
    uint8_t *other = fixture_read(fixture_path(dir, FIXTURE_SHARD1), &length);
    memset(other + length / 2, 0x38, length / 2);
    fixture_write(fixture_path(dir, "consolidated.safetensors"), other, length);
    free(other);
    checkpoint = opened(dir);
    assert_string_equal(checkpoint_ignored(checkpoint), "consolidated.safetensors");
    uint8_t *after = read_all(checkpoint, checkpoint_find(checkpoint, 1, 0, KERNELS_UP));
    assert_memory_equal(before, after, 192 * 256);
    free(before);
    free(after);
    checkpoint_free(checkpoint);

    /* Without the index nothing says which one counts. */
    unlink(fixture_path(dir, FIXTURE_INDEX));
    REFUSED(dir, "consolidated.safetensors", FIXTURE_SHARD1, "is in");
}

static void a15_without_index(void **state)
{
    const char *dir = *state;
    unlink(fixture_path(dir, FIXTURE_INDEX));
    checkpoint_free(opened(dir));
    /* One file under the usual name: only the layers of the first shard. */
    unlink(fixture_path(dir, FIXTURE_SHARD2));
    assert_int_equal(rename(fixture_path(dir, FIXTURE_SHARD1), fixture_path(dir, "model.safetensors")), 0);
    fixture_replace(fixture_path(dir, "config.json"), "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 1");
    struct checkpoint *checkpoint = opened(dir);
    assert_string_equal(checkpoint_shard_name(checkpoint, 0), "model.safetensors");
    checkpoint_free(checkpoint);
}

static void a16_any_shard_names(void **state)
{
    const char *dir = *state;
    size_t length;
    char *index = (char *)fixture_read(fixture_path(dir, FIXTURE_INDEX), &length), *at = index;
    while ((at = strstr(at, FIXTURE_SHARD1)))
        memcpy(at, "zz.safetensors-00001-of-00002.xx", strlen(FIXTURE_SHARD1));
    fixture_write(fixture_path(dir, FIXTURE_INDEX), index, length);
    free(index);
    assert_int_equal(rename(fixture_path(dir, FIXTURE_SHARD1), fixture_path(dir, "zz.safetensors-00001-of-00002.xx")), 0);
    checkpoint_free(opened(dir));
}

static void index_is_checked(void **state)
{
    const char *index = fixture_path(*state, FIXTURE_INDEX);
    size_t length;
    uint8_t *good = fixture_read(index, &length);
    static const char *const names[] = {"../config.json", "/etc/passwd", "..", ".", "", "a/b.safetensors", "a\\u0000b"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        fixture_write(index, good, length);
        fixture_replace(index, FIXTURE_SHARD1, names[i]);
        REFUSED(*state, "not a plain file name");
    }
    static const char *const texts[] = {"{}",
                                        "[]",
                                        "{\"weight_map\":{}}",
                                        "{\"weight_map\":[]}",
                                        "{\"weight_map\":\"x\"}",
                                        "{\"weight_map\":{\"a\":1}}",
                                        "null",
                                        "",
                                        "{\"weight_map\":{\"a\":{}}}",
                                        "{\"weight_map\":{\"a\":\"f\"},\"weight_map\":{\"a\":\"f\"}}",
                                        "{\"weight_map\":{\"a\":\"f\",\"a\":\"f\"}}",
                                        "{\"weight_map\":{\"a\":\"f\"}",
                                        "[[[[[[[[[[[[[[[[[[[[[[[[[[[["};
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) {
        fixture_write(index, texts[i], strlen(texts[i]));
        REFUSED(*state, FIXTURE_INDEX);
    }
    fixture_write(index, good, length);
    fixture_replace(index, "\"model.norm.weight\": \"" FIXTURE_SHARD2, "\"model.norm.weight\": \"" FIXTURE_SHARD1);
    REFUSED(*state, "model.norm.weight", FIXTURE_SHARD1, "not there");
    fixture_write(index, good, length);
    fixture_replace(index, "\"weight_map\": {", "\"more\": [{\"weight_map\": 3}], \"weight_map\": {\n\"m\": \"" FIXTURE_SHARD1 "\",");
    REFUSED(*state, "tensor m is in " FIXTURE_SHARD1);
    free(good);
}

/* Rewrites layer 0's gate scales [6, 2] to another dtype, by a file of its own. */
static void scales_as(const char *dir, enum safetensors_dtype dtype, const void *data)
{
    struct safetensors_item item = {.name = "model.layers.0.mlp.gate_proj.weight_scale_inv",
                                    .dtype = dtype,
                                    .dims = 2,
                                    .shape = (const uint64_t[]){6, 2},
                                    .data = data};
    assert_int_equal(safetensors_write(fixture_path(dir, "scales.safetensors"), &item, 1, NULL), 0);
}

static void point_scales(const char *dir)
{
    fixture_replace(fixture_path(dir, FIXTURE_INDEX), "gate_proj.weight_scale_inv\": \"" FIXTURE_SHARD1,
                    "gate_proj.weight_scale_inv\": \"scales.safetensors");
}

static void a17_scale_dtypes(void **state)
{
    const char *dir = *state;
    float values[12];
    uint16_t bf16[12], f16[12];
    for (int i = 0; i < 12; i++) { /* powers of two and their halves again: exact in all three */
        values[i] = (i % 2 ? 1.5f : 1.0f) / (float)(1 << i);
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bf16[i] = (uint16_t)(bits >> 16);
        f16[i] = (uint16_t)((15 - i) << 10 | (i % 2) << 9);
    }
    point_scales(dir);
    const struct {
        enum safetensors_dtype dtype;
        const void *data;
    } kinds[] = {{SAFETENSORS_F32, values}, {SAFETENSORS_BF16, bf16}, {SAFETENSORS_F16, f16}};
    for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++) {
        scales_as(dir, kinds[i].dtype, kinds[i].data);
        struct checkpoint *checkpoint = opened(dir);
        const struct checkpoint_matrix *gate = checkpoint_find(checkpoint, 0, ARCH_EXPERT_DENSE, KERNELS_GATE);
        assert_null(gate->scales);
        assert_int_equal(checkpoint_scales_hold(checkpoint, 0, NULL), 0);
        assert_memory_equal(gate->scales, values, sizeof values);
        checkpoint_scales_drop(checkpoint, 0);
        assert_null(gate->scales);
        checkpoint_free(checkpoint);
    }
    static const uint64_t zeros[12];
    scales_as(dir, SAFETENSORS_F64, zeros);
    REFUSED(dir, "gate_proj.weight_scale_inv is F64", "F32, BF16 or F16");
}

static void a20_missing_scale_or_weight(void **state)
{
    const char *dir = *state;
    fixture_replace(fixture_path(dir, FIXTURE_INDEX), "\"model.layers.0.mlp.gate_proj.weight_scale_inv\": \"" FIXTURE_SHARD1 "\",", "");
    REFUSED(dir, "missing scale tensor model.layers.0.mlp.gate_proj.weight_scale_inv");
    fixture_replace(fixture_path(dir, FIXTURE_INDEX), "\"model.layers.0.mlp.gate_proj.weight\": \"" FIXTURE_SHARD1 "\",", "");
    REFUSED(dir, "missing weight tensor model.layers.0.mlp.gate_proj.weight");
    /* The same without an index, and with the other kind of scale in its place (A32). */
    unlink(fixture_path(dir, FIXTURE_INDEX));
    fixture_replace_header(fixture_path(dir, FIXTURE_SHARD1), "layers.1.mlp.experts.3.up_proj.weight_scale_inv",
                           "layers.1.mlp.experts.3.up_proj.weight_scale");
    REFUSED(dir, "missing scale tensor model.layers.1.mlp.experts.3.up_proj.weight_scale_inv", "needs 128x128 block FP8");
}

static void a21_scale_shapes(void **state)
{
    const char *shard = fixture_path(*state, FIXTURE_SHARD1);
    size_t length;
    uint8_t *good = fixture_read(shard, &length);
    static const char *const shapes[] = {"[2, 6]", "[12]", "[3, 4]", "[6, 2, 1]", "[12, 1]"};
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++) {
        fixture_write(shard, good, length);
        char to[160];
        snprintf(to, sizeof to, "gate_proj.weight_scale_inv\":{\"dtype\":\"BF16\",\"shape\":%s", shapes[i]);
        fixture_replace_header(shard, "gate_proj.weight_scale_inv\":{\"dtype\":\"BF16\",\"shape\":[6,2]", to);
        REFUSED(*state, "model.layers.0.mlp.gate_proj.weight_scale_inv", shapes[i], "[768, 256]", "[6, 2]");
    }
    free(good);
}

static void weights_must_be_fp8_of_the_configs_shape(void **state)
{
    const char *shard = fixture_path(*state, FIXTURE_SHARD1);
    size_t length;
    uint8_t *good = fixture_read(shard, &length);
    fixture_replace_header(shard, "gate_proj.weight\":{\"dtype\":\"F8_E4M3\"", "gate_proj.weight\":{\"dtype\":\"F8_E5M2\"");
    REFUSED(*state, FIXTURE_SHARD1, "model.layers.0.mlp.gate_proj.weight is F8_E5M2", "expected F8_E4M3");
    fixture_write(shard, good, length);
    fixture_replace_header(shard, "gate_proj.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[768,256]",
                           "gate_proj.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[256,768]");
    REFUSED(*state, FIXTURE_SHARD1, "model.layers.0.mlp.gate_proj.weight", "[256, 768]", "[768, 256]");
    free(good);
}

static void a29_scale_values(void **state)
{
    const char *shard = fixture_path(*state, FIXTURE_SHARD1);
    size_t offset = fixture_offset(shard, "model.layers.0.mlp.gate_proj.weight_scale_inv") + 2 * (2 * 3 + 1); /* block [3, 1] */
    static const uint16_t bad[] = {0x7fc0, 0x7f80, 0xff80, 0x7f7f, 0xff7f, 0x6780 /* 2^80 and a step more */ + 1};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        fixture_poke(shard, offset, &bad[i], 2);
        REFUSED(*state, "model.layers.0.mlp.gate_proj.weight_scale_inv", "block [3, 1]");
    }
    static const uint16_t good[] = {0xbf80 /* -1 */, 0x0000, 0x8000, 0x6780 /* 2^80 */, 0x006d /* 1e-38 */};
    for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
        fixture_poke(shard, offset, &good[i], 2);
        checkpoint_free(opened(*state));
    }
}

static void a34_layers_beyond_are_ignored(void **state)
{
    fixture_replace(fixture_path(*state, "config.json"), "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 2");
    struct checkpoint *checkpoint = opened(*state);
    assert_null(checkpoint_find(checkpoint, 2, 0, KERNELS_GATE));
    assert_int_equal(checkpoint_weight_bytes(checkpoint), 3 * 256 * (768 + 8 * 192));
    checkpoint_free(checkpoint);
}

static void a35_missing_layer(void **state)
{
    fixture_replace(fixture_path(*state, "config.json"), "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 10");
    REFUSED(*state, "layer 4 is missing", "num_hidden_layers is 10");
}

/* A config that claims far more than the files have costs nothing. */
static void hostile_config(void **state)
{
    fixture_replace(fixture_path(*state, "config.json"), "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 1024");
    fixture_replace(fixture_path(*state, "config.json"), "\"num_experts\": 8", "\"num_experts\": 4096");
    REFUSED(*state, "missing weight tensor model.layers.1.mlp.experts.8.gate_proj.weight");
}

static void a40_changed_while_loading(void **state)
{
    const char *dir = *state;
    struct checkpoint *checkpoint = opened(dir);
    const struct checkpoint_matrix *matrix = checkpoint_find(checkpoint, 3, 7, KERNELS_GATE);
    uint8_t *bytes = read_all(checkpoint, matrix);
    struct err err = {0};
    size_t length;
    uint8_t *file = fixture_read(fixture_path(dir, FIXTURE_SHARD2), &length);
    fixture_write(fixture_path(dir, "new"), file, length);
    assert_int_equal(rename(fixture_path(dir, "new"), fixture_path(dir, FIXTURE_SHARD2)), 0);
    assert_int_equal(checkpoint_read(checkpoint, matrix, 0, 10, bytes, &err), -ESTALE);
    assert_int_equal(err.name, ERR_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message, FIXTURE_SHARD2));
    checkpoint_free(checkpoint);

    checkpoint = opened(dir);
    matrix = checkpoint_find(checkpoint, 3, 7, KERNELS_GATE);
    assert_int_equal(truncate(fixture_path(dir, FIXTURE_SHARD2), 1000000), 0);
    assert_int_equal(checkpoint_read(checkpoint, matrix, 0, 10, bytes, &err), -ESTALE);
    assert_non_null(strstr(err.message, FIXTURE_SHARD2));
    checkpoint_free(checkpoint);
    free(file);
    free(bytes);
}

static void a40_not_a_regular_file(void **state)
{
    unlink(fixture_path(*state, FIXTURE_SHARD2));
    assert_int_equal(mkfifo(fixture_path(*state, FIXTURE_SHARD2), 0600), 0);
    REFUSED(*state, FIXTURE_SHARD2, "not a regular file");
    unlink(fixture_path(*state, FIXTURE_INDEX));
    assert_int_equal(mkfifo(fixture_path(*state, FIXTURE_INDEX), 0600), 0);
    REFUSED(*state, FIXTURE_INDEX, "not a regular file");
}

static void no_such_directory(void **state)
{
    struct checkpoint *checkpoint = NULL;
    struct arch *arch = NULL;
    struct err err = {0};
    assert_int_equal(arch_read(*state, &arch, &err), 0);
    assert_int_equal(checkpoint_open("/nonexistent-dir", arch, &checkpoint, &err), -ENOENT);
    assert_int_equal(err.name, ERR_NO_SUCH);
    arch_free(arch);
}

/* More shards than descriptors that may be open: they are closed and opened again, and still recognised. */
static void many_shards(void **state)
{
    const char *dir = *state;
    enum { EXTRA = 150 };
    size_t length;
    char *index = (char *)fixture_read(fixture_path(dir, FIXTURE_INDEX), &length), *more = malloc(length + EXTRA * 64), *at;
    assert_non_null(more);
    at = strstr(index, "\"weight_map\": {");
    assert_non_null(at);
    at += strlen("\"weight_map\": {");
    int n = sprintf(more, "%.*s", (int)(at - index), index);
    for (int i = 0; i < EXTRA; i++) {
        char name[32], tensor[32];
        snprintf(name, sizeof name, "s%03d.safetensors", i);
        snprintf(tensor, sizeof tensor, "extra.%d", i);
        struct safetensors_item item = {.name = tensor, .dtype = SAFETENSORS_U8, .dims = 1, .shape = (const uint64_t[]){0}};
        assert_int_equal(safetensors_write(fixture_path(dir, name), &item, 1, NULL), 0);
        n += sprintf(more + n, "\"%s\": \"%s\",", tensor, name);
    }
    n += sprintf(more + n, "%s", at);
    fixture_write(fixture_path(dir, FIXTURE_INDEX), more, (size_t)n);
    int before = open("/dev/null", O_RDONLY);
    close(before);
    struct checkpoint *checkpoint = opened(dir);
    int after = open("/dev/null", O_RDONLY);
    close(after);
    assert_true(after - before <= 64);
    free(read_all(checkpoint, checkpoint_find(checkpoint, 0, ARCH_EXPERT_DENSE, KERNELS_UP)));
    free(read_all(checkpoint, checkpoint_find(checkpoint, 3, 0, KERNELS_UP)));
    checkpoint_free(checkpoint);
    free(index);
    free(more);
}

static void identity_and_model_key(void **state)
{
    const char *dir = *state;
    struct arch *arch = NULL;
    struct err err = {0};
    uint8_t first[DIGEST_SIZE], second[DIGEST_SIZE], keys[4][DIGEST_SIZE];
    struct checkpoint *checkpoint = opened(dir);
    checkpoint_identity(checkpoint, first);
    assert_int_equal(arch_read(dir, &arch, &err), 0);
    static const struct plan_request requests[3] = {
        {.tp = 3, .multiple_of = 64}, {.tp = 2, .multiple_of = 64}, {.tp = 3, .multiple_of = 32}};
    for (int i = 0; i < 4; i++) {
        struct plan *plan = NULL;
        assert_int_equal(plan_make(arch, &requests[i % 3], &plan, &err), 0);
        assert_int_equal(checkpoint_model_key(checkpoint, arch, plan, keys[i], &err), -EAGAIN);
        assert_int_equal(checkpoint_provisional_key(checkpoint, arch, plan, keys[i], &err), 0);
        plan_free(plan);
    }
    assert_memory_equal(keys[0], keys[3], DIGEST_SIZE);
    assert_memory_not_equal(keys[0], keys[1], DIGEST_SIZE);
    assert_memory_not_equal(keys[0], keys[2], DIGEST_SIZE);
    assert_memory_not_equal(keys[1], keys[2], DIGEST_SIZE);
    checkpoint_free(checkpoint);

    checkpoint = opened(dir);
    checkpoint_identity(checkpoint, second);
    assert_memory_equal(first, second, DIGEST_SIZE);
    checkpoint_free(checkpoint);
    size_t length;
    uint8_t *file = fixture_read(fixture_path(dir, FIXTURE_SHARD1), &length);
    unlink(fixture_path(dir, FIXTURE_SHARD1));
    fixture_write(fixture_path(dir, FIXTURE_SHARD1), file, length); /* the same bytes, rewritten */
    free(file);
    checkpoint = opened(dir);
    checkpoint_identity(checkpoint, second);
    assert_memory_not_equal(first, second, DIGEST_SIZE);
    checkpoint_free(checkpoint);
    arch_free(arch);
}

static void a24_finds_nan(void **state)
{
    (void)state;
    enum { ROWS = 37, COLUMNS = 53 };
    uint8_t codes[ROWS * COLUMNS];
    uint32_t row = 99, column = 99;
    for (size_t i = 0; i < sizeof codes; i++) /* every other code, 0x7e, 0xfe and 0x80 among them */
        codes[i] = (uint8_t)((i % 127) | (i / 127 % 2) << 7);
    assert_false(checkpoint_find_nan(codes, ROWS, COLUMNS, &row, &column));
    assert_int_equal(row, 99);
    for (size_t i = 0; i < sizeof codes; i++) {
        uint8_t was = codes[i];
        codes[i] = i % 2 ? 0x7f : 0xff;
        assert_true(checkpoint_find_nan(codes, ROWS, COLUMNS, &row, &column));
        assert_int_equal(row, i / COLUMNS);
        assert_int_equal(column, i % COLUMNS);
        codes[i] = was;
    }
    codes[5 * COLUMNS + 7] = 0x7f;
    codes[6 * COLUMNS] = 0xff;
    assert_true(checkpoint_find_nan(codes, ROWS, COLUMNS, &row, &column));
    assert_int_equal(row, 5);
    assert_int_equal(column, 7);
    assert_false(checkpoint_find_nan(codes, 0, COLUMNS, &row, &column));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_make, fixture_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(opens_whole),
        TEST(a01_git_lfs_pointer),
        TEST(a03_truncated),
        TEST(a05_same_range_twice),
        TEST(a12_missing_shards),
        TEST(a14_extra_files_are_ignored),
        TEST(a15_without_index),
        TEST(a16_any_shard_names),
        TEST(index_is_checked),
        TEST(a17_scale_dtypes),
        TEST(a20_missing_scale_or_weight),
        TEST(a21_scale_shapes),
        TEST(weights_must_be_fp8_of_the_configs_shape),
        TEST(a29_scale_values),
        TEST(a34_layers_beyond_are_ignored),
        TEST(a35_missing_layer),
        TEST(hostile_config),
        TEST(a40_changed_while_loading),
        TEST(a40_not_a_regular_file),
        TEST(no_such_directory),
        TEST(many_shards),
        TEST(identity_and_model_key),
        cmocka_unit_test(a24_finds_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Runs the real fp9-mkckpt (argument 1) and opens what it wrote. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "daemon/model/checkpoint.h"
#include "kernels/kernels.h"
#include "proto/base/safetensors.h"
#include "tests/unit/model/fixture.h"

#define CONFIGS TEST_DATA "/configs/"
#define ARGS_MAX 24

extern char **environ;
static const char *program;

/* Runs it with its output thrown away and its errors written to a file; gives the exit status. */
static int run(const char *errors, const char *const *args)
{
    char *argv[ARGS_MAX + 2] = {(char *)program};
    for (size_t i = 0; args[i]; i++) {
        assert_true(i < ARGS_MAX);
        argv[i + 1] = (char *)args[i];
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1 /* O_WRONLY */, 0);
    posix_spawn_file_actions_addopen(&actions, 2, errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child;
    int status;
    assert_int_equal(posix_spawn(&child, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}
#define RUN(...) run("/dev/null", (const char *const[]){__VA_ARGS__, NULL})

static int make_dir(void **state)
{
    char *dir = strdup("/tmp/fp9-mkckpt-XXXXXX");
    *state = dir;
    return dir && mkdtemp(dir) ? 0 : -1;
}

static struct checkpoint *opened(const char *dir, struct arch **ret_arch)
{
    struct checkpoint *checkpoint = NULL;
    struct err err = {0};
    if (arch_read(dir, ret_arch, &err) < 0 || checkpoint_open(dir, *ret_arch, &checkpoint, &err) < 0)
        fail_msg("%s", err.message);
    return checkpoint;
}

static void hold_scales(struct checkpoint *checkpoint, const struct arch *arch)
{
    for (uint32_t layer = 0; layer < arch->layers; layer++)
        assert_int_equal(checkpoint_scales_hold(checkpoint, layer, NULL), 0);
}

static uint8_t *read_all(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix)
{
    uint8_t *bytes = malloc((size_t)matrix->rows * matrix->columns);
    struct err err = {0};
    assert_non_null(bytes);
    if (checkpoint_read(checkpoint, matrix, 0, matrix->rows, bytes, &err) < 0)
        fail_msg("%s", err.message);
    return bytes;
}

/* Spread, signs and blocks of a matrix are those of real weights: no NaN code, both signs, every block scaled to its largest code. */
static void check_matrix(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix)
{
    uint8_t *codes = read_all(checkpoint, matrix);
    uint32_t row, column;
    size_t negative = 0, count = (size_t)matrix->rows * matrix->columns;
    double squares = 0, sum = 0;
    assert_false(checkpoint_find_nan(codes, matrix->rows, matrix->columns, &row, &column));
    for (row = 0; row < matrix->rows; row++) {
        for (column = 0; column < matrix->columns; column++) {
            uint8_t code = codes[(size_t)row * matrix->columns + column];
            float scale = matrix->scales[row / 128 * matrix->scale_columns + column / 128];
            double value = (double)kernels_fp9_to_f32(kernels_fp9_of_e4m3(code)) * (double)scale;
            negative += code >> 7;
            sum += value;
            squares += value * value;
        }
    }
    double spread = squares / (double)count;
    assert_true(spread > 0.01 * 0.01 && spread < 0.08 * 0.08);
    assert_true(negative > count * 0.48 && negative < count * 0.52);
    assert_true(sum / (double)count < 0.002 && sum / (double)count > -0.002);
    for (uint32_t block_row = 0; block_row < matrix->scale_rows; block_row++) {
        for (uint32_t block_column = 0; block_column < matrix->scale_columns; block_column++) {
            uint8_t largest = 0;
            for (row = block_row * 128; row < matrix->rows && row < (block_row + 1) * 128; row++)
                for (column = block_column * 128; column < matrix->columns && column < (block_column + 1) * 128; column++) {
                    uint8_t code = codes[(size_t)row * matrix->columns + column] & 0x7f;
                    largest = code > largest ? code : largest;
                }
            assert_int_equal(largest, 0x7e);
        }
    }
    free(codes);
}

static void moe(void **state)
{
    const char *dir = *state;
    assert_int_equal(RUN("--like", CONFIGS "qwen3-30b-a3b-fp8.json", "--layers", "2", "--experts", "5", "--hidden", "320",
                         "--moe-intermediate", "192", "--out", dir),
                     0);
    struct arch *arch = NULL;
    struct checkpoint *checkpoint = opened(dir, &arch);
    assert_int_equal(arch->layers, 2);
    assert_int_equal(arch->experts, 5);
    assert_int_equal(arch->top_k, 5); /* 8 of the original are more than there are */
    assert_int_equal(arch->hidden, 320);
    hold_scales(checkpoint, arch);
    for (int matrix = KERNELS_GATE; matrix <= KERNELS_DOWN; matrix++)
        check_matrix(checkpoint, checkpoint_find(checkpoint, 1, 4, (enum kernels_matrix)matrix));
    struct safetensors *file = NULL;
    assert_int_equal(safetensors_open(fixture_path(dir, "model-00001-of-00001.safetensors"), &file, NULL), 0);
    const struct safetensors_tensor *router = safetensors_find(file, "model.layers.1.mlp.gate.weight");
    assert_non_null(router);
    assert_int_equal(router->dtype, SAFETENSORS_BF16);
    assert_int_equal(router->shape[0], 5);
    assert_int_equal(router->shape[1], 320);
    assert_int_equal(safetensors_count(file), 2 * (1 + 5 * 6));
    safetensors_free(file);
    checkpoint_free(checkpoint);
    arch_free(arch);
}

/* The same seed gives the same tensors in any number of shards; another seed others. */
static void deterministic(void **state)
{
    const char *dir = *state;
    static const struct {
        const char *seed, *shard_bytes;
        bool same;
    } runs[] = {{"7", "4G", true}, {"7", "100K", true}, {"8", "4G", false}, {"7", "1", true}};
    uint8_t *first = NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(runs); i++) {
        const char *out = fixture_path(dir, "x");
        assert_int_equal(RUN("--like", CONFIGS "qwen3-0.6b.json", "--layers", "2", "--hidden", "256", "--intermediate", "320", "--seed",
                             runs[i].seed, "--shard-bytes", runs[i].shard_bytes, "--out", out),
                         0);
        struct arch *arch = NULL;
        struct checkpoint *checkpoint = opened(out, &arch);
        const struct checkpoint_matrix *down = checkpoint_find(checkpoint, 1, ARCH_EXPERT_DENSE, KERNELS_DOWN);
        uint8_t *codes = read_all(checkpoint, down);
        if (!first)
            first = STEAL(codes);
        else if (runs[i].same)
            assert_memory_equal(first, codes, 256 * 320);
        else
            assert_memory_not_equal(first, codes, 256 * 320);
        free(codes);
        checkpoint_free(checkpoint);
        arch_free(arch);
        void *gone = strdup(out);
        assert_int_equal(fixture_remove(&gone), 0);
    }
    free(first);
}

static struct checkpoint *made(const char *out, const char *fused, struct arch **ret_arch)
{
    assert_int_equal(RUN("--like", CONFIGS "qwen3.5-35b-a3b.json", "--layers", "2", "--experts", "3", "--hidden", "200",
                         "--moe-intermediate", "512", "--seed", "5", "--shard-bytes", "200K", "--out", out, fused),
                     0);
    return opened(out, ret_arch);
}

/* Every matrix has the bytes, the scales and the digest that it has in a tensor of its own; few tensors hold them all. */
static void fused_matrices_are_the_single_ones(void **state)
{
    struct arch *arch = NULL, *other = NULL;
    struct checkpoint *single = made(fixture_path(*state, "single"), NULL, &arch);
    struct checkpoint *fused = made(fixture_path(*state, "fused"), "--fused", &other);
    assert_int_equal(arch->experts, 4);
    hold_scales(single, arch);
    hold_scales(fused, other);
    for (uint32_t layer = 0; layer < 2; layer++) {
        uint8_t sources[2][DIGEST_SIZE];
        for (int i = 0; i < 4 * 3; i++) {
            const struct checkpoint_matrix *a = checkpoint_find(single, layer, i / 3, (enum kernels_matrix)(i % 3));
            const struct checkpoint_matrix *b = checkpoint_find(fused, layer, i / 3, (enum kernels_matrix)(i % 3));
            uint8_t *x = read_all(single, a), *y = read_all(fused, b), part[7 * 512];
            assert_string_equal(a->name, b->name);
            assert_int_equal(a->rows, b->rows);
            assert_int_equal(b->row_origin, 0);
            assert_memory_equal(x, y, (size_t)a->rows * a->columns);
            assert_memory_equal(a->scales, b->scales, (size_t)a->scale_rows * a->scale_columns * sizeof *a->scales);
            assert_int_equal(checkpoint_read(fused, b, b->rows - 7, 7, part, NULL), 0);
            assert_memory_equal(part, x + (size_t)(a->rows - 7) * a->columns, (size_t)7 * a->columns);
            assert_true(checkpoint_read(fused, b, b->rows - 7, 8, part, NULL) < 0);
            free(x);
            free(y);
        }
        assert_false(checkpoint_layer_sources(single, layer, sources[0]));
        assert_false(checkpoint_layer_sources(fused, layer, sources[1]));
        assert_memory_equal(sources[0], sources[1], DIGEST_SIZE);
    }
    const struct checkpoint_matrix *up = checkpoint_find(fused, 1, 2, KERNELS_UP);
    char text[200];
    assert_string_equal(checkpoint_row_text(fused, up, 5, text, sizeof text),
                        "tensor model.language_model.layers.1.mlp.experts.gate_up_proj: expert 2, row 517");
    checkpoint_free(single);
    checkpoint_free(fused);
    arch_free(arch);
    arch_free(other);
    static const char *const outs[] = {"single", "fused"};
    for (size_t i = 0; i < ARRAY_LENGTH(outs); i++) {
        void *gone = strdup(fixture_path(*state, outs[i]));
        assert_int_equal(fixture_remove(&gone), 0);
    }
}

/* Blocks that run on: the first of up begins 64 rows before it. */
static void fused_blocks_run_on(void **state)
{
    const char *out = fixture_path(*state, "on");
    assert_int_equal(
        RUN("--like", CONFIGS "qwen3-0.6b.json", "--layers", "1", "--hidden", "256", "--intermediate", "320", "--fused", "--out", out), 0);
    struct arch *arch = NULL;
    struct checkpoint *checkpoint = opened(out, &arch);
    const struct checkpoint_matrix *gate = checkpoint_find(checkpoint, 0, ARCH_EXPERT_DENSE, KERNELS_GATE);
    const struct checkpoint_matrix *up = checkpoint_find(checkpoint, 0, ARCH_EXPERT_DENSE, KERNELS_UP);
    hold_scales(checkpoint, arch);
    assert_int_equal(gate->row_origin, 0);
    assert_int_equal(gate->scale_rows, 3);
    assert_int_equal(up->row_origin, 64);
    assert_int_equal(up->scale_rows, 3);
    assert_int_equal(up->offset, gate->offset + 320 * 256);
    assert_memory_equal(gate->scales + 2 * 2, up->scales, 2 * sizeof(float));
    checkpoint_free(checkpoint);
    arch_free(arch);
    void *gone = strdup(out);
    assert_int_equal(fixture_remove(&gone), 0);
}

static void scale_dtypes(void **state)
{
    static const char *const names[] = {"f32", "bf16", "f16"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        const char *out = fixture_path(*state, names[i]);
        assert_int_equal(RUN("--like", CONFIGS "qwen3-0.6b.json", "--layers", "1", "--hidden", "200", "--intermediate", "72",
                             "--scale-dtype", names[i], "--out", out),
                         0);
        struct arch *arch = NULL;
        struct checkpoint *checkpoint = opened(out, &arch);
        hold_scales(checkpoint, arch);
        check_matrix(checkpoint, checkpoint_find(checkpoint, 0, ARCH_EXPERT_DENSE, KERNELS_UP));
        checkpoint_free(checkpoint);
        arch_free(arch);
        void *gone = strdup(out);
        assert_int_equal(fixture_remove(&gone), 0);
    }
}

static void wrong_usage(void **state)
{
    const char *out = fixture_path(*state, "x");
    const char *like = CONFIGS "qwen3-0.6b.json";
    assert_int_equal(RUN("--help"), 0);
    assert_int_equal(RUN("--version"), 0);
    assert_int_equal(RUN("--like", like), 2);
    assert_int_equal(RUN("--out", out), 2);
    assert_int_equal(RUN("--like", like, "--out", out, "more"), 2);
    assert_int_equal(RUN("--nonsense"), 2);
    static const char *const bad[][2] = {{"--layers", "0"},        {"--layers", "1025"},   {"--layers", "x"},       {"--seed", "-1"},
                                         {"--scale-dtype", "f64"}, {"--shard-bytes", "0"}, {"--shard-bytes", "4X"}, {"--experts", ""}};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        assert_int_equal(RUN("--like", like, "--out", out, bad[i][0], bad[i][1]), 2);
    assert_int_equal(access(out, F_OK), -1);
    static const char *const ranges[][3] = {{"--layers", "0", "from 1 to 1024 "},
                                            {"--layers", "9999", "from 1 to 1024 "},
                                            {"--experts", "4097", "from 1 to 4096 "},
                                            {"--hidden", "0", "from 1 to 65536 "},
                                            {"--moe-intermediate", "262145", "from 1 to 262144 "},
                                            {"--seed", "-1", "from 0 to 2^64-1 "},
                                            {"--scale-dtype", "f64", "f32, bf16 or f16 "},
                                            {"--shard-bytes", "4X", "K, M, G or T "}};
    const char *errors = fixture_path(*state, "errors");
    for (size_t i = 0; i < ARRAY_LENGTH(ranges); i++) {
        const char *const args[] = {"--like", like, "--out", out, ranges[i][0], ranges[i][1], NULL};
        char said[512];
        assert_int_equal(run(errors, args), 2);
        FILE *file = fopen(errors, "r");
        assert_non_null(file);
        assert_non_null(fgets(said, sizeof said, file));
        fclose(file);
        if (!strstr(said, ranges[i][0]) || !strstr(said, ranges[i][2]) || !strstr(said, "would be right\n"))
            fail_msg("\"%s\" does not say \"%s\"", said, ranges[i][2]);
    }
    assert_int_equal(unlink(errors), 0);
}

static void refusals(void **state)
{
    const char *dir = *state, *like = CONFIGS "qwen3-0.6b.json";
    const char *out = fixture_path(dir, "x");
    assert_int_equal(RUN("--like", fixture_path(dir, "none.json"), "--out", out), 1);
    assert_int_equal(RUN("--like", like, "--experts", "4", "--out", out), 1);
    fixture_write(fixture_path(dir, "bad.json"), "{\"model_type\":\"llama\"}", 22);
    assert_int_equal(RUN("--like", fixture_path(dir, "bad.json"), "--out", out), 1);
    /* The directory holds bad.json: not ours to mix with. */
    assert_int_equal(RUN("--like", like, "--layers", "1", "--out", dir), 1);
    assert_int_equal(access(fixture_path(dir, "config.json"), F_OK), -1);
    assert_int_equal(RUN("--like", like, "--out", fixture_path(dir, "a/b")), 1);
    assert_int_equal(RUN("--like", like, "--shard-bytes", "1", "--layers", "1000", "--out", out), 1);
    /* 1024 layers of 3 * 65536 * 262144 weights: no disk has that. Nothing is left behind. */
    assert_int_equal(RUN("--like", like, "--layers", "1024", "--hidden", "65536", "--intermediate", "262144", "--out", out), 1);
    assert_int_equal(access(out, F_OK), -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, fixture_remove)

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        TEST(moe),         TEST(deterministic), TEST(fused_matrices_are_the_single_ones), TEST(fused_blocks_run_on), TEST(scale_dtypes),
        TEST(wrong_usage), TEST(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "proto/base/safetensors.h"

static char dir[64], path[96];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/fp9-safetensors-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/f.safetensors", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

static void write_bytes(const void *start, size_t length, size_t zeros)
{
    unlink(path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fwrite(start, 1, length, file);
    for (size_t i = 0; i < zeros; i++)
        fputc((int)(i & 255), file);
    assert_int_equal(fclose(file), 0);
}

/* A file of this header text and `data` bytes 0, 1, 2 ... */
static void write_file(const char *header, size_t data)
{
    size_t length = strlen(header);
    uint8_t *bytes = malloc(length + 8);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    write_bytes(bytes, length + 8, data);
    free(bytes);
}

static void refused(const char *const *words)
{
    struct safetensors *file = NULL;
    struct err err = {0};
    int r = safetensors_open(path, &file, &err);
    assert_true(r < 0);
    assert_null(file);
    assert_int_equal(err.code, r);
    assert_int_equal(err.name, ERR_BAD_CHECKPOINT);
    for (; *words; words++)
        if (!strstr(err.message, *words))
            fail_msg("\"%s\" does not say \"%s\"", err.message, *words);
}
#define REFUSED(...) refused((const char *const[]){__VA_ARGS__, NULL})

static struct safetensors *opened(void)
{
    struct safetensors *file = NULL;
    struct err err = {0};
    if (safetensors_open(path, &file, &err) < 0)
        fail_msg("%s", err.message);
    return file;
}

static void legal_shapes_and_order(void **state)
{
    (void)state;
    write_file("{\"b\":{\"shape\":[2,3],\"data_offsets\":[4,28],\"dtype\":\"F32\"},"
               "\"__metadata__\":{\"a\":\"b\"},"
               "\"empty\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[4,4]},"
               "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}     ",
               28);
    struct safetensors *file = opened();
    assert_int_equal(safetensors_count(file), 3);
    const struct safetensors_tensor *b = safetensors_find(file, "b");
    assert_int_equal(b->dtype, SAFETENSORS_F32);
    assert_int_equal(b->dims, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(safetensors_find(file, "scalar")->dims, 0);
    assert_int_equal(safetensors_find(file, "empty")->shape[0], 0);
    assert_null(safetensors_find(file, "c"));
    uint8_t bytes[5];
    struct err err = {0};
    assert_int_equal(safetensors_read(file, b, 3, 5, bytes, &err), 0);
    assert_memory_equal(bytes, "\x07\x08\x09\x0a\x0b", 5);
    assert_true(safetensors_read(file, b, 20, 5, bytes, &err) < 0);
    safetensors_free(file);
}

static void empty_header_is_legal(void **state)
{
    (void)state;
    write_file("{}", 0);
    struct safetensors *file = opened();
    assert_int_equal(safetensors_count(file), 0);
    assert_null(safetensors_find(file, "x"));
    safetensors_free(file);
}

/* An unknown dtype must not make the other tensors unreadable, but its range still counts. */
static void unknown_dtype(void **state)
{
    (void)state;
    write_file(
        "{\"x\":{\"dtype\":\"F9_NEW\",\"shape\":[7],\"data_offsets\":[0,5]},\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]}}",
        8);
    struct safetensors *file = opened();
    assert_int_equal(safetensors_find(file, "x")->dtype, SAFETENSORS_OTHER);
    assert_string_equal(safetensors_find(file, "x")->dtype_name, "F9_NEW");
    safetensors_free(file);
    write_file(
        "{\"x\":{\"dtype\":\"F9_NEW\",\"shape\":[7],\"data_offsets\":[0,6]},\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]}}",
        8);
    REFUSED("x", "y", "overlap");
}

static void a01_git_lfs_pointer(void **state)
{
    (void)state;
    const char *text = "version https://git-lfs.github.com/spec/v1\n"
                       "oid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 4998528\n";
    write_bytes(text, strlen(text), 0);
    REFUSED(path, "looks like a Git LFS pointer, 'git lfs pull' was not run");
}

static void a03_truncated(void **state)
{
    (void)state;
    const char *header = "{\"x\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}";
    write_file(header, 99);
    REFUSED(path, "truncated", "expected 100 bytes", "has 99", "x");
    write_file(header, 101);
    REFUSED(path, ": 1 byte of data after the last tensor");
    write_file(header, 0);
    assert_int_equal(truncate(path, 8 + 20), 0);
    char expected[64];
    snprintf(expected, sizeof expected, "expected at least %zu bytes", 8 + strlen(header));
    REFUSED(path, "truncated in the header", expected, "has 28");
    write_bytes("\x08\0\0", 3, 0);
    REFUSED(path, "truncated", "has 3");
    write_bytes("", 0, 0);
    REFUSED(path, "truncated", "has 0");
}

static void a05_overlap(void **state)
{
    (void)state;
    write_file("{\"gate\":{\"dtype\":\"U8\",\"shape\":[256],\"data_offsets\":[0,256]},\"up\":{\"dtype\":\"U8\",\"shape\":[256],\"data_"
               "offsets\":[0,256]}}",
               256);
    REFUSED("gate", "up", "overlap");
    write_file("{\"gate\":{\"dtype\":\"U8\",\"shape\":[256],\"data_offsets\":[0,256]},\"up\":{\"dtype\":\"U8\",\"shape\":[256],\"data_"
               "offsets\":[128,384]}}",
               384);
    REFUSED("gate [0, 256)", "up [128, 384)", "overlap");
    write_file("{\"gate\":{\"dtype\":\"U8\",\"shape\":[256],\"data_offsets\":[0,256]},\"up\":{\"dtype\":\"U8\",\"shape\":[4],\"data_"
               "offsets\":[260,264]}}",
               264);
    REFUSED("4 bytes before tensor up", "belong to no tensor");
}

static void a06_offsets(void **state)
{
    (void)state;
    write_file("{\"x\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4);
    REFUSED("x", "declared 4 bytes", "needs 4000000");
    write_file("{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,4]}}", 8);
    REFUSED("x", "begins at 8, after its end 4");
    write_file("{\"x\":{\"dtype\":\"U8\",\"shape\":[400],\"data_offsets\":[0,400]}}", 8);
    REFUSED("x", "expected 400 bytes", "has 8");
    static const char *const bad[] = {"[0]",       "[0,4,4]", "[-1,3]", "[\"0\",\"4\"]",
                                      "[0.0,4.0]", "[0,4e0]", "{}",     "null",
                                      "[[0],4]",   "4",       "[]",     "[0,99999999999999999999]",
                                      "[true,4]"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        char header[160];
        snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":%s}}", bad[i]);
        write_file(header, 4);
        REFUSED("x", "data_offsets must be two whole numbers");
    }
    static const char *const shapes[] = {"[-4]", "[4.0]", "[\"4\"]", "4", "null", "[[4]]"};
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++) {
        char header[160];
        snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"U8\",\"shape\":%s,\"data_offsets\":[0,4]}}", shapes[i]);
        write_file(header, 4);
        REFUSED("x", "shape must");
    }
}

static void sizes_beyond_64_bits(void **state)
{
    (void)state;
    write_file("{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0);
    REFUSED("x", "2^64");
    write_file("{\"x\":{\"dtype\":\"F64\",\"shape\":[288230376151711744,1],\"data_offsets\":[0,0]}}", 0);
    REFUSED("x", "2^64");
    write_file("{\"x\":{\"dtype\":\"F32\",\"shape\":[18446744073709551615,0],\"data_offsets\":[0,0]}}", 0);
    safetensors_free(opened());
    write_file("{\"x\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1);
    REFUSED("x", "F4");
}

static void a09_duplicates(void **state)
{
    (void)state;
    write_file("{\"m.up_proj.weight\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
               "\"m.up_proj.weight\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
               8);
    char want[160];
    snprintf(want, sizeof want, "duplicate tensor name m.up_proj.weight in file %s", path);
    REFUSED(want);
    write_file("{\"x\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    REFUSED("x", "twice");
    write_file("{\"__metadata__\":{},\"__metadata__\":{}}", 0);
    REFUSED("__metadata__", "twice");
}

static void a11_unaligned_and_padded(void **state)
{
    (void)state;
    char header[5200];
    int n = snprintf(header, sizeof header,
                     "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[3,7]},"
                     "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}%*s",
                     4096, "");
    assert_true(n > 4096 && n < (int)sizeof header);
    if (n % 2 == 0)
        strcat(header, " ");
    write_file(header, 7);
    struct safetensors *file = opened();
    assert_int_equal(safetensors_data_offset(file) % 2, 1);
    uint8_t bytes[4];
    assert_int_equal(safetensors_read(file, safetensors_find(file, "b"), 0, 4, bytes, NULL), 0);
    assert_memory_equal(bytes, "\x03\x04\x05\x06", 4);
    safetensors_free(file);
}

static void malformed(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "[]",
        " {}",
        "{",
        "{}x",
        "{\"x\":1}",
        "{\"x\":{}}",
        "{\"x\":[]}",
        "{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"x\":{\"dtype\":8,\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"x\":{\"dtype\":\"\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"x\":{\"dtype\":\"A234567890123456789012345\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[0]}}",
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"more\":1}}",
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,0],\"data_offsets\":[0,0]}}",
        "{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":\"a\"}",
        "{\"__metadata__\":{\"a\":{}}}",
        "{\"x\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},}",
    };
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        write_file(bad[i], 0);
        REFUSED(path);
    }
    char header[800];
    snprintf(header, sizeof header, "{\"%0513d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
    write_file(header, 0);
    REFUSED("1 to 512 bytes");
    write_bytes("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10, 0);
    REFUSED("the limit is 100000000");
    write_bytes("\x00\xe1\xf5\x05\0\0\0\0{}", 10, 0); /* 100,000,000: allowed, but not in ten bytes */
    REFUSED("truncated in the header");
}

/* The pieces in which a long header is read may cut a name anywhere. */
static void long_header(void **state)
{
    (void)state;
    enum { COUNT = 9000 };
    char *header = malloc(COUNT * 100);
    assert_non_null(header);
    size_t at = (size_t)sprintf(header, "{");
    for (unsigned i = 0; i < COUNT; i++)
        at += (size_t)sprintf(header + at, "%s\"model.layers.%u.weight\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[%u,%u]}",
                              i ? "," : "", i, 2 * i, 2 * i + 2);
    sprintf(header + at, "}");
    write_file(header, 2 * COUNT);
    free(header);
    struct safetensors *file = opened();
    assert_int_equal(safetensors_count(file), COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.weight", i);
        assert_int_equal(safetensors_find(file, name)->begin, 2 * i);
    }
    safetensors_free(file);
}

static void not_a_file(void **state)
{
    (void)state;
    struct safetensors *file = NULL;
    struct err err = {0};
    unlink(path);
    assert_int_equal(safetensors_open(path, &file, &err), -ENOENT);
    assert_int_equal(err.name, ERR_NO_SUCH);
    assert_int_equal(mkfifo(path, 0600), 0);
    REFUSED(path, "not a regular file"); /* and does not hang */
    unlink(path);
}

static void changed_while_open(void **state)
{
    (void)state;
    write_file("{\"x\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}", 100);
    struct safetensors *file = opened();
    const struct safetensors_tensor *x = safetensors_find(file, "x");
    uint8_t bytes[100];
    struct err err = {0};
    assert_int_equal(safetensors_read(file, x, 0, 100, bytes, &err), 0);
    safetensors_park(file);
    assert_true(safetensors_parked(file));
    assert_int_equal(safetensors_read(file, x, 0, 100, bytes, &err), 0);
    assert_false(safetensors_parked(file));
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(safetensors_read(file, x, 0, 100, bytes, &err), -ESTALE);
    assert_non_null(strstr(err.message, path));
    safetensors_park(file);
    write_file("{\"x\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}", 100); /* same content, another inode */
    assert_int_equal(safetensors_read(file, x, 0, 100, bytes, &err), -ESTALE);
    assert_non_null(strstr(err.message, "changed while it was in use"));
    safetensors_free(file);
}

static void write_and_read(void **state)
{
    (void)state;
    float values[6] = {1, 2, 3, 4, 5, 6};
    int32_t scalar = -7;
    struct safetensors_item items[] = {
        {.name = "output", .dtype = SAFETENSORS_F32, .dims = 2, .shape = (const uint64_t[]){2, 3}, .data = values},
        {.name = "a \"quoted\\\" name", .dtype = SAFETENSORS_I32, .dims = 0, .data = &scalar},
        {.name = "none", .dtype = SAFETENSORS_BF16, .dims = 1, .shape = (const uint64_t[]){0}},
    };
    struct err err = {0};
    unlink(path);
    assert_int_equal(safetensors_write(path, items, 3, &err), 0);
    struct safetensors *file = opened();
    assert_int_equal(safetensors_count(file), 3);
    assert_int_equal(safetensors_data_offset(file) % 8, 0);
    float back[6];
    assert_int_equal(safetensors_read(file, safetensors_find(file, "output"), 0, sizeof back, back, &err), 0);
    assert_memory_equal(back, values, sizeof back);
    int32_t scalar_back;
    assert_int_equal(safetensors_read(file, safetensors_find(file, "a \"quoted\\\" name"), 0, 4, &scalar_back, &err), 0);
    assert_int_equal(scalar_back, -7);
    safetensors_free(file);

    items[0].name = "a\nb";
    assert_int_equal(safetensors_write(path, items, 1, &err), -EINVAL);
    items[0].name = "x";
    items[0].shape = (const uint64_t[]){UINT64_MAX, 2};
    assert_int_equal(safetensors_write(path, items, 1, &err), -EINVAL);
    assert_int_equal(err.name, ERR_BAD_SHAPE);
    file = opened(); /* the old file was left whole */
    assert_int_equal(safetensors_count(file), 3);
    safetensors_free(file);
    assert_int_equal(safetensors_write("/nonexistent-dir/x", items, 0, &err), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal_shapes_and_order),
        cmocka_unit_test(empty_header_is_legal),
        cmocka_unit_test(unknown_dtype),
        cmocka_unit_test(a01_git_lfs_pointer),
        cmocka_unit_test(a03_truncated),
        cmocka_unit_test(a05_overlap),
        cmocka_unit_test(a06_offsets),
        cmocka_unit_test(sizes_beyond_64_bits),
        cmocka_unit_test(a09_duplicates),
        cmocka_unit_test(a11_unaligned_and_padded),
        cmocka_unit_test(malformed),
        cmocka_unit_test(long_header),
        cmocka_unit_test(not_a_file),
        cmocka_unit_test(changed_while_open),
        cmocka_unit_test(write_and_read),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

#include "tests/unit/model/fixture.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SOURCE TEST_DATA "/shakespeare-moe-fp8"

const char *fixture_path(const char *dir, const char *name)
{
    static char paths[8][512];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

uint8_t *fixture_read(const char *path, size_t *ret_length)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s: cannot be read", path);
    struct stat st;
    assert_int_equal(fstat(fileno(file), &st), 0);
    uint8_t *bytes = malloc((size_t)st.st_size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)st.st_size, file), st.st_size);
    fclose(file);
    bytes[st.st_size] = '\0';
    *ret_length = (size_t)st.st_size;
    return bytes;
}

void fixture_write(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "w");
    if (!file)
        fail_msg("%s: cannot be written", path);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static void copy(const char *dir, const char *name)
{
    size_t length;
    uint8_t *bytes = fixture_read(fixture_path(SOURCE, name), &length);
    fixture_write(fixture_path(dir, name), bytes, length);
    free(bytes);
}

int fixture_make(void **state)
{
    char *dir = strdup("/tmp/fp9-checkpoint-XXXXXX");
    if (!dir || !mkdtemp(dir))
        return -1;
    copy(dir, "config.json");
    copy(dir, FIXTURE_SHARD1);
    copy(dir, FIXTURE_SHARD2);
    copy(dir, FIXTURE_INDEX);
    *state = dir;
    return 0;
}

int fixture_remove(void **state)
{
    char *dir = *state;
    DIR *list = opendir(dir);
    for (struct dirent *entry; list && (entry = readdir(list));)
        unlink(fixture_path(dir, entry->d_name));
    if (list)
        closedir(list);
    int r = rmdir(dir);
    free(dir);
    return r;
}

/* Replaces within bytes[from_at, limit); gives new malloced bytes. */
static uint8_t *replaced(const uint8_t *bytes, size_t length, size_t limit, const char *from, const char *to, size_t *ret_length)
{
    const uint8_t *at = memmem(bytes, limit, from, strlen(from));
    if (!at)
        fail_msg("\"%s\" is not in the file", from);
    size_t before = (size_t)(at - bytes), after = length - before - strlen(from);
    uint8_t *out = malloc(before + strlen(to) + after + 1);
    assert_non_null(out);
    memcpy(out, bytes, before);
    memcpy(out + before, to, strlen(to));
    memcpy(out + before + strlen(to), at + strlen(from), after);
    *ret_length = before + strlen(to) + after;
    return out;
}

void fixture_replace(const char *path, const char *from, const char *to)
{
    size_t length, new_length;
    uint8_t *bytes = fixture_read(path, &length);
    uint8_t *out = replaced(bytes, length, length, from, to, &new_length);
    fixture_write(path, out, new_length);
    free(out);
    free(bytes);
}

static uint64_t header_length(const uint8_t *bytes)
{
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    return length;
}

void fixture_replace_header(const char *path, const char *from, const char *to)
{
    size_t length, new_length;
    uint8_t *bytes = fixture_read(path, &length);
    uint64_t header = header_length(bytes);
    uint8_t *out = replaced(bytes, length, 8 + header, from, to, &new_length);
    header = header + strlen(to) - strlen(from);
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(header >> (8 * i));
    fixture_write(path, out, new_length);
    free(out);
    free(bytes);
}

size_t fixture_offset(const char *path, const char *tensor)
{
    size_t length;
    uint8_t *bytes = fixture_read(path, &length);
    uint64_t header = header_length(bytes);
    char quoted[300];
    snprintf(quoted, sizeof quoted, "\"%s\"", tensor);
    const char *at = memmem(bytes, 8 + header, quoted, strlen(quoted));
    if (!at || !(at = strstr(at, "\"data_offsets\"")) || !(at = strchr(at, '[')))
        fail_msg("%s is not in %s", tensor, path);
    size_t offset = 8 + header + strtoull(at + 1, NULL, 10);
    free(bytes);
    return offset;
}

void fixture_poke(const char *path, size_t offset, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* A look at a directory gives what a whole opening gave, and nothing as soon as any file of it is another one. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/model/checkpoint_glance.h"
#include "tests/unit/model/fixture.h"

enum { LAYERS = 4, EXPERTS = 8 };

/* Digests that nobody computed: who they are of does not matter here. */
static void know_all(struct checkpoint *checkpoint, bool but_one)
{
    uint8_t digest[DIGEST_SIZE] = {1};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        int first = layer ? 0 : ARCH_EXPERT_DENSE, end = layer ? EXPERTS : ARCH_EXPERT_DENSE + 1;
        for (int expert = first; expert < end; expert++) {
            for (int matrix = KERNELS_GATE; matrix <= KERNELS_DOWN; matrix++, digest[1]++) {
                if (but_one && layer == 2 && expert == 5 && matrix == KERNELS_UP)
                    continue;
                const struct checkpoint_matrix *at = checkpoint_find(checkpoint, layer, expert, (enum kernels_matrix)matrix);
                assert_non_null(at);
                checkpoint_digest_set(checkpoint, at, digest);
            }
        }
    }
}

/* Opens, learns, records; the sources of all layers too. */
static struct buf record_of(const char *dir, uint8_t ret_sources[LAYERS][DIGEST_SIZE])
{
    struct checkpoint_stamp stamp;
    struct checkpoint *checkpoint = NULL;
    struct arch *arch = NULL;
    struct err err = {0};
    struct buf record = {0};
    checkpoint_stamp_take(dir, &stamp);
    if (arch_read(dir, &arch, &err) < 0 || checkpoint_open(dir, arch, &checkpoint, &err) < 0)
        fail_msg("%s", err.message);
    know_all(checkpoint, true);
    assert_int_equal(checkpoint_glance_write(checkpoint, &stamp, &record), -EAGAIN);
    assert_int_equal(record.length, 0);
    know_all(checkpoint, false);
    assert_int_equal(checkpoint_glance_write(checkpoint, &stamp, &record), 0);
    assert_true(record.length > LAYERS * DIGEST_SIZE);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_true(checkpoint_layer_sources(checkpoint, layer, ret_sources[layer]));
    checkpoint_free(checkpoint);
    arch_free(arch);
    return record;
}

static bool glance(const char *dir, const struct buf *record, uint32_t layers)
{
    uint8_t sources[LAYERS + 1][DIGEST_SIZE];
    return checkpoint_glance_read(dir, record->data, record->length, layers, sources);
}

static void same_files_same_sources(void **state)
{
    uint8_t whole[LAYERS][DIGEST_SIZE], seen[LAYERS][DIGEST_SIZE];
    struct buf record = record_of(*state, whole);
    assert_true(checkpoint_glance_read(*state, record.data, record.length, LAYERS, seen));
    assert_memory_equal(whole, seen, sizeof whole);
    assert_false(glance(*state, &record, LAYERS + 1));
    assert_false(glance(*state, &record, LAYERS - 1));
    assert_false(glance("/nonexistent-dir", &record, LAYERS));
    buf_release(&record);
}

/* Rewritten with the same bytes: another file all the same. */
static void rewrite(const char *path)
{
    size_t length;
    uint8_t *bytes = fixture_read(path, &length);
    assert_int_equal(unlink(path), 0);
    fixture_write(path, bytes, length);
    free(bytes);
}

static void any_change_shows(void **state)
{
    static const char *const names[] = {"config.json", FIXTURE_INDEX, FIXTURE_SHARD1, FIXTURE_SHARD2};
    const char *dir = *state;
    uint8_t sources[LAYERS][DIGEST_SIZE];
    for (size_t i = 0; i < 4; i++) {
        struct buf record = record_of(dir, sources);
        usleep(20000); /* the clock of file times is coarse */
        rewrite(fixture_path(dir, names[i]));
        assert_false(glance(dir, &record, LAYERS));
        buf_release(&record);
        record = record_of(dir, sources);
        assert_int_equal(truncate(fixture_path(dir, names[i]), (off_t)100), 0);
        assert_false(glance(dir, &record, LAYERS));
        assert_int_equal(unlink(fixture_path(dir, names[i])), 0);
        assert_false(glance(dir, &record, LAYERS));
        buf_release(&record);
        fixture_remove(state);
        fixture_make(state);
        dir = *state;
    }
    struct buf record = record_of(dir, sources);
    uint8_t byte = 0x11;
    fixture_poke(fixture_path(dir, FIXTURE_SHARD2), 500000, &byte, 1);
    assert_false(glance(dir, &record, LAYERS));
    buf_release(&record);
}

static void without_an_index_every_file_counts(void **state)
{
    const char *dir = *state;
    uint8_t sources[LAYERS][DIGEST_SIZE];
    unlink(fixture_path(dir, FIXTURE_INDEX));
    struct buf record = record_of(dir, sources);
    assert_true(glance(dir, &record, LAYERS));
    fixture_write(fixture_path(dir, "README.md"), "x", 1);
    assert_true(glance(dir, &record, LAYERS));
    fixture_write(fixture_path(dir, "more.safetensors"), "x", 1);
    assert_false(glance(dir, &record, LAYERS));
    assert_int_equal(rename(fixture_path(dir, FIXTURE_SHARD1), fixture_path(dir, "other.safetensors")), 0);
    assert_int_equal(unlink(fixture_path(dir, "more.safetensors")), 0);
    assert_false(glance(dir, &record, LAYERS)); /* as many as before */
    buf_release(&record);
}

static void records_that_make_no_sense(void **state)
{
    uint8_t sources[LAYERS][DIGEST_SIZE];
    struct buf record = record_of(*state, sources);
    struct buf cut = record;
    for (cut.length = 0; cut.length < record.length; cut.length++)
        assert_false(glance(*state, &cut, LAYERS));
    assert_int_equal(buf_append(&record, "", 1, SIZE_MAX), 0);
    assert_false(glance(*state, &record, LAYERS));
    record.length--;
    /* All but the sources themselves is looked at. */
    for (size_t i = 0; i < record.length - LAYERS * DIGEST_SIZE; i++) {
        record.data[i] ^= 0x20;
        assert_false(glance(*state, &record, LAYERS));
        record.data[i] ^= 0x20;
    }
    assert_true(glance(*state, &record, LAYERS));
    buf_release(&record);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_make, fixture_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(same_files_same_sources),
        TEST(any_change_shows),
        TEST(without_an_index_every_file_counts),
        TEST(records_that_make_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Records of what the shards held say which shard has changed, also where a weight and its scales are in different ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/model/checkpoint.h"
#include "tests/unit/model/fixture.h"

#define SCALES "scales.safetensors"
#define MATRIX "model.layers.2.mlp.experts.5.down_proj"
#define SHARDS 3
#define EXPERT_LAYER 2

static const uint8_t other_scale[] = {0x80, 0x3f}; /* 1, in BF16 */

struct records {
    struct buf of[SHARDS];
};

static void records_release(struct records *records)
{
    for (int i = 0; i < SHARDS; i++)
        buf_release(&records->of[i]);
}

/* The scales of one matrix in a file of their own; shard numbers follow the names. */
static int split(void **state)
{
    if (fixture_make(state) < 0)
        return -1;
    const char *dir = *state;
    char header[256], bytes[8 + sizeof header + 8] = {0};
    int length = snprintf(header, sizeof header,
                          "{\"" MATRIX ".weight_scale_inv\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}");
    size_t from = fixture_offset(fixture_path(dir, FIXTURE_SHARD2), MATRIX ".weight_scale_inv"), size;
    uint8_t *shard = fixture_read(fixture_path(dir, FIXTURE_SHARD2), &size);
    bytes[0] = (char)length;
    memcpy(bytes + 8, header, (size_t)length);
    memcpy(bytes + 8 + length, shard + from, 8);
    fixture_write(fixture_path(dir, SCALES), bytes, 8 + (size_t)length + 8);
    fixture_replace_header(fixture_path(dir, FIXTURE_SHARD2), MATRIX ".weight_scale_inv", MATRIX ".weight_scale_old");
    fixture_replace(fixture_path(dir, FIXTURE_INDEX), MATRIX ".weight_scale_inv\": \"" FIXTURE_SHARD2,
                    MATRIX ".weight_scale_inv\": \"" SCALES);
    free(shard);
    return 0;
}

/* Opens, takes records, gives every matrix of the layer a digest (other: one matrix another than usual) and says what has changed. */
static void look(const char *dir, struct records *records, bool keep, bool other, char text[192], bool *ret_scales)
{
    struct checkpoint *checkpoint = NULL;
    struct arch *arch = NULL;
    struct err err = {0};
    if (arch_read(dir, &arch, &err) < 0 || checkpoint_open(dir, arch, &checkpoint, &err) < 0)
        fail_msg("%s", err.message);
    assert_int_equal(checkpoint_shard_count(checkpoint), SHARDS);
    for (uint32_t i = 0; i < SHARDS; i++)
        if (records->of[i].length)
            assert_true(checkpoint_record_read(checkpoint, i, records->of[i].data, records->of[i].length));
    uint8_t digest[DIGEST_SIZE] = {1};
    for (int expert = 0; expert < (int)arch->experts; expert++)
        for (int matrix = KERNELS_GATE; matrix <= KERNELS_DOWN; matrix++) {
            digest[1] = other && expert == 5 && matrix == KERNELS_DOWN;
            checkpoint_digest_set(checkpoint, checkpoint_find(checkpoint, EXPERT_LAYER, expert, (enum kernels_matrix)matrix), digest);
        }
    checkpoint_changed_shards(checkpoint, text, 192);
    *ret_scales = checkpoint_scales_changed(checkpoint);
    for (uint32_t i = 0; i < SHARDS && keep; i++) {
        buf_release(&records->of[i]);
        assert_int_equal(checkpoint_record_write(checkpoint, i, &records->of[i]), 0);
    }
    checkpoint_free(checkpoint);
    arch_free(arch);
}

static void scales_of_another_shard(void **state)
{
    const char *dir = *state;
    struct records records = {0};
    char text[192];
    bool scales;
    look(dir, &records, true, false, text, &scales);
    assert_string_equal(text, "");
    assert_false(scales);
    fixture_poke(fixture_path(dir, SCALES), fixture_offset(fixture_path(dir, SCALES), MATRIX ".weight_scale_inv"), other_scale, 2);
    look(dir, &records, false, false, text, &scales);
    assert_string_equal(text, SCALES);
    assert_true(scales);
    look(dir, &records, true, false, text, &scales); /* said until it is written down */
    assert_string_equal(text, SCALES);
    look(dir, &records, true, false, text, &scales);
    assert_string_equal(text, "");
    assert_false(scales);
    records_release(&records);
}

static void weight_of_another_shard(void **state)
{
    const char *dir = *state;
    struct records records = {0};
    char text[192];
    bool scales;
    look(dir, &records, true, false, text, &scales);
    uint8_t code = 0x11;
    fixture_poke(fixture_path(dir, FIXTURE_SHARD2), fixture_offset(fixture_path(dir, FIXTURE_SHARD2), MATRIX ".weight"), &code, 1);
    look(dir, &records, false, true, text, &scales);
    assert_string_equal(text, FIXTURE_SHARD2);
    assert_false(scales);
    fixture_poke(fixture_path(dir, SCALES), fixture_offset(fixture_path(dir, SCALES), MATRIX ".weight_scale_inv"), other_scale, 2);
    look(dir, &records, true, true, text, &scales);
    assert_string_equal(text, FIXTURE_SHARD2 ", " SCALES);
    look(dir, &records, true, true, text, &scales);
    assert_string_equal(text, "");
    records_release(&records);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, split, fixture_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(scales_of_another_shard),
        TEST(weight_of_another_shard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

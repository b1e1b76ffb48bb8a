/* The channel's words and frames, one side in each hand, and garbage in place of either. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "proto/base/bytes.h"
#include "proto/wire/channel.h"

struct pair {
    struct channel *head, *duck;
    int fd;
    uint8_t *memory; /* all of it, for scribbling */
};

/* As channel.c lays them out: magic's pair of lines, then wrote, read, mode of the ring to the duck. */
#define WROTE 128
#define READ 256
#define RINGS 4096

static int setup(void **state)
{
    struct pair *pair = calloc(1, sizeof *pair);
    struct err err = {0};
    assert_int_equal(channel_new(7, &pair->head, &pair->fd, &err), 0);
    assert_int_equal(channel_open(pair->fd, &pair->duck, &err), 0);
    pair->memory = mmap(NULL, CHANNEL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pair->fd, 0);
    assert_true(pair->memory != MAP_FAILED);
    *state = pair;
    return 0;
}

static int teardown(void **state)
{
    struct pair *pair = *state;
    munmap(pair->memory, CHANNEL_BYTES);
    channel_free(pair->head);
    channel_free(pair->duck);
    close(pair->fd);
    free(pair);
    return 0;
}

static bool put(struct channel *channel, size_t payload, uint64_t request)
{
    uint8_t *room;
    assert_int_equal(channel_room(channel, WIRE_FRAME_HEADER + payload, &room, NULL), 0);
    if (!room)
        return false;
    struct bytes_writer w = bytes_writer_init(room, WIRE_FRAME_HEADER);
    bytes_write_u32(&w, WIRE_MAGIC);
    bytes_write_u16(&w, WIRE_STEP);
    bytes_write_u16(&w, 0);
    bytes_write_u32(&w, (uint32_t)payload);
    bytes_write_u32(&w, 0);
    bytes_write_u64(&w, request);
    memset(room + WIRE_FRAME_HEADER, (int)request, payload);
    (void)channel_commit(channel, WIRE_FRAME_HEADER + payload);
    return true;
}

static void whole_frames_in_order(void **state)
{
    struct pair *pair = *state;
    assert_int_equal(channel_spin_us(pair->duck), 7);
    uint64_t wrote = 0, read = 0;
    struct frame frame;
    struct err err;
    size_t sizes[] = {0, 1, 40, 41, 4096, CHANNEL_FRAME_MAX - WIRE_FRAME_HEADER, 1000, 65000};
    while (wrote < 1000) { /* many times round */
        while (put(pair->head, sizes[wrote % ARRAY_LENGTH(sizes)], wrote))
            wrote++;
        assert_true(wrote > read);
        while (channel_next(pair->duck, &frame, &err) == 1) {
            assert_true(channel_pending(pair->duck));
            assert_int_equal(frame.request, read);
            assert_int_equal(frame.length, sizes[read % ARRAY_LENGTH(sizes)]);
            assert_int_equal((uintptr_t)frame.payload % 8, 0);
            for (size_t i = 0; i < frame.length; i++)
                if (frame.payload[i] != (uint8_t)read)
                    fail_msg("byte %zu of frame %llu", i, (unsigned long long)read);
            channel_taken(pair->duck);
            read++;
        }
        assert_int_equal(read, wrote);
        assert_false(channel_pending(pair->duck));
    }
}

static void both_ways_and_modes(void **state)
{
    struct pair *pair = *state;
    uint8_t *room;
    struct frame frame;
    assert_true(put(pair->duck, 8, 1));
    assert_int_equal(channel_next(pair->head, &frame, NULL), 1);
    channel_taken(pair->head);
    assert_int_equal(channel_next(pair->duck, &frame, NULL), 0);
    /* The head sleeps until it says otherwise. */
    assert_int_equal(channel_room(pair->duck, 64, &room, NULL), 0);
    memset(room, 0, 64);
    assert_int_equal(channel_commit(pair->duck, 64), CHANNEL_ASLEEP);
    assert_true(channel_set_mode(pair->head, CHANNEL_AWAKE)); /* something is there */
    assert_false(channel_set_mode(pair->duck, CHANNEL_BUSY));
    assert_int_equal(channel_room(pair->head, 64, &room, NULL), 0);
    assert_int_equal(channel_commit(pair->head, 64), CHANNEL_BUSY);
}

static void long_frames_find_no_room(void **state)
{
    struct pair *pair = *state;
    assert_false(put(pair->head, CHANNEL_FRAME_MAX - WIRE_FRAME_HEADER + 1, 0));
    assert_true(put(pair->head, CHANNEL_FRAME_MAX - WIRE_FRAME_HEADER, 0));
}

static void refused(struct channel *reader, const char *word)
{
    struct frame frame;
    struct err err = {0};
    assert_int_equal(channel_next(reader, &frame, &err), -EPROTO);
    if (!strstr(err.message, word))
        fail_msg("\"%s\" does not say %s", err.message, word);
}

static void garbage_is_refused(void **state)
{
    struct pair *pair = *state;
    uint64_t bad[] = {CHANNEL_RING + 64, 63, UINT64_MAX, UINT64_MAX - 63};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        memcpy(pair->memory + WROTE, &bad[i], sizeof bad[i]);
        refused(pair->duck, "its writer says");
    }
    /* A position that can be, nothing behind it. */
    uint64_t one = 64;
    memcpy(pair->memory + WROTE, &one, sizeof one);
    refused(pair->duck, "not an fp9 link");
    /* A header that promises more than was written. */
    memset(pair->memory + WROTE, 0, sizeof one);
    assert_true(put(pair->head, 8, 0));
    uint32_t length = 65;
    memcpy(pair->memory + RINGS + 8, &length, sizeof length);
    refused(pair->duck, "were written");
    uint16_t type = 999;
    memcpy(pair->memory + RINGS + 4, &type, sizeof type);
    refused(pair->duck, "unknown type");
}

static void garbage_of_the_reader_is_refused(void **state)
{
    struct pair *pair = *state;
    while (put(pair->head, 60000, 0))
        ;
    uint64_t bad[] = {1, UINT64_MAX, 1000 * CHANNEL_RING};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        uint8_t *room;
        struct err err = {0};
        memcpy(pair->memory + READ, &bad[i], sizeof bad[i]);
        assert_int_equal(channel_room(pair->head, 60000, &room, &err), -EPROTO);
        assert_non_null(strstr(err.message, "its reader says"));
    }
}

static void no_channel_is_refused(void **state)
{
    struct pair *pair = *state;
    struct channel *channel;
    struct err err = {0};
    _cleanup_(closep) int small = memfd_create("small", MFD_CLOEXEC);
    assert_int_equal(channel_open(small, &channel, &err), -EINVAL);
    assert_int_equal(ftruncate(small, CHANNEL_BYTES), 0);
    assert_int_equal(channel_open(small, &channel, &err), -EINVAL);
    assert_int_equal(channel_open(-1, &channel, &err), -EBADF);
    assert_true(ftruncate(pair->fd, 0) < 0); /* sealed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_frames_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(both_ways_and_modes, setup, teardown),
        cmocka_unit_test_setup_teardown(long_frames_find_no_room, setup, teardown),
        cmocka_unit_test_setup_teardown(garbage_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(garbage_of_the_reader_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(no_channel_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

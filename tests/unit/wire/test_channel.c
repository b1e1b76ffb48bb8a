/* The channel's words and frames, one side in each hand, and garbage in place of either. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "proto/base/size.h"
#include "proto/wire/channel.h"

struct pair {
    struct channel *head, *duck;
    int fd;
    uint8_t *memory; /* all of it, for scribbling */
};

/* As channel.c lays them out: magic's pair of lines, then read, mode of the ring to the duck. */
#define READ 128
#define RINGS 4096 /* the first stamp */

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

/* In two pieces, split where `request` says. */
static int send(struct channel *channel, size_t payload, uint64_t request, enum channel_mode *ret_mode, struct err *err)
{
    static uint8_t bytes[CHANNEL_FRAME_MAX + 1];
    size_t whole = WIRE_FRAME_HEADER + payload, head = request * 37 % (whole + 1);
    frame_header_write(bytes, WIRE_STEP, request, (uint32_t)payload);
    memset(bytes + WIRE_FRAME_HEADER, (int)request, payload);
    return channel_send(channel, bytes, head, bytes + head, whole - head, ret_mode, err);
}

static bool put(struct channel *channel, size_t payload, uint64_t request)
{
    enum channel_mode mode;
    int r = send(channel, payload, request, &mode, NULL);
    assert_true(r == 0 || r == 1);
    return r == 1;
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
    enum channel_mode mode;
    struct frame frame;
    assert_true(put(pair->duck, 8, 1));
    assert_int_equal(channel_next(pair->head, &frame, NULL), 1);
    channel_taken(pair->head);
    assert_int_equal(channel_next(pair->duck, &frame, NULL), 0);
    /* The head sleeps until it says otherwise. */
    assert_int_equal(send(pair->duck, 40, 2, &mode, NULL), 1);
    assert_int_equal(mode, CHANNEL_ASLEEP);
    assert_true(channel_set_mode(pair->head, CHANNEL_AWAKE)); /* something is there */
    assert_false(channel_set_mode(pair->duck, CHANNEL_BUSY));
    assert_int_equal(send(pair->head, 40, 3, &mode, NULL), 1);
    assert_int_equal(mode, CHANNEL_BUSY);
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
    uint64_t bad[] = {CHANNEL_FRAME_MAX + 128, CHANNEL_RING + 64, 63, UINT64_MAX, UINT64_MAX - 63};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        memcpy(pair->memory + RINGS, &bad[i], sizeof bad[i]);
        refused(pair->duck, "its writer says");
    }
    /* A stamp that can be, nothing behind it. */
    uint64_t one = 64;
    memcpy(pair->memory + RINGS, &one, sizeof one);
    refused(pair->duck, "not an fp9 link");
    /* A header that promises more than was written, and less. */
    assert_true(put(pair->head, 8, 0));
    uint32_t lengths[] = {33, 4096, 1 << 20};
    for (size_t i = 0; i < ARRAY_LENGTH(lengths); i++) {
        memcpy(pair->memory + RINGS + 16, &lengths[i], sizeof lengths[i]);
        refused(pair->duck, "were written with it");
    }
    one = 128;
    memcpy(pair->memory + RINGS, &one, sizeof one);
    memset(pair->memory + RINGS + 16, 0, 4);
    refused(pair->duck, "were written with it");
    uint16_t type = 999;
    memcpy(pair->memory + RINGS + 12, &type, sizeof type);
    refused(pair->duck, "unknown type");
}

/* Payloads full of what would be the next stamps are none. */
static void payload_is_no_stamp(void **state)
{
    struct pair *pair = *state;
    static uint64_t bytes[(WIRE_FRAME_HEADER + 64 * 50) / 8];
    uint64_t at = 0;
    for (int i = 0; i < 1000; i++) {
        size_t payload = (size_t)(i * 7 % 50) * 64;
        frame_header_write((uint8_t *)bytes, WIRE_STEP, 0, (uint32_t)payload);
        for (size_t k = 0; k < payload / 8; k++) /* once round later this place is looked at with this position */
            bytes[WIRE_FRAME_HEADER / 8 + k] = at / CHANNEL_RING * CHANNEL_RING + 2 * CHANNEL_RING;
        enum channel_mode mode;
        struct frame frame;
        assert_int_equal(channel_send(pair->head, bytes, WIRE_FRAME_HEADER + payload, NULL, 0, &mode, NULL), 1);
        assert_int_equal(channel_next(pair->duck, &frame, NULL), 1);
        assert_int_equal(frame.length, payload);
        channel_taken(pair->duck);
        assert_false(channel_pending(pair->duck));
        at += size_round_up(8 + WIRE_FRAME_HEADER + payload, CHANNEL_ALIGN);
    }
    assert_true(at > 4 * CHANNEL_RING);
}

static void garbage_of_the_reader_is_refused(void **state)
{
    struct pair *pair = *state;
    while (put(pair->head, 60000, 0))
        ;
    uint64_t bad[] = {1, UINT64_MAX, 1000 * CHANNEL_RING};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        enum channel_mode mode;
        struct err err = {0};
        memcpy(pair->memory + READ, &bad[i], sizeof bad[i]);
        assert_int_equal(send(pair->head, 60000, 0, &mode, &err), -EPROTO);
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
        cmocka_unit_test_setup_teardown(payload_is_no_stamp, setup, teardown),
        cmocka_unit_test_setup_teardown(garbage_of_the_reader_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(no_channel_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

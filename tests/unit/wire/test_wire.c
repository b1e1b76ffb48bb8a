/* Codecs: round trips of every field, truncation at each byte, left-over bytes, sentences, the reader fed in any pieces, the socket. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "proto/base/bytes.h"
#include "proto/wire/dump.h"
#include "proto/wire/transport_socket.h"
#include "tests/unit/wire/samples.h"

struct fixture {
    struct buf buf;
    size_t offsets[SAMPLES + 1];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    samples_make(&f->buf, f->offsets);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    buf_release(&f->buf);
    free(f);
    return 0;
}

static struct frame sample(const struct fixture *f, int i)
{
    return samples_frame(f->buf.data + f->offsets[i], f->offsets[i + 1] - f->offsets[i]);
}

/* Which experts are told only where they are not all of the layer's: a duck of before that is sent what it knows. */
static void test_divided_experts(void **state)
{
    (void)state;
    struct buf plain = {0}, buf = {0};
    struct msg_prepare_begin words = samples_begin, read;
    struct err err;
    assert_int_equal(msg_prepare_begin_encode(&plain, 5, &words), 0);
    words.experts_total = words.experts;
    assert_int_equal(msg_prepare_begin_encode(&buf, 5, &words), 0);
    assert_int_equal(buf.length, plain.length);
    assert_memory_equal(buf.data, plain.data, plain.length);
    struct frame frame = samples_frame(buf.data, buf.length);
    assert_int_equal(msg_prepare_begin_decode(&frame, &read, &err), 0);
    assert_int_equal(read.expert_first, 0);
    assert_int_equal(read.experts_total, 8);
    buf.length = 0;
    words.expert_first = 16;
    words.experts_total = 25;
    assert_int_equal(msg_prepare_begin_encode(&buf, 5, &words), 0);
    assert_int_equal(buf.length, plain.length + 8);
    frame = samples_frame(buf.data, buf.length);
    assert_int_equal(msg_prepare_begin_decode(&frame, &read, &err), 0);
    assert_int_equal(read.expert_first, 16);
    assert_int_equal(read.experts_total, 25);
    buf.length = 0;
    words.experts_total = 23; /* one less than it must be */
    assert_int_equal(msg_prepare_begin_encode(&buf, 5, &words), 0);
    frame = samples_frame(buf.data, buf.length);
    assert_int_equal(msg_prepare_begin_decode(&frame, &read, &err), -EPROTO);
    assert_non_null(strstr(err.message, "experts_total"));
    buf_release(&plain);
    buf_release(&buf);
}

/* Encoding what was decoded gives the same bytes: no field is lost or swapped with one of another width. */
static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    struct err err;
    struct buf again = {0};
    struct frame frame = sample(f, 7);
    struct msg_prepare_begin begin;
    assert_int_equal(msg_prepare_begin_decode(&frame, &begin, &err), 0);
    assert_memory_equal(&begin.model_key, samples_begin.model_key, DIGEST_SIZE);
    assert_memory_equal(&begin.sources, samples_begin.sources, DIGEST_SIZE);
    assert_memory_equal(&begin.slice, &samples_begin.slice, sizeof begin.slice);
    assert_memory_equal(&begin.shared, &samples_begin.shared, sizeof begin.shared);
    assert_int_equal(begin.tp, 3);
    assert_int_equal(begin.rank, 2);
    assert_int_equal(begin.multiple_of, 64);
    assert_int_equal(begin.layer, 7);
    assert_int_equal(begin.kind, MSG_SLOT_MOE);
    assert_int_equal(begin.experts, 8);
    assert_true(begin.has_shared);
    assert_int_equal(msg_prepare_begin_encode(&again, frame.request, &begin), 0);
    assert_memory_equal(again.data, f->buf.data + f->offsets[7], again.length);

    frame = sample(f, 6);
    struct msg_slot *slots;
    size_t count;
    assert_int_equal(msg_slots_decode(&frame, &slots, &count, &err), 0);
    assert_int_equal(count, 2);
    assert_int_equal(slots[1].bytes, samples_slot.bytes);
    assert_int_equal(slots[1].checksum, samples_slot.checksum);
    assert_int_equal(slots[1].rank, 4);
    assert_int_equal(slots[1].layer, 11);
    assert_int_equal(slots[1].state, MSG_SLOT_FINISHED);
    assert_memory_equal(slots[1].sources, samples_slot.sources, DIGEST_SIZE);
    free(slots);

    frame = sample(f, 0);
    struct msg_hello hello;
    assert_int_equal(msg_hello_decode(&frame, &hello, &err), 0);
    assert_string_equal(hello.software, "fp9d 0.1.0");
    assert_string_equal(hello.host, "host");
    frame = sample(f, 1);
    struct msg_hello_duck duck;
    assert_int_equal(msg_hello_duck_decode(&frame, &duck, &err), 0);
    assert_int_equal(duck.minor, 2);
    assert_string_equal(duck.isa, "avx2");
    assert_string_equal(duck.boot_id, "0000-11");
    assert_int_equal(duck.cores, 4);
    assert_int_equal(duck.capacity_bytes, 1000);
    assert_int_equal(duck.used_bytes, 10);
    frame = sample(f, 2);
    struct err peer;
    assert_int_equal(msg_fail_decode(&frame, &peer, &err), 0);
    assert_int_equal(peer.code, -ENOMEM);
    assert_int_equal(peer.name, ERR_NO_MEMORY);
    assert_string_equal(peer.message, "needs 5, has 4");
    assert_string_equal(peer.values, "\"needs\":5");
    frame = sample(f, 14);
    struct msg_session_open open;
    assert_int_equal(msg_session_open_decode(&frame, &open, &err), 0);
    assert_int_equal(open.max_tokens, 16);
    assert_int_equal(open.top_k_max, 4);
    assert_int_equal(open.partials, MSG_F32);
    assert_true(open.one_shot);
    frame = sample(f, 18);
    struct msg_step step;
    assert_int_equal(msg_step_decode(&frame, &step, &err), 0);
    assert_int_equal(step.tokens, 3);
    assert_int_equal(step.hidden, 5);
    assert_true(step.prefill);
    assert_true(step.batch);
    assert_int_equal((step.ids - frame.payload) % 8, 0);
    assert_int_equal(step.x[29], 1);
    assert_int_equal(step.weights[11], 0x3f);
    frame = sample(f, SAMPLES - 1);
    struct msg_step_done done;
    uint8_t *partial;
    assert_int_equal(msg_step_done_decode(&frame, &done, &err), 0);
    assert_true(done.counted && done.one_shot);
    assert_int_equal(done.tile_tokens, 9);
    const struct msg_one_shot parts = {11, 12, 13, 14, 15};
    assert_memory_equal(&done.parts, &parts, sizeof parts);
    assert_int_equal(done.partial[29], 2);
    /* What an older fp9d is sent: not a byte of it. */
    done.one_shot = false;
    again.length = 0;
    assert_int_equal(msg_step_done_encode(&again, 1, &done, &partial), 0);
    assert_int_equal(again.length, f->offsets[SAMPLES] - f->offsets[SAMPLES - 1] - 40);
    frame = sample(f, 8);
    struct msg_prepare_data data;
    assert_int_equal(msg_prepare_data_decode(&frame, &data, &err), 0);
    assert_int_equal(data.expert, 3);
    assert_int_equal(data.first_row, 16);
    struct bytes_reader r = bytes_reader_init(data.scales, 8);
    assert_true(bytes_read_f32(&r) == 0.5f);
    assert_true(bytes_read_f32(&r) == 2.0f);
    buf_release(&again);
}

/* Each payload cut at each byte, in memory of exactly that size, so that a read past it is seen by the sanitizer. */
static void test_truncated(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < SAMPLES; i++) {
        struct frame whole = sample(f, i);
        struct err err = {0};
        assert_int_equal(samples_decode(&whole, &err), 0);
        for (uint32_t cut = 0; cut < whole.length; cut++) {
            uint8_t *copy = malloc(cut ? cut : 1);
            memcpy(copy, whole.payload, cut);
            struct frame frame = {.type = whole.type, .length = cut, .payload = copy};
            assert_int_equal(samples_decode(&frame, &err), -EPROTO);
            assert_non_null(strstr(err.message, frame_type_name(frame.type)));
            free(copy);
        }
        uint8_t *longer = calloc(1, whole.length + 1);
        if (whole.length)
            memcpy(longer, whole.payload, whole.length);
        struct frame frame = {.type = whole.type, .length = whole.length + 1, .payload = longer};
        assert_int_equal(samples_decode(&frame, &err), -EPROTO);
        free(longer);
    }
}

static void refused(enum wire_type type, uint8_t *payload, uint32_t length, const char *sentence)
{
    struct frame frame = {.type = type, .length = length, .payload = payload};
    struct err err = {0};
    assert_int_equal(samples_decode(&frame, &err), -EPROTO);
    assert_int_equal(err.name, ERR_BAD_REQUEST);
    if (!strstr(err.message, sentence))
        fail_msg("\"%s\" does not hold \"%s\"", err.message, sentence);
}

static void test_sentences(void **state)
{
    struct fixture *f = *state;
    uint8_t copy[512];
    struct frame frame = sample(f, 18);
    memcpy(copy, frame.payload, frame.length);
    copy[12] = 0;
    copy[13] = 0x20; /* tokens = 8192 */
    refused(WIRE_STEP, copy, frame.length, "STEP frame: tokens is 8192, allowed are 0 to 4096");
    copy[13] = 0;
    copy[12] = 4;
    refused(WIRE_STEP, copy, frame.length, "tokens 4, hidden 5 and top_k 1 need 72 bytes, the frame holds 60");
    frame = sample(f, 14);
    memcpy(copy, frame.payload, frame.length);
    copy[48] = 7;
    refused(WIRE_SESSION_OPEN, copy, frame.length, "partials is 7, allowed are 0 to 1");
    frame = sample(f, 7);
    memcpy(copy, frame.payload, frame.length);
    copy[40] = 3; /* rank */
    refused(WIRE_PREPARE_BEGIN, copy, frame.length, "rank is 3, allowed are 0 to 2");
    frame = sample(f, 6);
    memcpy(copy, frame.payload, frame.length);
    copy[0] = 3;
    refused(WIRE_SLOTS, copy, frame.length, "3 slots need");
    frame = sample(f, 5);
    refused(WIRE_PREPARE_END, copy, 1, "1 of its 1 payload bytes are left over");
}

/* A HELLO of another major gives its versions, whatever else it holds. */
/* Rows in the stage: the last byte may be the stage's last, not one beyond; nothing wraps around. */
static void test_staged_within(void **state)
{
    (void)state;
    static const float scales[] = {1.0f};
    static const struct {
        uint64_t offset;
        uint32_t rows, columns, stride;
        uint64_t stage;
        bool good;
    } cases[] = {
        {0, 16, 8, 8, 128, true},
        {0, 16, 8, 8, 127, false},
        {64, 16, 8, 16, 64 + 15 * 16 + 8, true},
        {64, 16, 8, 16, 64 + 15 * 16 + 7, false},
        {0, 16, 8, 7, 4096, false},
        {UINT64_MAX - 7, 16, 8, 8, 4096, false},
        {4096, 1, 1, 1, 4096, false},
        {0, 1u << 30, 1u << 30, UINT32_MAX, UINT64_C(1) << 40, false},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        struct msg_prepare_staged msg = {.offset = cases[i].offset, .stride = cases[i].stride}, got;
        msg.rows = (struct msg_prepare_data){.rows = cases[i].rows, .columns = cases[i].columns, .scale_count = 1};
        struct buf buf = {0};
        struct err err = {0};
        assert_int_equal(msg_prepare_staged_encode(&buf, 1, &msg, scales), 0);
        const struct frame frame = samples_frame(buf.data, buf.length);
        assert_int_equal(msg_prepare_staged_decode(&frame, cases[i].stage, &got, &err), cases[i].good ? 0 : -EPROTO);
        if (!cases[i].good)
            assert_non_null(strstr(err.message, "do not lie within the stage"));
        buf_release(&buf);
    }
}

static void test_other_major(void **state)
{
    (void)state;
    uint8_t payload[] = {9, 0, 4, 0, 0xff, 0xff, 0xff};
    struct frame frame = {.type = WIRE_HELLO, .length = sizeof payload, .payload = payload};
    struct msg_hello hello;
    struct err err;
    assert_int_equal(msg_hello_decode(&frame, &hello, &err), 0);
    assert_int_equal(hello.major, 9);
    assert_int_equal(hello.minor, 4);
}

static void feed(struct frame_reader *reader, const uint8_t *data, size_t length)
{
    while (length > 0) {
        size_t room;
        uint8_t *to = frame_reader_room(reader, &room);
        assert_non_null(to);
        if (room > length)
            room = length;
        memcpy(to, data, room);
        frame_reader_added(reader, room);
        data += room;
        length -= room;
    }
}

static void test_reader_pieces(void **state)
{
    struct fixture *f = *state;
    for (size_t piece = 1; piece < 300; piece = piece * 3 + 1) {
        struct frame_reader reader = {0};
        struct err err;
        struct frame frame;
        int seen = 0;
        for (size_t at = 0; at < f->buf.length; at += piece) {
            feed(&reader, f->buf.data + at, at + piece < f->buf.length ? piece : f->buf.length - at);
            int r;
            while ((r = frame_reader_next(&reader, &frame, &err)) == 1) {
                struct frame want = sample(f, seen);
                assert_int_equal(frame.type, want.type);
                assert_int_equal(frame.request, want.request);
                assert_int_equal(frame.length, want.length);
                assert_memory_equal(frame.payload, want.payload, want.length);
                assert_int_equal((uintptr_t)frame.payload % 8, 0);
                seen++;
            }
            assert_int_equal(r, 0);
        }
        assert_int_equal(seen, SAMPLES);
        frame_reader_release(&reader);
    }
}

static void bad_header(size_t at, uint8_t value, const char *sentence)
{
    uint8_t header[WIRE_FRAME_HEADER] = {0x66, 0x70, 0x39, 0x6b, WIRE_PING, 0, 0, 0, 16};
    header[at] = value;
    struct frame_reader reader = {0};
    feed(&reader, header, sizeof header);
    struct err err = {0};
    struct frame frame;
    assert_int_equal(frame_reader_next(&reader, &frame, &err), -EPROTO);
    if (!strstr(err.message, sentence))
        fail_msg("\"%s\" does not hold \"%s\"", err.message, sentence);
    frame_reader_release(&reader);
}

static void test_bad_headers(void **state)
{
    (void)state;
    bad_header(0, 'G', "not an fp9 link");
    bad_header(4, 99, "unknown type 99");
    bad_header(6, 1, "must be zero");
    bad_header(13, 1, "must be zero");
    bad_header(11, 1, "PING frame: length is 16777232 bytes, at most 65536 are allowed");
}

/* A header that claims the largest frame makes the reader take some MiB at most. */
static void test_claims_cost_little(void **state)
{
    (void)state;
    uint8_t header[WIRE_FRAME_HEADER] = {0x66, 0x70, 0x39, 0x6b, WIRE_STEP, 0, 0, 0, 0, 0, 0, 0x10};
    struct frame_reader reader = {0};
    feed(&reader, header, sizeof header);
    size_t room;
    assert_non_null(frame_reader_room(&reader, &room));
    assert_true(reader.buf.capacity <= 16u << 20);
    frame_reader_release(&reader);
}

static void test_encoder_limits(void **state)
{
    (void)state;
    struct buf buf = {0};
    uint8_t *a, *b, *c;
    const struct msg_prepare_data data = {.rows = UINT32_MAX, .columns = UINT32_MAX, .scale_count = UINT32_MAX};
    assert_int_equal(msg_prepare_data_encode(&buf, 1, &data, NULL, &a), -EMSGSIZE);
    const struct msg_step step = {.tokens = 4096, .hidden = 65536};
    assert_int_equal(msg_step_encode(&buf, 1, &step, &a, &b, &c), -EMSGSIZE);
    const struct msg_step_done done = {.tokens = 4096, .hidden = 65536, .dtype = MSG_F32};
    assert_int_equal(msg_step_done_encode(&buf, 1, &done, &a), -EMSGSIZE);
    assert_int_equal(msg_empty_encode(&buf, WIRE_STEP, 1), -EINVAL);
    assert_int_equal(buf.length, 0);
    int64_t at = frame_begin(&buf, WIRE_PING, 1);
    assert_int_equal(at, 0);
    buf_append(&buf, (uint8_t[WIRE_SMALL_PAYLOAD_MAX + 1]){0}, WIRE_SMALL_PAYLOAD_MAX + 1, FRAME_BUFFER_MAX);
    assert_int_equal(frame_end(&buf, at), -EMSGSIZE);
    assert_int_equal(buf.length, 0);
    buf_release(&buf);
}

static void test_dump(void **state)
{
    struct fixture *f = *state;
    char text[WIRE_DUMP_MAX];
    for (int i = 0; i < SAMPLES; i++) {
        struct frame frame = sample(f, i);
        wire_dump(&frame, text, sizeof text);
        assert_null(strstr(text, "BAD"));
        assert_null(strchr(text, '\n'));
        assert_memory_equal(text, frame_type_name(frame.type), strlen(frame_type_name(frame.type)));
    }
    struct frame frame = sample(f, 18);
    assert_string_equal(wire_dump(&frame, text, sizeof text),
                        "STEP #118 92 bytes: session 9 layer 2 tokens 3 top_k 1 hidden 5 prefill batch");
    frame.length--;
    assert_non_null(strstr(wire_dump(&frame, text, sizeof text), "BAD STEP frame"));
}

/* A socket that takes little at a time: everything arrives, in order; then the end of the stream is told, and writing to nobody is no
 * signal. */
static void test_transport(void **state)
{
    (void)state;
    int ends[2];
    struct err err;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    int small = 4096;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    struct transport *a, *b;
    assert_int_equal(transport_socket_new(ends[0], &a, &err), 0);
    assert_int_equal(transport_socket_new(ends[1], &b, &err), 0);
    struct transport_queue queue = {0};
    struct frame_reader reader = {0};
    const struct msg_step_done done = {.tokens = 64, .hidden = 4096, .dtype = MSG_F32};
    uint8_t *partial;
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(msg_step_done_encode(&queue.buf, i, &done, &partial), 0);
        memset(partial, (int)i + 1, 64 * 4096 * 4);
    }
    uint64_t seen = 0;
    bool waited = false;
    while (seen < 3) {
        int r = transport_flush(a, &queue, &err);
        assert_true(r >= 0);
        waited = waited || r == 0;
        while ((r = transport_fill(b, &reader, &err)) == 1) {
            struct frame frame;
            while (frame_reader_next(&reader, &frame, &err) == 1) {
                assert_int_equal(frame.request, seen);
                assert_int_equal(frame.payload[frame.length - 1], seen + 1);
                seen++;
            }
        }
        assert_int_equal(r, 0);
    }
    assert_true(waited);
    assert_true(transport_queue_empty(&queue));
    transport_close(a);
    assert_int_equal(transport_fill(b, &reader, &err), -ECONNRESET);
    assert_int_equal(msg_empty_encode(&queue.buf, WIRE_SLOTS_GET, 1), 0);
    assert_int_equal(transport_flush(b, &queue, &err), -EPIPE);
    transport_close(b);
    transport_queue_release(&queue);
    frame_reader_release(&reader);
    assert_true(transport_socket_new(0x7fffffff, &a, &err) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test(test_divided_experts),
        cmocka_unit_test_setup_teardown(test_truncated, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sentences, setup, teardown),
        cmocka_unit_test(test_staged_within),
        cmocka_unit_test(test_other_major),
        cmocka_unit_test_setup_teardown(test_reader_pieces, setup, teardown),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_claims_cost_little),
        cmocka_unit_test(test_encoder_limits),
        cmocka_unit_test_setup_teardown(test_dump, setup, teardown),
        cmocka_unit_test(test_transport),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

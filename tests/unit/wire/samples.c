#include "tests/unit/wire/samples.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/bytes.h"

const struct msg_prepare_begin samples_begin = {
    .model_key = {1, 2, 3},
    .layout_version = 1,
    .tp = 3,
    .rank = 2,
    .multiple_of = 64,
    .layer = 7,
    .kind = MSG_SLOT_MOE,
    .experts = 8,
    .slice = {256, 128, 64, 64},
    .has_shared = true,
    .shared = {256, 0, 32, 32},
    .sources = {9, 8, 7},
};

const struct msg_slot samples_slot = {
    .model_key = {4, 5, 6},
    .tp = 5,
    .rank = 4,
    .multiple_of = 128,
    .layer = 11,
    .kind = MSG_SLOT_DENSE,
    .state = MSG_SLOT_FINISHED,
    .bytes = UINT64_C(1) << 40,
    .checksum = UINT64_C(0xfedcba9876543210),
    .sources = {3, 2, 1},
};

static void must(int r)
{
    if (r < 0)
        abort();
}

static int one(struct buf *buf, int i)
{
    static const struct msg_hello hello = {1, 0, 5, "fp9d 0.1.0", "host"};
    static const struct msg_hello_duck hello_duck = {1, 2, 3, "fp9-duck 0.1.0", "d1", "0000-11", "avx2", 4, 1000, 10};
    static const struct msg_ping ping = {77, 88};
    static const struct msg_session_open open = {9, {1}, 16, 4, MSG_F32, true};
    static const struct msg_drop drop = {false, {1, 1}};
    static const struct msg_rekey rekey = {{7}, {8}, 3, {9}, true};
    static const struct msg_verify verify = {{7, 7}, 4, true, 99};
    static const struct msg_verified verified = {MSG_VERDICT_BAD, 4096, 5, -2, 1};
    static const struct msg_revoked revoked[] = {{77, false, {5, 5}, ""}, {78, true, {0}, "0000-11"}};
    static const uint64_t ranges[] = {4096, 8192, UINT64_C(1) << 40};
    static const float scales[] = {0.5f, 2.0f};
    const struct msg_slot slots[] = {samples_slot, samples_slot};
    const struct msg_prepare_data data = {.expert = 3, .matrix = 2, .first_row = 16, .rows = 16, .columns = 5, .scale_count = 2};
    const struct msg_prepare_staged staged = {.rows = data, .ticket = 4711, .offset = 64, .stride = 7};
    const struct msg_step step = {.session = 9, .layer = 2, .tokens = 3, .top_k = 1, .hidden = 5, .prefill = true, .batch = true};
    const struct msg_step_done done = {1, 2, 3, MSG_BF16, 3, 5, NULL, true, 6, 4, 9, true, {11, 12, 13, 14, 15}};
    struct err fail;
    uint8_t *a, *b, *c;
    int r;
    uint64_t request = (uint64_t)i + 100;
    switch (i) {
    case 0: return msg_hello_encode(buf, request, &hello);
    case 1: return msg_hello_duck_encode(buf, request, &hello_duck);
    case 2:
        err_set(&fail, -ENOMEM, ERR_NO_MEMORY, "needs 5, has 4");
        err_value_int(&fail, "needs", 5);
        return msg_fail_encode(buf, request, &fail);
    case 3: return msg_ping_encode(buf, WIRE_PING, request, &ping);
    case 4: return msg_ping_encode(buf, WIRE_PONG, request, &ping);
    case 5: return msg_empty_encode(buf, WIRE_SLOTS_GET, request);
    case 6: return msg_slots_encode(buf, request, slots, 2);
    case 7: return msg_prepare_begin_encode(buf, request, &samples_begin);
    case 8:
        r = msg_prepare_data_encode(buf, request, &data, scales, &a);
        if (r == 0)
            memset(a, 0x38, 16 * 5);
        return r;
    case 9: return msg_empty_encode(buf, WIRE_PREPARE_END, request);
    case 10: return msg_empty_encode(buf, WIRE_PREPARE_ABORT, request);
    case 11: return msg_slot_done_encode(buf, request, &samples_slot);
    case 12: return msg_drop_encode(buf, request, &drop);
    case 13: return msg_dropped_encode(buf, request, 12345);
    case 14: return msg_session_open_encode(buf, request, &open);
    case 15: return msg_session_encode(buf, WIRE_SESSION_OPENED, request, 9);
    case 16: return msg_session_encode(buf, WIRE_SESSION_CLOSE, request, 9);
    case 17: return msg_session_encode(buf, WIRE_SESSION_CLOSED, request, 9);
    case 18:
        r = msg_step_encode(buf, request, &step, &a, &b, &c);
        if (r == 0) {
            memset(a, 1, 30);
            memset(b, 0, 12);
            memset(c, 0x3f, 12);
        }
        return r;
    case 19: return msg_prepare_sources_encode(buf, request, samples_begin.sources);
    case 20: return msg_rekey_encode(buf, request, &rekey);
    case 21: return msg_verify_encode(buf, request, &verify);
    case 22: return msg_verified_encode(buf, request, &verified);
    case 23: return msg_prepare_taken_encode(buf, request, 1 << 20);
    case 24: return msg_stamp_encode(buf, request, 1234567);
    case 25: return msg_revoke_encode(buf, request, &revoked[0]);
    case 26: return msg_revoked_encode(buf, request, 1 << 20, revoked, 2);
    case 27: return msg_room_encode(buf, request, ranges, 3);
    case 28: return msg_prepare_staged_encode(buf, request, &staged, scales);
    case 30: return msg_empty_encode(buf, WIRE_STEP_CANCEL, request);
    case 29: return msg_staged_taken_encode(buf, request, 4711);
    default:
        r = msg_step_done_encode(buf, request, &done, &a);
        if (r == 0)
            memset(a, 2, 30);
        return r;
    }
}

void samples_make(struct buf *buf, size_t offsets[SAMPLES + 1])
{
    for (int i = 0; i < SAMPLES; i++) {
        offsets[i] = buf->length;
        must(one(buf, i));
    }
    offsets[SAMPLES] = buf->length;
}

struct frame samples_frame(const uint8_t *data, size_t length)
{
    struct bytes_reader r = bytes_reader_init(data, length);
    struct frame frame = {0};
    if (bytes_read_u32(&r) != WIRE_MAGIC)
        abort();
    frame.type = (enum wire_type)bytes_read_u16(&r);
    bytes_read_u16(&r);
    frame.length = bytes_read_u32(&r);
    bytes_read_u32(&r);
    frame.request = bytes_read_u64(&r);
    frame.payload = bytes_read_view(&r, frame.length);
    if (!bytes_reader_done(&r))
        abort();
    return frame;
}

int samples_decode(const struct frame *frame, struct err *err)
{
    union {
        struct msg_hello hello;
        struct msg_hello_duck hello_duck;
        struct msg_ping ping;
        struct msg_prepare_begin begin;
        struct msg_prepare_data data;
        struct msg_prepare_staged staged;
        struct msg_slot slot;
        struct msg_drop drop;
        struct msg_rekey rekey;
        struct msg_verify verify;
        struct msg_verified verified;
        struct msg_revoked revoked;
        uint8_t sources[DIGEST_SIZE];
        struct msg_session_open open;
        struct msg_step step;
        struct msg_step_done done;
        uint64_t number;
        struct err err;
    } any;
    struct msg_slot *slots;
    size_t count;
    int r;
    switch (frame->type) {
    case WIRE_HELLO: return msg_hello_decode(frame, &any.hello, err);
    case WIRE_HELLO_DUCK: return msg_hello_duck_decode(frame, &any.hello_duck, err);
    case WIRE_FAIL: return msg_fail_decode(frame, &any.err, err);
    case WIRE_PING:
    case WIRE_PONG: return msg_ping_decode(frame, &any.ping, err);
    case WIRE_SLOTS_GET:
    case WIRE_PREPARE_END:
    case WIRE_PREPARE_ABORT:
    case WIRE_STEP_CANCEL: return msg_empty_decode(frame, err);
    case WIRE_SLOTS:
        r = msg_slots_decode(frame, &slots, &count, err);
        if (r == 0)
            free(slots);
        return r;
    case WIRE_PREPARE_BEGIN: return msg_prepare_begin_decode(frame, &any.begin, err);
    case WIRE_PREPARE_DATA:
        r = msg_prepare_data_decode(frame, &any.data, err);
        if (r == 0) {
            /* Views must lie in the payload: touch both ends of each. */
            volatile uint8_t sum = any.data.codes[(size_t)any.data.rows * any.data.columns - 1];
            sum = any.data.scales[(size_t)any.data.scale_count * 4 - 1];
            (void)sum;
        }
        return r;
    case WIRE_SLOT_DONE: return msg_slot_done_decode(frame, &any.slot, err);
    case WIRE_PREPARE_SOURCES: return msg_prepare_sources_decode(frame, any.sources, err);
    case WIRE_PREPARE_TAKEN: return msg_prepare_taken_decode(frame, &any.number, err);
    case WIRE_PREPARE_STAGED:
        r = msg_prepare_staged_decode(frame, SAMPLES_STAGE_BYTES, &any.staged, err);
        if (r == 0) {
            volatile uint8_t sum = any.staged.rows.scales[(size_t)any.staged.rows.scale_count * 4 - 1];
            (void)sum;
        }
        return r;
    case WIRE_STAGED_TAKEN: return msg_staged_taken_decode(frame, &any.number, err);
    case WIRE_REKEY: return msg_rekey_decode(frame, &any.rekey, err);
    case WIRE_VERIFY: return msg_verify_decode(frame, &any.verify, err);
    case WIRE_STAMP: return msg_stamp_decode(frame, &any.number, err);
    case WIRE_REVOKE: return msg_revoke_decode(frame, &any.revoked, err);
    case WIRE_REVOKED: {
        struct msg_revoked list[MSG_REVOKED_MAX];
        size_t listed;
        return msg_revoked_decode(frame, &any.number, list, &listed, err);
    }
    case WIRE_ROOM: {
        uint64_t *room;
        size_t rooms;
        int code = msg_room_decode(frame, &room, &rooms, err);
        if (code == 0)
            free(room);
        return code;
    }
    case WIRE_VERIFIED: return msg_verified_decode(frame, &any.verified, err);
    case WIRE_DROP: return msg_drop_decode(frame, &any.drop, err);
    case WIRE_DROPPED: return msg_dropped_decode(frame, &any.number, err);
    case WIRE_SESSION_OPEN: return msg_session_open_decode(frame, &any.open, err);
    case WIRE_SESSION_OPENED:
    case WIRE_SESSION_CLOSE:
    case WIRE_SESSION_CLOSED: return msg_session_decode(frame, &any.number, err);
    case WIRE_STEP:
        r = msg_step_decode(frame, &any.step, err);
        if (r == 0 && any.step.tokens > 0) {
            volatile uint8_t sum = any.step.x[(size_t)any.step.tokens * any.step.hidden * 2 - 1];
            if (any.step.top_k > 0)
                sum = any.step.weights[(size_t)any.step.tokens * any.step.top_k * 4 - 1];
            (void)sum;
        }
        return r;
    case WIRE_STEP_DONE: return msg_step_done_decode(frame, &any.done, err);
    }
    return -EPROTO;
}

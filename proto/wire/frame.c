#include "proto/wire/frame.h"

#include <errno.h>
#include <string.h>

#include "proto/base/bytes.h"

#define READ_AHEAD (64u * 1024)
#define ROOM_MAX (4u * 1024 * 1024)
/* A reader holds at most one frame of the largest type and what was read ahead with it. */
#define READER_MAX ((size_t)WIRE_STEP_PAYLOAD_MAX + 4 * ROOM_MAX)

static const struct frame_kind {
    enum wire_type type;
    const char *name;
    uint32_t payload_max;
} kinds[] = {
    {WIRE_STEP, "STEP", WIRE_STEP_PAYLOAD_MAX}, /* first, since they are looked up most */
    {WIRE_STEP_DONE, "STEP_DONE", WIRE_STEP_PAYLOAD_MAX},
    {WIRE_HELLO, "HELLO", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_HELLO_DUCK, "HELLO_DUCK", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_FAIL, "FAIL", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_PING, "PING", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_PONG, "PONG", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_SLOTS_GET, "SLOTS_GET", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_SLOTS, "SLOTS", WIRE_SLOTS_PAYLOAD_MAX},
    {WIRE_PREPARE_BEGIN, "PREPARE_BEGIN", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_PREPARE_DATA, "PREPARE_DATA", WIRE_PREPARE_PAYLOAD_MAX},
    {WIRE_PREPARE_END, "PREPARE_END", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_PREPARE_ABORT, "PREPARE_ABORT", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_SLOT_DONE, "SLOT_DONE", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_DROP, "DROP", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_DROPPED, "DROPPED", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_PREPARE_SOURCES, "PREPARE_SOURCES", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_PREPARE_TAKEN, "PREPARE_TAKEN", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_STAMP, "STAMP", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_REVOKE, "REVOKE", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_REVOKED, "REVOKED", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_ROOM, "ROOM", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_REKEY, "REKEY", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_VERIFY, "VERIFY", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_VERIFIED, "VERIFIED", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_SESSION_OPEN, "SESSION_OPEN", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_SESSION_OPENED, "SESSION_OPENED", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_SESSION_CLOSE, "SESSION_CLOSE", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_SESSION_CLOSED, "SESSION_CLOSED", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_STEP_CANCEL, "STEP_CANCEL", WIRE_SMALL_PAYLOAD_MAX},
    {WIRE_PREPARE_STAGED, "PREPARE_STAGED", WIRE_PREPARE_PAYLOAD_MAX},
    {WIRE_STAGED_TAKEN, "STAGED_TAKEN", WIRE_SMALL_PAYLOAD_MAX},
};

static const struct frame_kind *kind_of(uint32_t type)
{
    for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++)
        if ((uint32_t)kinds[i].type == type)
            return &kinds[i];
    return NULL;
}

const char *frame_type_name(enum wire_type type)
{
    const struct frame_kind *kind = kind_of(type);
    return kind ? kind->name : "?";
}

uint32_t frame_payload_max(enum wire_type type)
{
    const struct frame_kind *kind = kind_of(type);
    return kind ? kind->payload_max : 0;
}

void frame_header_write(uint8_t *header, enum wire_type type, uint64_t request, uint32_t length)
{
    const struct {
        uint32_t magic;
        uint16_t type, zero;
        uint32_t length, zeros;
        uint64_t request;
    } words = {.magic = htole32(WIRE_MAGIC), .type = htole16((uint16_t)type), .length = htole32(length), .request = htole64(request)};
    _Static_assert(sizeof words == WIRE_FRAME_HEADER, "no padding");
    memcpy(header, &words, sizeof words);
}

int64_t frame_begin(struct buf *buf, enum wire_type type, uint64_t request)
{
    if (!kind_of(type))
        return -EINVAL;
    int r = buf_reserve(buf, WIRE_FRAME_HEADER, FRAME_BUFFER_MAX);
    if (r < 0)
        return r;
    size_t offset = buf->length;
    frame_header_write(buf->data + offset, type, request, 0);
    buf->length += WIRE_FRAME_HEADER;
    return (int64_t)offset;
}

int frame_end(struct buf *buf, int64_t offset)
{
    uint8_t *header = buf->data + offset;
    struct bytes_reader r = bytes_reader_init(header + 4, 2);
    size_t length = buf->length - (size_t)offset - WIRE_FRAME_HEADER;
    if (length > frame_payload_max((enum wire_type)bytes_read_u16(&r))) {
        buf->length = (size_t)offset;
        return -EMSGSIZE;
    }
    struct bytes_writer w = bytes_writer_init(header + 8, 4);
    bytes_write_u32(&w, (uint32_t)length);
    return 0;
}

/* Somebody who speaks something else may say less than a header and wait for an answer. */
static int check_magic(const uint8_t *header, struct err *err)
{
    struct bytes_reader r = bytes_reader_init(header, sizeof(uint32_t));
    uint32_t magic = bytes_read_u32(&r);
    if (magic == WIRE_MAGIC)
        return 0;
    return err_set(err, -EPROTO, ERR_BAD_REQUEST, "frame begins with 0x%08x instead of 0x%08x: not an fp9 link", magic, WIRE_MAGIC);
}

int frame_header_parse(const uint8_t *header, struct frame *ret_frame, struct err *err)
{
    struct bytes_reader r = bytes_reader_init(header, WIRE_FRAME_HEADER);
    (void)bytes_read_u32(&r);
    uint16_t type = bytes_read_u16(&r);
    uint16_t zero_a = bytes_read_u16(&r);
    uint32_t length = bytes_read_u32(&r);
    uint32_t zero_b = bytes_read_u32(&r);
    uint64_t request = bytes_read_u64(&r);
    int good = check_magic(header, err);
    if (good < 0)
        return good;
    const struct frame_kind *kind = kind_of(type);
    if (!kind)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "frame of unknown type %u", type);
    if (zero_a || zero_b)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "%s frame: reserved header fields are 0x%x and 0x%x, they must be zero", kind->name,
                       zero_a, zero_b);
    if (length > kind->payload_max)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "%s frame: length is %u bytes, at most %u are allowed", kind->name, length,
                       kind->payload_max);
    *ret_frame = (struct frame){.type = kind->type, .request = request, .length = length};
    return 0;
}

/* 1 and the frame's fields when a header is there and good, 0 when it is not there yet. */
static int header_read(const struct frame_reader *reader, struct frame *ret_frame, struct err *err)
{
    size_t there = reader->buf.length - reader->taken;
    if (there < WIRE_FRAME_HEADER)
        return there < sizeof(uint32_t) ? 0 : check_magic(reader->buf.data + reader->taken, err);
    int r = frame_header_parse(reader->buf.data + reader->taken, ret_frame, err);
    return r < 0 ? r : 1;
}

/* Moves what is left to the front, so that a frame's payload is aligned. */
static void compact(struct frame_reader *reader)
{
    buf_consume(&reader->buf, reader->taken);
    reader->taken = 0;
}

uint8_t *frame_reader_room(struct frame_reader *reader, size_t *ret_room)
{
    compact(reader);
    struct frame frame;
    size_t room = READ_AHEAD;
    if (header_read(reader, &frame, NULL) == 1) {
        size_t whole = WIRE_FRAME_HEADER + (size_t)frame.length;
        if (whole > reader->buf.length && whole - reader->buf.length > room)
            room = whole - reader->buf.length;
    }
    if (room > ROOM_MAX)
        room = ROOM_MAX;
    if (buf_reserve(&reader->buf, room, READER_MAX) < 0)
        return NULL;
    *ret_room = room;
    return reader->buf.data + reader->buf.length;
}

void frame_reader_added(struct frame_reader *reader, size_t bytes)
{
    reader->buf.length += bytes;
}

int frame_reader_next(struct frame_reader *reader, struct frame *ret_frame, struct err *err)
{
    struct frame frame;
    int r = header_read(reader, &frame, err);
    if (r != 1)
        return r;
    if (reader->buf.length - reader->taken - WIRE_FRAME_HEADER < frame.length)
        return 0;
    if (reader->taken % 8 != 0)
        compact(reader);
    frame.payload = reader->buf.data + reader->taken + WIRE_FRAME_HEADER;
    reader->taken += WIRE_FRAME_HEADER + (size_t)frame.length;
    *ret_frame = frame;
    return 1;
}

void frame_reader_release(struct frame_reader *reader)
{
    buf_release(&reader->buf);
    reader->taken = 0;
}

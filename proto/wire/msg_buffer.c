#include "proto/wire/msg_buffer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/codec.h"

int msg_stamp_encode(struct buf *buf, uint64_t request, uint64_t stamp)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_STAMP, request, 8);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, stamp);
    return codec_end(&w);
}

int msg_stamp_decode(const struct frame *frame, uint64_t *ret_stamp, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_STAMP, err);
    uint64_t stamp = codec_read_u64(&r);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_stamp = stamp;
    return code;
}

static size_t entry_size(const struct msg_revoked *entry)
{
    return 8 + 1 + DIGEST_SIZE + codec_string_size(entry->boot_id);
}

static void write_entry(struct bytes_writer *w, const struct msg_revoked *entry)
{
    bytes_write_u64(w, entry->stamp);
    bytes_write_u8(w, entry->all);
    bytes_write_copy(w, entry->model_key, DIGEST_SIZE);
    bytes_write_string(w, entry->boot_id);
}

static void read_entry(struct codec_reader *r, struct msg_revoked *entry)
{
    *entry = (struct msg_revoked){.stamp = codec_read_u64(r), .all = codec_read_bool(r, "all")};
    bytes_read_copy(&r->payload, entry->model_key, DIGEST_SIZE);
    codec_read_string(r, "boot_id", entry->boot_id, sizeof entry->boot_id);
}

int msg_revoke_encode(struct buf *buf, uint64_t request, const struct msg_revoked *msg)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_REVOKE, request, entry_size(msg));
    if (r < 0)
        return r;
    write_entry(&w.payload, msg);
    return codec_end(&w);
}

int msg_revoke_decode(const struct frame *frame, struct msg_revoked *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_REVOKE, err);
    struct msg_revoked msg;
    read_entry(&r, &msg);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_revoked_encode(struct buf *buf, uint64_t request, uint64_t stamp, const struct msg_revoked *list, size_t count)
{
    struct codec_writer w;
    size_t size = 8 + 4;
    for (size_t i = 0; i < count; i++)
        size += entry_size(&list[i]);
    int r = codec_begin(&w, buf, WIRE_REVOKED, request, size);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, stamp);
    bytes_write_u32(&w.payload, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        write_entry(&w.payload, &list[i]);
    return codec_end(&w);
}

int msg_revoked_decode(const struct frame *frame, uint64_t *ret_stamp, struct msg_revoked ret_list[MSG_REVOKED_MAX], size_t *ret_count,
                       struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_REVOKED, err);
    uint64_t stamp = codec_read_u64(&r);
    uint32_t count = codec_read_u32(&r, "count", 0, MSG_REVOKED_MAX);
    for (uint32_t i = 0; i < count && r.code == 0; i++)
        read_entry(&r, &ret_list[i]);
    int code = codec_reader_end(&r);
    if (code < 0)
        return code;
    *ret_stamp = stamp;
    *ret_count = count;
    return 0;
}

int msg_room_encode(struct buf *buf, uint64_t request, const uint64_t *ranges, size_t count)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_ROOM, request, 4 + count * 8);
    if (r < 0)
        return r;
    bytes_write_u32(&w.payload, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        bytes_write_u64(&w.payload, ranges[i]);
    return codec_end(&w);
}

int msg_room_decode(const struct frame *frame, uint64_t **ret_ranges, size_t *ret_count, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_ROOM, err);
    uint32_t count = codec_read_u32(&r, "count", 0, MSG_ROOM_MAX);
    if (r.code == 0 && frame->length != 4 + (uint64_t)count * 8)
        codec_refuse(&r, "%u ranges in %u bytes", count, frame->length);
    if (r.code)
        return r.code;
    _cleanup_(freep) uint64_t *ranges = count ? calloc(count, sizeof *ranges) : NULL;
    if (count && !ranges)
        return err_no_memory(err, "ROOM", count * sizeof *ranges);
    for (uint32_t i = 0; i < count; i++)
        ranges[i] = codec_read_u64(&r);
    int code = codec_reader_end(&r);
    if (code < 0)
        return code;
    *ret_ranges = STEAL(ranges);
    *ret_count = count;
    return 0;
}

#include "proto/wire/msg_hello.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "proto/wire/codec.h"

#define ERRNO_MAX 4095
#define FEATURES_OF_HELLO ((UINT64_C(1) << WIRE_HEARTBEAT_SHIFT) - 1)

int msg_hello_encode(struct buf *buf, uint64_t request, const struct msg_hello *msg)
{
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_HELLO, request, 12 + codec_string_size(msg->software) + codec_string_size(msg->host));
    if (r < 0)
        return r;
    bytes_write_u16(&w.payload, msg->major);
    bytes_write_u16(&w.payload, msg->minor);
    bytes_write_u64(&w.payload, (msg->features & FEATURES_OF_HELLO) | (uint64_t)msg->heartbeat_s << WIRE_HEARTBEAT_SHIFT);
    bytes_write_string(&w.payload, msg->software);
    bytes_write_string(&w.payload, msg->host);
    return codec_end(&w);
}

/* A HELLO of another major version is only read as far as its versions: its other fields may have changed. */
int msg_hello_decode(const struct frame *frame, struct msg_hello *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_HELLO, err);
    struct msg_hello msg = {0};
    msg.major = bytes_read_u16(&r.payload);
    msg.minor = bytes_read_u16(&r.payload);
    if (!r.payload.failed && r.code == 0 && msg.major != WIRE_VERSION_MAJOR) {
        *ret_msg = msg;
        return 0;
    }
    uint64_t features = codec_read_u64(&r);
    msg.features = features & FEATURES_OF_HELLO;
    msg.heartbeat_s = (uint16_t)(features >> WIRE_HEARTBEAT_SHIFT);
    if (r.code == 0 && !r.payload.failed && msg.heartbeat_s > WIRE_HEARTBEAT_MAX_S)
        codec_refuse(&r, "heartbeat_s is %u, at most %d", msg.heartbeat_s, WIRE_HEARTBEAT_MAX_S);
    codec_read_string(&r, "software", msg.software, sizeof msg.software);
    codec_read_string(&r, "host", msg.host, sizeof msg.host);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_hello_duck_encode(struct buf *buf, uint64_t request, const struct msg_hello_duck *msg)
{
    struct codec_writer w;
    size_t size = 12 + codec_string_size(msg->software) + codec_string_size(msg->name) + codec_string_size(msg->boot_id) +
                  codec_string_size(msg->isa) + 20;
    int r = codec_begin(&w, buf, WIRE_HELLO_DUCK, request, size);
    if (r < 0)
        return r;
    bytes_write_u16(&w.payload, msg->major);
    bytes_write_u16(&w.payload, msg->minor);
    bytes_write_u64(&w.payload, msg->features);
    bytes_write_string(&w.payload, msg->software);
    bytes_write_string(&w.payload, msg->name);
    bytes_write_string(&w.payload, msg->boot_id);
    bytes_write_string(&w.payload, msg->isa);
    bytes_write_u32(&w.payload, msg->cores);
    bytes_write_u64(&w.payload, msg->capacity_bytes);
    bytes_write_u64(&w.payload, msg->used_bytes);
    return codec_end(&w);
}

int msg_hello_duck_decode(const struct frame *frame, struct msg_hello_duck *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_HELLO_DUCK, err);
    struct msg_hello_duck msg = {0};
    msg.major = bytes_read_u16(&r.payload);
    msg.minor = bytes_read_u16(&r.payload);
    if (!r.payload.failed && r.code == 0 && msg.major != WIRE_VERSION_MAJOR) {
        *ret_msg = msg;
        return 0;
    }
    msg.features = codec_read_u64(&r);
    codec_read_string(&r, "software", msg.software, sizeof msg.software);
    codec_read_string(&r, "name", msg.name, sizeof msg.name);
    codec_read_string(&r, "boot_id", msg.boot_id, sizeof msg.boot_id);
    codec_read_string(&r, "isa", msg.isa, sizeof msg.isa);
    msg.cores = codec_read_u32(&r, "cores", 1, 65536);
    msg.capacity_bytes = codec_read_u64(&r);
    msg.used_bytes = codec_read_u64(&r);
    if (r.code == 0 && !r.payload.failed && (msg.capacity_bytes > INT64_MAX || msg.used_bytes > msg.capacity_bytes))
        codec_refuse(&r, "used_bytes is %llu of capacity_bytes %llu", (unsigned long long)msg.used_bytes,
                     (unsigned long long)msg.capacity_bytes);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

int msg_fail_encode(struct buf *buf, uint64_t request, const struct err *err)
{
    const char *name = err_name_text(err->name);
    struct codec_writer w;
    int r = codec_begin(&w, buf, WIRE_FAIL, request,
                        4 + codec_string_size(name) + codec_string_size(err->message) + codec_string_size(err->values));
    if (r < 0)
        return r;
    int number = err->code < 0 && err->code >= -ERRNO_MAX ? -err->code : EIO;
    bytes_write_u32(&w.payload, (uint32_t)number);
    bytes_write_string(&w.payload, name);
    bytes_write_string(&w.payload, err->message);
    bytes_write_string(&w.payload, err->values);
    return codec_end(&w);
}

int msg_fail_decode(const struct frame *frame, struct err *ret_peer_err, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, WIRE_FAIL, err);
    struct err peer = {0};
    char name[32];
    uint32_t number = codec_read_u32(&r, "code", 1, ERRNO_MAX);
    codec_read_string(&r, "name", name, sizeof name);
    bytes_read_string(&r.payload, peer.message, sizeof peer.message);
    codec_read_string(&r, "values", peer.values, sizeof peer.values);
    int code = codec_reader_end(&r);
    if (code < 0)
        return code;
    peer.code = -(int)number;
    /* A later minor version may know more names; its sentence says the rest. */
    if (!err_name_parse(name, &peer.name))
        peer.name = ERR_INTERNAL;
    *ret_peer_err = peer;
    return 0;
}

int msg_ping_encode(struct buf *buf, enum wire_type type, uint64_t request, const struct msg_ping *msg)
{
    if (type != WIRE_PING && type != WIRE_PONG)
        return -EINVAL;
    struct codec_writer w;
    int r = codec_begin(&w, buf, type, request, 16);
    if (r < 0)
        return r;
    bytes_write_u64(&w.payload, msg->stamp);
    bytes_write_u64(&w.payload, msg->progress);
    return codec_end(&w);
}

int msg_ping_decode(const struct frame *frame, struct msg_ping *ret_msg, struct err *err)
{
    struct codec_reader r = codec_reader_init(frame, frame->type == WIRE_PONG ? WIRE_PONG : WIRE_PING, err);
    struct msg_ping msg = {.stamp = codec_read_u64(&r), .progress = 0};
    msg.progress = codec_read_u64(&r);
    int code = codec_reader_end(&r);
    if (code == 0)
        *ret_msg = msg;
    return code;
}

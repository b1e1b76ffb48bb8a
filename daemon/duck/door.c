#include "daemon/duck/door.h"

#include <string.h>
#include <sys/socket.h>

#include "proto/base/clock.h"
#include "proto/wire/frame.h"

#define MAGIC_BYTES 4u
#define HELLO_MAX 4096u /* what is longer is let in as it comes: some hundred bytes are usual */

static void wake_at(int fd, size_t bytes)
{
    int least = (int)bytes;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least); /* else poll tells of every byte, which costs time only */
}

/* It has said enough; else it is woken for when it has. */
static bool has_spoken(int fd)
{
    uint8_t said[WIRE_FRAME_HEADER + HELLO_MAX];
    struct frame frame;
    ssize_t n = recv(fd, said, sizeof said, MSG_PEEK | MSG_DONTWAIT);
    size_t least = MAGIC_BYTES, have = n > 0 ? (size_t)n : 0;
    if (n == 0)
        return true;
    if (have >= MAGIC_BYTES) {
        uint8_t magic[WIRE_FRAME_HEADER];
        frame_header_write(magic, WIRE_HELLO, 0, 0);
        if (memcmp(said, magic, MAGIC_BYTES) != 0)
            return true;
        least = WIRE_FRAME_HEADER;
    }
    if (have >= WIRE_FRAME_HEADER) {
        if (frame_header_parse(said, &frame, NULL) < 0 || frame.type != WIRE_HELLO || frame.length > HELLO_MAX)
            return true;
        least += frame.length;
    }
    if (have >= least && have >= WIRE_FRAME_HEADER)
        return true;
    wake_at(fd, least);
    return false;
}

static void take_out(struct door *door, size_t at, struct door_visitor *ret_visitor)
{
    *ret_visitor = door->visitors[at];
    door->count--;
    memmove(&door->visitors[at], &door->visitors[at + 1], (door->count - at) * sizeof *door->visitors);
}

bool door_add(struct door *door, const struct door_visitor *visitor)
{
    door->visitors[door->count++] = *visitor;
    return door->count < DOOR_MAX;
}

bool door_spoken(struct door *door, struct door_visitor *ret_visitor)
{
    for (size_t i = 0; i < door->count; i++) {
        if (!has_spoken(door->visitors[i].fd))
            continue;
        take_out(door, i, ret_visitor);
        wake_at(ret_visitor->fd, 1);
        return true;
    }
    return false;
}

bool door_first(struct door *door, uint64_t now, bool always, struct door_visitor *ret_visitor)
{
    if (!door->count || (!always && now < door->visitors[0].by_ns))
        return false;
    take_out(door, 0, ret_visitor);
    return true;
}

void door_polls(const struct door *door, struct pollfd *ret_polls)
{
    for (size_t i = 0; i < door->count; i++)
        ret_polls[i] = (struct pollfd){.fd = door->visitors[i].fd, .events = POLLIN};
}

int door_timeout_ms(const struct door *door, uint64_t now)
{
    if (!door->count)
        return -1;
    return now < door->visitors[0].by_ns ? (int)((door->visitors[0].by_ns - now) / CLOCK_NS_PER_MS) + 1 : 0;
}

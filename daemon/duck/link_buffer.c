/* What a weight buffer knows beside its slots: stamps, revoked keys, free ranges. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/duck/link_state.h"
#include "proto/base/log.h"
#include "proto/wire/msg_buffer.h"

int link_buffer_say(struct link *link, struct err *err)
{
    struct msg_revoked revoked[MSG_REVOKED_MAX];
    size_t count = wbuf_revoked(link->wbuf, revoked);
    return link_sent(msg_revoked_encode(link->out, 0, wbuf_stamp(link->wbuf), revoked, count), err);
}

int link_buffer_stamp(struct link *link, const struct frame *frame, struct err *err)
{
    uint64_t stamp;
    int r = msg_stamp_decode(frame, &stamp, err);
    if (r == 0)
        wbuf_set_stamp(link->wbuf, stamp);
    return r;
}

int link_buffer_revoke(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_revoked revoked;
    int r = msg_revoke_decode(frame, &revoked, err);
    if (r < 0)
        return r;
    wbuf_revoke(link->wbuf, &revoked);
    uint32_t buried = link->listed ? 0 : wbuf_bury(link->wbuf);
    if (buried)
        log_info("cache", "%" PRIu32 " slots of a key that was revoked meanwhile were dropped", buried);
    return 0;
}

int link_tell_room(struct link *link, struct err *err)
{
    uint64_t changes = wbuf_changes(link->wbuf);
    if (!link->buffer || !link->listed || changes == link->room_told)
        return 0;
    _cleanup_(freep) uint64_t *ranges = calloc(WBUF_SLOTS_MAX + 1, sizeof *ranges);
    if (!ranges)
        return link_sent(-ENOMEM, err);
    link->room_told = changes;
    return link_sent(msg_room_encode(link->out, 0, ranges, wbuf_ranges(link->wbuf, ranges)), err);
}

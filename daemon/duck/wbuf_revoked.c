/* Keys that are dead: in the header, so that a duck that was away, or a fp9d that has lost its database, hears of them from those who
 * know. */
#include <string.h>

#include "daemon/duck/wbuf_format.h"
#include "proto/wire/msg_buffer.h"

_Static_assert(WBUF_REVOKED_MAX == MSG_REVOKED_MAX, "a REVOKED holds the whole table");
_Static_assert(WBUF_BOOT_ID_SIZE <= WIRE_NAME_MAX, "boot ids fit in a frame");

uint64_t wbuf_stamp(const struct wbuf *wbuf)
{
    const struct wbuf_header *header = wbuf_header(wbuf);
    uint64_t most = 0;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++)
        if (wbuf_taken(wbuf, i) && header->stamps[i] > most)
            most = header->stamps[i];
    for (uint32_t i = 0; i < WBUF_REVOKED_MAX; i++)
        most = header->revoked[i].stamp > most ? header->revoked[i].stamp : most;
    return most;
}

static bool same_thing(const struct wbuf_revoked *a, const struct wbuf_revoked *b)
{
    return a->all == b->all && memcmp(a->model_key, b->model_key, DIGEST_SIZE) == 0 && strcmp(a->boot_id, b->boot_id) == 0;
}

void wbuf_revoke(struct wbuf *wbuf, const struct msg_revoked *revoked)
{
    struct wbuf_revoked entry = {.all = revoked->all}, *place = NULL;
    memcpy(entry.model_key, revoked->model_key, DIGEST_SIZE);
    memcpy(entry.boot_id, revoked->boot_id, strnlen(revoked->boot_id, WBUF_BOOT_ID_SIZE - 1));
    for (uint32_t i = 0; i < WBUF_REVOKED_MAX; i++) {
        struct wbuf_revoked *at = &wbuf_header(wbuf)->revoked[i];
        if (at->stamp && same_thing(at, &entry)) {
            if (revoked->stamp > at->stamp)
                __atomic_store_n(&at->stamp, revoked->stamp, __ATOMIC_RELEASE);
            return;
        }
        place = !place || at->stamp < place->stamp ? at : place;
    }
    if (place->stamp >= revoked->stamp)
        return; /* the table is full of later ones */
    __atomic_store_n(&place->stamp, 0, __ATOMIC_SEQ_CST);
    *place = entry;
    __atomic_store_n(&place->stamp, revoked->stamp, __ATOMIC_RELEASE);
}

static bool is_dead(const struct wbuf *wbuf, uint32_t slot)
{
    const struct wbuf_header *header = wbuf_header(wbuf);
    for (uint32_t i = 0; i < WBUF_REVOKED_MAX; i++) {
        const struct wbuf_revoked *entry = &header->revoked[i];
        if (header->stamps[slot] < entry->stamp &&
            (entry->all || memcmp(entry->model_key, header->slots[slot].model_key, DIGEST_SIZE) == 0) &&
            (!entry->boot_id[0] || strncmp(entry->boot_id, header->boot_id, WBUF_BOOT_ID_SIZE) == 0))
            return true;
    }
    return false;
}

uint32_t wbuf_bury(struct wbuf *wbuf)
{
    uint32_t buried = 0;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        if (!wbuf_taken(wbuf, i) || !is_dead(wbuf, i))
            continue;
        wbuf_drop(wbuf, i);
        buried++;
    }
    return buried;
}

size_t wbuf_revoked(const struct wbuf *wbuf, struct msg_revoked *ret_list)
{
    size_t count = 0;
    for (uint32_t i = 0; i < WBUF_REVOKED_MAX; i++) {
        const struct wbuf_revoked *entry = &wbuf_header(wbuf)->revoked[i];
        if (!entry->stamp)
            continue;
        struct msg_revoked *to = &ret_list[count++];
        *to = (struct msg_revoked){.stamp = entry->stamp, .all = entry->all != 0};
        memcpy(to->model_key, entry->model_key, DIGEST_SIZE);
        memcpy(to->boot_id, entry->boot_id, strnlen(entry->boot_id, WBUF_BOOT_ID_SIZE - 1));
    }
    return count;
}

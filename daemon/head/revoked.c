#include "daemon/head/revoked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/wire/msg_buffer.h"

/* A stamp from further ahead is of a damaged header; to go by it would leave no room for later ones. */
#define STAMP_AHEAD_MAX (UINT64_C(365) * 24 * 3600 * CLOCK_NS_PER_S)

struct revoked {
    struct msg_revoked list[MSG_REVOKED_MAX];
    uint64_t noted[MSG_REVOKED_MAX]; /* when, as `changes` counts */
    size_t count;
    uint64_t last; /* greatest stamp given or heard of */
    uint64_t changes;
    uint64_t told[CORE_DUCKS_MAX]; /* of `changes`, when the duck was greeted */
};

struct revoked *revoked_new(void)
{
    struct revoked *revoked = calloc(1, sizeof *revoked);
    if (!revoked)
        abort();
    return revoked;
}

void revoked_free(struct revoked *revoked)
{
    free(revoked);
}

static uint64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* The wall clock, but never at or before what was there: a clock that was set back must not make new slots old. */
static uint64_t next_stamp(struct revoked *revoked)
{
    uint64_t stamp = wall_ns();
    revoked->last = stamp > revoked->last ? stamp : revoked->last + 1;
    return revoked->last;
}

/* True when it says more than the list did. The one of the least stamp gives way. */
static bool note(struct revoked *revoked, const struct msg_revoked *entry)
{
    struct msg_revoked *least = NULL;
    for (size_t i = 0; i < revoked->count; i++) {
        struct msg_revoked *at = &revoked->list[i];
        if (at->all == entry->all && memcmp(at->model_key, entry->model_key, DIGEST_SIZE) == 0 &&
            strcmp(at->boot_id, entry->boot_id) == 0) {
            bool later = entry->stamp > at->stamp;
            at->stamp = later ? entry->stamp : at->stamp;
            if (later)
                revoked->noted[i] = ++revoked->changes;
            return later;
        }
        least = !least || at->stamp < least->stamp ? at : least;
    }
    if (revoked->count < MSG_REVOKED_MAX)
        least = &revoked->list[revoked->count++];
    else if (least->stamp >= entry->stamp)
        return false;
    *least = *entry;
    revoked->noted[least - revoked->list] = ++revoked->changes;
    return true;
}

static bool knows(const struct head *head, uint32_t duck)
{
    return head->core->ducks[duck].hello.features & WIRE_FEATURE_BUFFER;
}

static void send_entry(struct head *head, uint32_t duck, const struct msg_revoked *entry)
{
    struct outgoing *out = outgoing_new();
    if (msg_revoke_encode(&out->buf, 0, entry) < 0)
        abort(); /* a hundred bytes */
    peer_send(head->peers[duck], out, false);
    outgoing_unref(out);
}

static void send_all(struct head *head, const struct msg_revoked *entry)
{
    for (uint32_t i = 0; i < head->core->duck_count; i++)
        if (head->core->ducks[i].state == CORE_DUCK_UP && knows(head, i))
            send_entry(head, i, entry);
}

void revoked_drop(struct head *head, const struct core_drop *drop)
{
    struct msg_revoked entry = {.stamp = next_stamp(head->revoked), .all = drop->all};
    if (!drop->all)
        memcpy(entry.model_key, drop->key, DIGEST_SIZE);
    if (drop->only != CORE_NONE) {
        const char *boot_id = head->core->ducks[drop->only].hello.boot_id;
        if (!boot_id[0])
            return; /* it was never there, so it has nothing */
        memcpy(entry.boot_id, boot_id, sizeof entry.boot_id);
    }
    note(head->revoked, &entry);
    send_all(head, &entry);
}

void revoked_greet(struct head *head, uint32_t duck, const struct msg_hello_duck *hello)
{
    head->revoked->told[duck] = head->revoked->changes;
    if (!(hello->features & WIRE_FEATURE_BUFFER))
        return;
    for (size_t i = 0; i < head->revoked->count; i++)
        send_entry(head, duck, &head->revoked->list[i]);
}

static bool concerns(const struct core_duck *duck, const struct msg_revoked *entry)
{
    if (duck->state != CORE_DUCK_UP || (entry->boot_id[0] && strcmp(entry->boot_id, duck->hello.boot_id) != 0))
        return false;
    for (size_t i = 0; i < duck->slot_count; i++)
        if (entry->all || memcmp(duck->slots[i].model_key, entry->model_key, DIGEST_SIZE) == 0)
            return true;
    return false;
}

static void read_again(struct head *head, uint32_t duck, const char *who)
{
    log_info("cache", "%s: %s remembers an invalidation of slots that it has: its header is read again", head->core->ducks[duck].name, who);
    core_duck_broken(head->core, clock_now_ns(), duck, "its slots were invalidated, as another duck remembers");
}

void revoked_up(struct head *head, uint32_t duck)
{
    const struct revoked *revoked = head->revoked;
    bool again = false;
    for (size_t i = 0; knows(head, duck) && i < revoked->count; i++) {
        if (revoked->noted[i] <= revoked->told[duck])
            continue;
        send_entry(head, duck, &revoked->list[i]);
        again |= concerns(&head->core->ducks[duck], &revoked->list[i]);
    }
    if (again)
        read_again(head, duck, "another duck");
}

int revoked_learn(struct head *head, uint32_t from, const struct frame *frame, struct err *err)
{
    struct core *core = head->core;
    struct msg_revoked list[MSG_REVOKED_MAX];
    bool again[CORE_DUCKS_MAX] = {0};
    uint64_t stamp;
    size_t count;
    int r = msg_revoked_decode(frame, &stamp, list, &count, err);
    if (r < 0)
        return r;
    uint64_t most = wall_ns() + STAMP_AHEAD_MAX;
    if (stamp > most)
        log_warning("cache", "%s: its header has a stamp of the far future, which is not gone by", core->ducks[from].name);
    else if (stamp > head->revoked->last)
        head->revoked->last = stamp;
    for (size_t i = 0; i < count; i++) {
        if (list[i].stamp > most || !note(head->revoked, &list[i]))
            continue;
        send_all(head, &list[i]);
        for (uint32_t duck = 0; duck < core->duck_count; duck++)
            again[duck] |= duck != from && concerns(&core->ducks[duck], &list[i]);
    }
    for (uint32_t duck = 0; duck < core->duck_count; duck++) {
        if (!again[duck])
            continue;
        char who[CORE_NAME_MAX + 8];
        snprintf(who, sizeof who, "duck %s", core->ducks[from].name);
        read_again(head, duck, who);
    }
    return 0;
}

void revoked_send_stamp(struct head *head, uint32_t duck)
{
    if (!knows(head, duck))
        return;
    struct outgoing *out = outgoing_new();
    if (msg_stamp_encode(&out->buf, 0, next_stamp(head->revoked)) < 0)
        abort();                             /* a few bytes */
    peer_send(head->peers[duck], out, true); /* among the frames it is about */
    outgoing_unref(out);
}

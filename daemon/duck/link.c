#include "daemon/duck/link.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/duck/link_state.h"
#include "proto/base/log.h"
#include "proto/wire/msg_hello.h"

int link_new(const struct link_facts *facts, struct wbuf *wbuf, struct exec *exec, struct buf *out, struct link **ret_link, struct err *err)
{
    _cleanup_(link_freep) struct link *link = calloc(1, sizeof *link);
    if (!link)
        return err_no_memory(err, "link", sizeof *link);
    link->facts = *facts;
    link->wbuf = wbuf;
    link->exec = exec;
    link->out = out;
    snprintf(link->peer, sizeof link->peer, "%s", facts->from ? facts->from : "");
    int r = fills_new(wbuf, &link->fills, err);
    if (r == 0)
        r = packer_new(&link->packer, err);
    if (r == 0)
        r = verify_new(&link->verify, err);
    if (r < 0)
        return r;
    *ret_link = STEAL(link);
    return 0;
}

void link_free(struct link *link)
{
    if (!link)
        return;
    if (link->verify) {
        uint32_t slot;
        verify_stop(link->verify);
        while (verify_left(link->verify, &slot))
            wbuf_unpin(link->wbuf, slot);
        verify_free(link->verify);
    }
    if (link->packer) {
        packer_stop(link->packer);
        for (struct fill_work *work; (work = packer_left(link->packer));)
            fill_work_discard(link->fills, work);
        packer_free(link->packer);
    }
    fills_free(link->fills);
    for (int i = 0; i < EXEC_PLACES; i++) {
        if (!link->running[i].step)
            continue;
        wbuf_unpin(link->wbuf, link->running[i].slot);
        steps_done(&link->steps, link->running[i].step);
    }
    steps_release(&link->steps);
    while (wbuf_stale(link->wbuf)) /* nobody is delayed by it now */
        wbuf_reclaim(link->wbuf);
    free(link);
}

void link_set_channel(struct link *link, struct channel *channel, int bell_fd)
{
    link->channel = channel;
    link->bell_fd = bell_fd;
}

bool link_has_sessions(const struct link *link)
{
    for (size_t i = 0; i < SESSIONS_MAX; i++)
        if (link->sessions.sessions[i].used)
            return true;
    return false;
}

bool link_greeted(const struct link *link)
{
    return link->greeted;
}

uint32_t link_heartbeat_s(const struct link *link)
{
    return link->heartbeat_s;
}

const char *link_peer(const struct link *link)
{
    return link->peer;
}

int link_sent(int r, struct err *err)
{
    return r < 0 ? err_set(err, r, ERR_NO_MEMORY, "link: no memory for an answer") : 0;
}

int link_fail(struct link *link, uint64_t request, const struct err *why, struct err *err)
{
    log_debug("link", "request %" PRIu64 ": %s", request, why->message);
    return link_sent(msg_fail_encode(link->out, request, why), err);
}

/* The peer broke the conversation: FAIL and the end of the link. */
static int refuse(struct link *link, uint64_t request, const struct err *err)
{
    (void)msg_fail_encode(link->out, request, err);
    return err->code;
}

/* ---- hello, ping, slots ------------------------------------------------------------------------- */

static int on_hello(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_hello hello;
    int r = msg_hello_decode(frame, &hello, err);
    if (r < 0)
        return r;
    if (link->greeted)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "a second HELLO on one link");
    if (hello.major != WIRE_VERSION_MAJOR) {
        err_set(err, -EPROTONOSUPPORT, ERR_BAD_REQUEST,
                "link version %u.%u, this duck (fp9-duck %s) speaks %d.%d: the major versions must agree", hello.major, hello.minor,
                FP9_VERSION, WIRE_VERSION_MAJOR, WIRE_VERSION_MINOR);
        err_value_int(err, "peer_major", hello.major);
        err_value_int(err, "duck_major", WIRE_VERSION_MAJOR);
        return err->code;
    }
    struct msg_hello_duck answer = {
        .major = WIRE_VERSION_MAJOR,
        .minor = WIRE_VERSION_MINOR,
        .features =
            WIRE_FEATURE_BATCH | WIRE_FEATURE_CACHE | WIRE_FEATURE_TAKEN | WIRE_FEATURE_BUFFER | WIRE_FEATURE_CANCEL | WIRE_FEATURE_EXPERTS,
        .software = "fp9-duck " FP9_VERSION,
        .cores = link->facts.cores,
        .capacity_bytes = wbuf_capacity(link->wbuf),
        .used_bytes = wbuf_used(link->wbuf),
    };
    snprintf(answer.name, sizeof answer.name, "%s", link->facts.name);
    snprintf(answer.boot_id, sizeof answer.boot_id, "%s", wbuf_boot_id(link->wbuf));
    snprintf(answer.isa, sizeof answer.isa, "%s", kernels_tier_name());
    if (link->facts.stage)
        answer.features |= WIRE_FEATURE_STAGE;
    if (link->channel)
        answer.features |= WIRE_FEATURE_CHANNEL;
    link->greeted = true;
    link->counts = hello.features & WIRE_FEATURE_COUNTS;
    link->one_shots = hello.features & WIRE_FEATURE_ONE_SHOT;
    if (!(hello.features & WIRE_FEATURE_CHANNEL))
        link->channel = NULL;
    link->tells_taken = hello.features & WIRE_FEATURE_TAKEN;
    link->heartbeat_s = hello.heartbeat_s;
    snprintf(link->peer, sizeof link->peer, "%s of %s%s%s", hello.software, hello.host, link->facts.from ? " at " : "",
             link->facts.from ? link->facts.from : "");
    log_info("link", "%s, link version %u.%u", link->peer, hello.major, hello.minor);
    link->buffer = hello.features & WIRE_FEATURE_BUFFER;
    int sent = link_sent(msg_hello_duck_encode(link->out, frame->request, &answer), err);
    return sent < 0 || !link->buffer ? sent : link_buffer_say(link, err);
}

static int on_ping(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_ping ping;
    int r = msg_ping_decode(frame, &ping, err);
    if (r < 0)
        return r;
    ping.progress = exec_progress(link->exec);
    return link_sent(msg_ping_encode(link->out, WIRE_PONG, frame->request, &ping), err);
}

static int on_slots_get(struct link *link, const struct frame *frame, struct err *err)
{
    int r = msg_empty_decode(frame, err);
    if (r < 0)
        return r;
    _cleanup_(freep) struct msg_slot *slots = calloc(WBUF_SLOTS_MAX, sizeof *slots);
    if (!slots)
        return link_sent(-ENOMEM, err);
    size_t count = 0;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++)
        if (wbuf_sound(link->wbuf, i))
            slots[count++] = wbuf_describe(link->wbuf, i);
    link->listed = true;
    link->room_told = wbuf_changes(link->wbuf) - 1;
    return link_sent(msg_slots_encode(link->out, frame->request, slots, count), err);
}

/* ---- drop --------------------------------------------------------------------------------------- */

static int on_drop(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_drop drop;
    int r = msg_drop_decode(frame, &drop, err);
    if (r < 0)
        return r;
    if (link->drop_count == DROPS_WAITING_MAX) {
        struct err why;
        err_set(&why, -EBUSY, ERR_BUSY, "%d drops wait for a running step", DROPS_WAITING_MAX);
        return link_fail(link, frame->request, &why, err);
    }
    uint64_t requests[FILLS_MAX];
    size_t request_count;
    fills_drop(link->fills, drop.all ? NULL : drop.model_key, requests, &request_count);
    for (size_t i = 0; i < request_count; i++) {
        struct err why;
        err_set(&why, -ECANCELED, ERR_CANCELLED, "prepare: the model was dropped");
        r = link_fail(link, requests[i], &why, err);
        if (r < 0)
            return r;
    }
    uint32_t doomed = wbuf_doomed(link->wbuf);
    uint64_t freed = 0;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        if (!wbuf_taken(link->wbuf, i))
            continue;
        struct msg_slot slot = wbuf_describe(link->wbuf, i);
        if (drop.all || memcmp(slot.model_key, drop.model_key, DIGEST_SIZE) == 0)
            freed += wbuf_drop(link->wbuf, i);
    }
    r = link_tell_room(link, err); /* before the answer, with which a load may begin */
    if (r < 0)
        return r;
    if (wbuf_doomed(link->wbuf) == doomed && !wbuf_stale(link->wbuf))
        return link_sent(msg_dropped_encode(link->out, frame->request, freed), err);
    link->drops[link->drop_count].request = frame->request;
    link->drops[link->drop_count++].freed = freed;
    return 0;
}

int link_answer_drops(struct link *link, struct err *err)
{
    int r = link_tell_room(link, err);
    if (wbuf_doomed(link->wbuf) || wbuf_stale(link->wbuf))
        return r;
    for (size_t i = 0; i < link->drop_count && r == 0; i++)
        r = link_sent(msg_dropped_encode(link->out, link->drops[i].request, link->drops[i].freed), err);
    link->drop_count = 0;
    return r;
}

bool link_has_chores(const struct link *link)
{
    return wbuf_stale(link->wbuf) > 0;
}

int link_chore(struct link *link, struct err *err)
{
    wbuf_reclaim(link->wbuf);
    return link_has_chores(link) ? 0 : link_answer_drops(link, err);
}

/* ---- what is done to finished slots ------------------------------------------------------------- */

static int no_slot(uint32_t layer, const uint8_t key[DIGEST_SIZE], const char *but, struct err *why)
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(key, hex);
    err_set(why, -ESTALE, ERR_CACHE_STALE, "layer %u of model %.12s has no finished slot here%s", layer, hex, but);
    err_value_int(why, "layer", layer);
    return -ESTALE;
}

static int rekey(struct link *link, const struct msg_rekey *words, uint32_t *ret_slot, struct err *why)
{
    uint32_t from = wbuf_find(link->wbuf, words->from, words->layer), to = wbuf_find(link->wbuf, words->to, words->layer);
    if (to != WBUF_NONE && words->replace && from != WBUF_NONE && from != to) {
        wbuf_drop(link->wbuf, to);
        to = WBUF_NONE;
    }
    if (to != WBUF_NONE) { /* another load of the same weights was first */
        if (memcmp(wbuf_describe(link->wbuf, to).sources, words->sources, DIGEST_SIZE) != 0)
            return no_slot(words->layer, words->to, " from these sources", why);
        if (from != WBUF_NONE && from != to)
            wbuf_drop(link->wbuf, from);
        *ret_slot = to;
        return 0;
    }
    if (from == WBUF_NONE)
        return no_slot(words->layer, words->from, "", why);
    if (memcmp(wbuf_describe(link->wbuf, from).sources, words->sources, DIGEST_SIZE) != 0)
        return no_slot(words->layer, words->from, " from these sources", why);
    wbuf_rekey(link->wbuf, from, words->to);
    *ret_slot = from;
    return 0;
}

static int on_rekey(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_rekey words;
    int r = msg_rekey_decode(frame, &words, err);
    if (r < 0)
        return r;
    struct err why;
    uint32_t slot;
    if (rekey(link, &words, &slot, &why) < 0)
        return link_fail(link, frame->request, &why, err);
    const struct msg_slot done = wbuf_describe(link->wbuf, slot);
    return link_sent(msg_slot_done_encode(link->out, frame->request, &done), err);
}

static int on_verify(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_verify words;
    int r = msg_verify_decode(frame, &words, err);
    if (r < 0)
        return r;
    uint32_t slot = wbuf_find(link->wbuf, words.model_key, words.layer);
    const struct msg_verified absent = {.verdict = MSG_VERDICT_ABSENT, .expert = WBUF_PART_UNKNOWN};
    if (slot == WBUF_NONE) {
        slot = wbuf_find_any(link->wbuf, words.model_key, words.layer);
        if (slot == WBUF_NONE || wbuf_sound(link->wbuf, slot)) /* one that is being filled is sound */
            return link_sent(msg_verified_encode(link->out, frame->request, &absent), err);
        const struct msg_verified bad = {.verdict = MSG_VERDICT_BAD, .expert = WBUF_PART_UNKNOWN};
        log_error("cache", "layer %u: somebody has written over its slot's description: the slot is given up", words.layer);
        wbuf_drop(link->wbuf, slot);
        r = link_sent(msg_verified_encode(link->out, frame->request, &bad), err);
        return r < 0 ? r : link_tell_room(link, err);
    }
    const struct wbuf_sums sums = wbuf_sums(link->wbuf, slot);
    struct err why;
    r = verify_post(link->verify, frame->request, slot, &words, &sums, &why);
    if (r < 0)
        return link_fail(link, frame->request, &why, err);
    wbuf_pin(link->wbuf, slot);
    return 0;
}

int link_verify_fd(const struct link *link)
{
    return verify_event_fd(link->verify);
}

int link_verify_event(struct link *link, struct err *err)
{
    struct verify_result result;
    int r = 0;
    while (r == 0 && verify_take(link->verify, &result)) {
        if (wbuf_is_doomed(link->wbuf, result.slot)) {
            result.found = (struct msg_verified){.verdict = MSG_VERDICT_ABSENT, .expert = WBUF_PART_UNKNOWN};
        } else if (result.found.verdict == MSG_VERDICT_BAD) {
            log_error("cache", "layer %u: its %" PRIu64 " bytes are not those that were finished: the slot is given up", result.words.layer,
                      result.found.bytes);
            wbuf_drop(link->wbuf, result.slot);
        }
        wbuf_unpin(link->wbuf, result.slot);
        r = link_sent(msg_verified_encode(link->out, result.request, &result.found), err);
    }
    return r == 0 ? link_answer_drops(link, err) : r;
}

/* ---- dispatch ----------------------------------------------------------------------------------- */

static int dispatch(struct link *link, const struct frame *frame, struct err *err)
{
    if (!link->greeted && frame->type != WIRE_HELLO)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "%s frame before HELLO", frame_type_name(frame->type));
    switch (frame->type) {
    case WIRE_HELLO: return on_hello(link, frame, err);
    case WIRE_PING: return on_ping(link, frame, err);
    case WIRE_SLOTS_GET: return on_slots_get(link, frame, err);
    case WIRE_STAMP: return link_buffer_stamp(link, frame, err);
    case WIRE_REVOKE: return link_buffer_revoke(link, frame, err);
    case WIRE_PREPARE_BEGIN: return link_prepare_begin(link, frame, err);
    case WIRE_PREPARE_DATA: return link_prepare_data(link, frame, err);
    case WIRE_PREPARE_STAGED: return link_prepare_staged(link, frame, err);
    case WIRE_PREPARE_SOURCES: return link_prepare_sources(link, frame, err);
    case WIRE_REKEY: return on_rekey(link, frame, err);
    case WIRE_VERIFY: return on_verify(link, frame, err);
    case WIRE_PREPARE_END: return link_prepare_end(link, frame, err);
    case WIRE_PREPARE_ABORT: return link_prepare_abort(link, frame, err);
    case WIRE_DROP: return on_drop(link, frame, err);
    case WIRE_SESSION_OPEN: return link_step_session_open(link, frame, err);
    case WIRE_SESSION_CLOSE: return link_step_session_close(link, frame, err);
    case WIRE_STEP_CANCEL: return link_step_cancel(link, frame, err);
    case WIRE_STEP: return link_step_take(link, frame, err);
    case WIRE_FAIL: {
        struct err peer;
        int r = msg_fail_decode(frame, &peer, err);
        return r < 0 ? r : err_set(err, -EPROTO, ERR_BAD_REQUEST, "the head says: %.900s", peer.message);
    }
    case WIRE_HELLO_DUCK:
    case WIRE_PONG:
    case WIRE_SLOTS:
    case WIRE_PREPARE_TAKEN:
    case WIRE_STAGED_TAKEN:
    case WIRE_SLOT_DONE:
    case WIRE_DROPPED:
    case WIRE_VERIFIED:
    case WIRE_REVOKED:
    case WIRE_ROOM:
    case WIRE_SESSION_OPENED:
    case WIRE_SESSION_CLOSED:
    case WIRE_STEP_DONE: break;
    }
    return err_set(err, -EPROTO, ERR_BAD_REQUEST, "%s frame: a duck does not take it", frame_type_name(frame->type));
}

int link_frame(struct link *link, const struct frame *frame, struct err *err)
{
    int r = dispatch(link, frame, err);
    if (r == 0)
        r = link_tell_room(link, err);
    return r < 0 ? refuse(link, frame->request, err) : 0;
}

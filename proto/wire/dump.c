#include "proto/wire/dump.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "proto/wire/msg_buffer.h"
#include "proto/wire/msg_cache.h"
#include "proto/wire/msg_hello.h"
#include "proto/wire/msg_prepare.h"
#include "proto/wire/msg_staged.h"
#include "proto/wire/msg_step.h"

/* First 8 hex digits: enough to tell keys apart by eye. */
static const char *short_key(const uint8_t key[DIGEST_SIZE], char text[DIGEST_HEX_SIZE])
{
    digest_hex(key, text);
    text[8] = '\0';
    return text;
}

static int hello(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_hello m;
    int r = msg_hello_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "version %u.%u features 0x%" PRIx64 " heartbeat %u s software \"%s\" host \"%s\"", m.major, m.minor,
                 m.features, m.heartbeat_s, m.software, m.host);
    return r;
}

static int hello_duck(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_hello_duck m;
    int r = msg_hello_duck_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "version %u.%u software \"%s\" name \"%s\" boot_id %s isa %s cores %u used %" PRIu64 " of %" PRIu64, m.major,
                 m.minor, m.software, m.name, m.boot_id, m.isa, m.cores, m.used_bytes, m.capacity_bytes);
    return r;
}

static int fail(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct err peer;
    int r = msg_fail_decode(frame, &peer, err);
    if (r == 0)
        snprintf(text, size, "%s %d: %.200s {%.200s}", err_name_text(peer.name), peer.code, peer.message, peer.values);
    return r;
}

static int ping(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_ping m;
    int r = msg_ping_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "stamp %" PRIu64 " progress %" PRIu64, m.stamp, m.progress);
    return r;
}

static int slots(const struct frame *frame, char *text, size_t size, struct err *err)
{
    _cleanup_(freep) struct msg_slot *m = NULL;
    size_t count;
    int r = msg_slots_decode(frame, &m, &count, err);
    if (r == 0)
        snprintf(text, size, "%zu slots", count);
    return r;
}

static int prepare_begin(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_prepare_begin m;
    char key[DIGEST_HEX_SIZE];
    int r = msg_prepare_begin_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "model %s layer %u %s rank %u of %u multiple_of %u experts %u+%u of %u hidden %u neurons %u+%u%s",
                 short_key(m.model_key, key), m.layer, m.kind == MSG_SLOT_MOE ? "moe" : "dense", m.rank, m.tp, m.multiple_of,
                 m.expert_first, m.experts, m.experts_total, m.slice.hidden, m.slice.begin, m.slice.neurons, m.has_shared ? " shared" : "");
    return r;
}

static int prepare_data(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_prepare_data m;
    int r = msg_prepare_data_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "expert %d matrix %u rows %u+%u columns %u scales %u", (int)m.expert, m.matrix, m.first_row, m.rows, m.columns,
                 m.scale_count);
    return r;
}

static int taken(const struct frame *frame, char *text, size_t size, struct err *err)
{
    uint64_t bytes;
    int r = msg_prepare_taken_decode(frame, &bytes, err);
    if (r == 0)
        snprintf(text, size, "taken %" PRIu64 " bytes", bytes);
    return r;
}

/* The stage is not here to be looked at: any place in it will do. */
static int staged(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_prepare_staged m;
    int r = msg_prepare_staged_decode(frame, UINT64_MAX, &m, err);
    if (r == 0)
        snprintf(text, size, "expert %d matrix %u rows %u from %u columns %u at %" PRIu64 " stride %u ticket %" PRIu64, (int)m.rows.expert,
                 m.rows.matrix, m.rows.rows, m.rows.first_row, m.rows.columns, m.offset, m.stride, m.ticket);
    return r;
}

static int staged_taken(const struct frame *frame, char *text, size_t size, struct err *err)
{
    uint64_t ticket;
    int r = msg_staged_taken_decode(frame, &ticket, err);
    if (r == 0)
        snprintf(text, size, "ticket %" PRIu64, ticket);
    return r;
}

static int stamp(const struct frame *frame, char *text, size_t size, struct err *err)
{
    uint64_t value;
    int r = msg_stamp_decode(frame, &value, err);
    if (r == 0)
        snprintf(text, size, "stamp %" PRIu64, value);
    return r;
}

static int revoke_one(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_revoked m;
    int r = msg_revoke_decode(frame, &m, err);
    char hex[DIGEST_HEX_SIZE] = "every";
    if (r == 0 && !m.all)
        digest_hex(m.model_key, hex);
    if (r == 0)
        snprintf(text, size, "key %.12s buffer %s before %" PRIu64, hex, m.boot_id[0] ? m.boot_id : "every", m.stamp);
    return r;
}

static int revoked(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_revoked list[MSG_REVOKED_MAX];
    uint64_t value;
    size_t count;
    int r = msg_revoked_decode(frame, &value, list, &count, err);
    if (r == 0)
        snprintf(text, size, "stamp %" PRIu64 ", %zu keys", value, count);
    return r;
}

static int room(const struct frame *frame, char *text, size_t size, struct err *err)
{
    uint64_t *ranges, total = 0;
    size_t count;
    int r = msg_room_decode(frame, &ranges, &count, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < count; i++)
        total += ranges[i];
    free(ranges);
    snprintf(text, size, "%" PRIu64 " bytes in %zu ranges", total, count);
    return 0;
}

static int slot_done(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_slot m;
    char key[DIGEST_HEX_SIZE];
    int r = msg_slot_done_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "model %s layer %u rank %u of %u bytes %" PRIu64 " checksum %016" PRIx64, short_key(m.model_key, key), m.layer,
                 m.rank, m.tp, m.bytes, m.checksum);
    return r;
}

static int sources(const struct frame *frame, char *text, size_t size, struct err *err)
{
    uint8_t digest[DIGEST_SIZE];
    char hex[DIGEST_HEX_SIZE];
    int r = msg_prepare_sources_decode(frame, digest, err);
    if (r == 0)
        snprintf(text, size, "sources %s", short_key(digest, hex));
    return r;
}

static int rekey(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_rekey m;
    char from[DIGEST_HEX_SIZE], to[DIGEST_HEX_SIZE];
    int r = msg_rekey_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "layer %u model %s to %s", m.layer, short_key(m.from, from), short_key(m.to, to));
    return r;
}

static int verify(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_verify m;
    char key[DIGEST_HEX_SIZE];
    int r = msg_verify_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "model %s layer %u%s", short_key(m.model_key, key), m.layer,
                 m.expected_given ? " against the checkpoint" : "");
    return r;
}

static int verified(const struct frame *frame, char *text, size_t size, struct err *err)
{
    static const char *const verdicts[] = {"good", "bad", "differs", "absent"};
    struct msg_verified m;
    int r = msg_verified_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "%s bytes %" PRIu64 " checksum %016" PRIx64 " expert %d", verdicts[m.verdict], m.bytes, m.checksum,
                 (int)m.expert);
    return r;
}

static int drop(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_drop m;
    char key[DIGEST_HEX_SIZE];
    int r = msg_drop_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "%s", m.all ? "all" : short_key(m.model_key, key));
    return r;
}

static int dropped(const struct frame *frame, char *text, size_t size, struct err *err)
{
    uint64_t freed;
    int r = msg_dropped_decode(frame, &freed, err);
    if (r == 0)
        snprintf(text, size, "freed %" PRIu64, freed);
    return r;
}

static int session_open(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_session_open m;
    char key[DIGEST_HEX_SIZE];
    int r = msg_session_open_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "session %" PRIu64 " model %s max_tokens %u top_k_max %u partials %s%s", m.session,
                 short_key(m.model_key, key), m.max_tokens, m.top_k_max, m.partials == MSG_F32 ? "f32" : "bf16",
                 m.one_shot ? " one_shot" : "");
    return r;
}

static int session(const struct frame *frame, char *text, size_t size, struct err *err)
{
    uint64_t id;
    int r = msg_session_decode(frame, &id, err);
    if (r == 0)
        snprintf(text, size, "session %" PRIu64, id);
    return r;
}

static int step(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_step m;
    int r = msg_step_decode(frame, &m, err);
    if (r == 0)
        snprintf(text, size, "session %" PRIu64 " layer %u tokens %u top_k %u hidden %u%s%s", m.session, m.layer, m.tokens, m.top_k,
                 m.hidden, m.prefill ? " prefill" : "", m.batch ? " batch" : "");
    return r;
}

static int step_done(const struct frame *frame, char *text, size_t size, struct err *err)
{
    struct msg_step_done m;
    int r = msg_step_done_decode(frame, &m, err);
    if (r < 0)
        return r;
    int used = snprintf(text, size, "tokens %u hidden %u %s duck_time %" PRIu64 " ns params %" PRIu64 " weight_bytes %" PRIu64, m.tokens,
                        m.hidden, m.dtype == MSG_F32 ? "f32" : "bf16", m.duck_time_ns, m.params, m.weight_bytes);
    if (m.counted && used >= 0 && (size_t)used < size)
        used += snprintf(text + used, size - (size_t)used, " mode %u tiles %" PRIu64 " of %" PRIu64 " tokens", m.mode, m.tiles,
                         m.tile_tokens);
    if (m.one_shot && used >= 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used,
                 " one_shot spawn %" PRIu64 " map %" PRIu64 " team %" PRIu64 " run %" PRIu64 " exit %" PRIu64 " ns", m.parts.spawn_ns,
                 m.parts.map_ns, m.parts.team_ns, m.parts.run_ns, m.parts.exit_ns);
    return r;
}

static int empty(const struct frame *frame, char *text, size_t size, struct err *err)
{
    int r = msg_empty_decode(frame, err);
    if (r == 0)
        snprintf(text, size, "empty");
    return r;
}

static int describe(const struct frame *frame, char *text, size_t size, struct err *err)
{
    switch (frame->type) {
    case WIRE_HELLO: return hello(frame, text, size, err);
    case WIRE_HELLO_DUCK: return hello_duck(frame, text, size, err);
    case WIRE_FAIL: return fail(frame, text, size, err);
    case WIRE_PING:
    case WIRE_PONG: return ping(frame, text, size, err);
    case WIRE_SLOTS: return slots(frame, text, size, err);
    case WIRE_PREPARE_BEGIN: return prepare_begin(frame, text, size, err);
    case WIRE_PREPARE_DATA: return prepare_data(frame, text, size, err);
    case WIRE_SLOT_DONE: return slot_done(frame, text, size, err);
    case WIRE_DROP: return drop(frame, text, size, err);
    case WIRE_DROPPED: return dropped(frame, text, size, err);
    case WIRE_PREPARE_TAKEN: return taken(frame, text, size, err);
    case WIRE_PREPARE_STAGED: return staged(frame, text, size, err);
    case WIRE_STAGED_TAKEN: return staged_taken(frame, text, size, err);
    case WIRE_PREPARE_SOURCES: return sources(frame, text, size, err);
    case WIRE_STAMP: return stamp(frame, text, size, err);
    case WIRE_REVOKE: return revoke_one(frame, text, size, err);
    case WIRE_REVOKED: return revoked(frame, text, size, err);
    case WIRE_ROOM: return room(frame, text, size, err);
    case WIRE_REKEY: return rekey(frame, text, size, err);
    case WIRE_VERIFY: return verify(frame, text, size, err);
    case WIRE_VERIFIED: return verified(frame, text, size, err);
    case WIRE_SESSION_OPEN: return session_open(frame, text, size, err);
    case WIRE_SESSION_OPENED:
    case WIRE_SESSION_CLOSE:
    case WIRE_SESSION_CLOSED: return session(frame, text, size, err);
    case WIRE_STEP: return step(frame, text, size, err);
    case WIRE_STEP_DONE: return step_done(frame, text, size, err);
    case WIRE_SLOTS_GET:
    case WIRE_PREPARE_END:
    case WIRE_PREPARE_ABORT:
    case WIRE_STEP_CANCEL: return empty(frame, text, size, err);
    }
    return err_set(err, -EPROTO, ERR_BAD_REQUEST, "unknown type");
}

const char *wire_dump(const struct frame *frame, char *text, size_t size)
{
    struct err err = {0};
    char detail[WIRE_DUMP_MAX];
    bool good = describe(frame, detail, sizeof detail, &err) == 0;
    snprintf(text, size, "%s #%" PRIu64 " %u bytes: %s%s", frame_type_name(frame->type), frame->request, frame->length, good ? "" : "BAD ",
             good ? detail : err.message);
    return text;
}

#include "daemon/duck/session.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/duck/compute.h"
#include "proto/base/bytes.h"

#define ANSWER_FIELDS 64 /* at least what STEP_DONE holds beside the partial */

struct session *session_find(struct sessions *sessions, uint64_t id)
{
    for (size_t i = 0; i < SESSIONS_MAX; i++)
        if (sessions->sessions[i].used && sessions->sessions[i].open.session == id)
            return &sessions->sessions[i];
    return NULL;
}

/* False when the model has no finished slot here. */
static bool needs_of(const struct wbuf *wbuf, const struct msg_session_open *open, uint32_t members, uint32_t *ret_hidden,
                     struct session_needs *ret_needs)
{
    struct session_needs needs = {0};
    uint32_t hidden = 0;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        if (!wbuf_sound(wbuf, i))
            continue;
        struct msg_slot slot = wbuf_describe(wbuf, i);
        if (slot.state != MSG_SLOT_FINISHED || memcmp(slot.model_key, open->model_key, DIGEST_SIZE) != 0)
            continue;
        const struct geometry *geometry = wbuf_geometry(wbuf, i);
        struct kernels_layer layer = geometry_layer(geometry, NULL);
        size_t scratch = compute_scratch_bytes(&layer, open->max_tokens, open->top_k_max, members);
        if (scratch > needs.scratch_bytes)
            needs.scratch_bytes = scratch;
        if (geometry->layout.hidden > hidden)
            hidden = geometry->layout.hidden;
    }
    *ret_needs = needs;
    *ret_hidden = hidden;
    return hidden > 0;
}

int session_open(struct sessions *sessions, const struct wbuf *wbuf, const struct msg_session_open *open, uint32_t members,
                 struct session_needs *ret_needs, struct err *err)
{
    if (session_find(sessions, open->session))
        return err_set(err, -EEXIST, ERR_BAD_REQUEST, "session %" PRIu64 " is open already", open->session);
    struct session *session = NULL;
    for (size_t i = 0; i < SESSIONS_MAX && !session; i++)
        if (!sessions->sessions[i].used)
            session = &sessions->sessions[i];
    if (!session)
        return err_set(err, -EBUSY, ERR_BUSY, "session %" PRIu64 ": %d sessions are open, no more are allowed", open->session,
                       SESSIONS_MAX);
    uint32_t hidden;
    struct session_needs needs;
    char key[DIGEST_HEX_SIZE];
    digest_hex(open->model_key, key);
    if (!needs_of(wbuf, open, members, &hidden, &needs))
        return err_set(err, -ESTALE, ERR_CACHE_STALE, "session %" PRIu64 ": no finished slot of model %.12s is here", open->session, key);
    uint64_t answer = (uint64_t)open->max_tokens * hidden * (open->partials == MSG_F32 ? 4 : 2) + ANSWER_FIELDS;
    if (answer > WIRE_STEP_PAYLOAD_MAX)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE,
                       "session %" PRIu64 ": %u tokens of hidden size %u make an answer of %" PRIu64 " bytes, at most %u are allowed",
                       open->session, open->max_tokens, hidden, answer, WIRE_STEP_PAYLOAD_MAX);
    *session = (struct session){.used = true, .open = *open, .hidden = hidden};
    *ret_needs = needs;
    return 0;
}

void session_close(struct session *session)
{
    *session = (struct session){0};
}

static int check_ids(const struct geometry *geometry, const struct msg_step *step, struct err *err)
{
    struct bytes_reader r = bytes_reader_init(step->ids, (size_t)step->tokens * step->top_k * 4);
    for (uint32_t token = 0; token < step->tokens; token++) {
        for (uint32_t slot = 0; slot < step->top_k; slot++) {
            int32_t id = (int32_t)bytes_read_u32(&r);
            if (id >= -1 && (id < 0 || (uint32_t)id < geometry->experts_total))
                continue;
            err_set(err, -EINVAL, ERR_BAD_EXPERT, "token %u, slot %u: expert %d, allowed are -1 to %u", token, slot, id,
                    geometry->experts_total - 1);
            err_value_int(err, "token", token);
            err_value_int(err, "slot", slot);
            err_value_int(err, "expert", id);
            return -EINVAL;
        }
    }
    return 0;
}

int session_check_step(const struct session *session, const struct geometry *geometry, const struct msg_step *step, struct err *err)
{
    if (step->tokens > session->open.max_tokens)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "%u tokens, the session was opened for %u", step->tokens, session->open.max_tokens);
    /* session->hidden bounds the answer's size; a layer of another hidden size was prepared after the session was opened. */
    if (step->hidden != geometry->layout.hidden || step->hidden > session->hidden)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "hidden size %u, the layer has %u", step->hidden, geometry->layout.hidden);
    if (geometry->kind == MSG_SLOT_DENSE)
        return step->top_k == 0 ? 0 : err_set(err, -EINVAL, ERR_BAD_SHAPE, "top_k is %u for a dense layer, it must be 0", step->top_k);
    if (step->top_k == 0 || step->top_k > session->open.top_k_max)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "top_k is %u, the session was opened for 1 to %u", step->top_k,
                       session->open.top_k_max);
    return check_ids(geometry, step, err);
}

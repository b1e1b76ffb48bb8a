/* Sessions and steps of a link: opened, checked, handed to the kernel thread, answered. */
#include "daemon/duck/link_state.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/eventfd.h>

#include "proto/wire/channel.h"

int link_step_session_open(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_session_open open;
    int r = msg_session_open_decode(frame, &open, err);
    if (r < 0)
        return r;
    struct err why;
    struct session_needs needs;
    r = session_open(&link->sessions, link->wbuf, &open, exec_members(link->exec), &needs, &why);
    if (r < 0)
        return link_fail(link, frame->request, &why, err);
    struct session *session = session_find(&link->sessions, open.session);
    r = steps_reserve(&link->steps, open.max_tokens, session->hidden, open.top_k_max, &why);
    /* While a step runs its scratch cannot move; the first step of this session then makes it larger if it must. */
    for (int i = 0; i < EXEC_PLACES && r == 0; i++)
        if (!exec_busy(link->exec, (enum exec_place)i))
            r = exec_reserve(link->exec, (enum exec_place)i, needs.scratch_bytes, &why);
    if (r < 0) {
        session_close(session);
        return link_fail(link, frame->request, &why, err);
    }
    return link_sent(msg_session_encode(link->out, WIRE_SESSION_OPENED, frame->request, open.session), err);
}

static bool session_runs(const struct link *link, uint64_t id)
{
    for (int i = 0; i < EXEC_PLACES; i++)
        if (link->running[i].step && link->running[i].step->words.session == id)
            return true;
    return false;
}

/* A step that waited and that nobody waits for. */
static int give_back(struct link *link, struct step *step, struct err *err)
{
    struct err why;
    err_set(&why, -ECANCELED, ERR_CANCELLED, "layer %u: the step was cancelled before it began", step->words.layer);
    int r = link_fail(link, step->request, &why, err);
    steps_done(&link->steps, step);
    return r;
}

/* Every step of a session: those that wait at once, those that run within a tile. */
static int cancel_all(struct link *link, uint64_t session, struct err *err)
{
    int r = 0;
    struct step *step;
    while (r == 0 && (step = steps_withdraw(&link->steps, 0, session)))
        r = give_back(link, step, err);
    for (int i = 0; i < EXEC_PLACES; i++)
        if (link->running[i].step && link->running[i].step->words.session == session)
            exec_cancel(link->exec, (enum exec_place)i);
    return r;
}

int link_step_cancel(struct link *link, const struct frame *frame, struct err *err)
{
    int r = msg_empty_decode(frame, err);
    if (r < 0)
        return r;
    struct step *step = frame->request ? steps_withdraw(&link->steps, frame->request, 0) : NULL;
    if (step)
        return give_back(link, step, err);
    for (int i = 0; i < EXEC_PLACES; i++)
        if (link->running[i].step && link->running[i].step->request == frame->request)
            exec_cancel(link->exec, (enum exec_place)i);
    return 0;
}

int link_step_session_close(struct link *link, const struct frame *frame, struct err *err)
{
    uint64_t id;
    int r = msg_session_decode(frame, &id, err);
    if (r < 0)
        return r;
    struct session *session = session_find(&link->sessions, id);
    if (!session || session->closing) {
        struct err why;
        err_set(&why, -ENOENT, ERR_NO_SUCH, "session %" PRIu64 " is not open", id);
        return link_fail(link, frame->request, &why, err);
    }
    r = cancel_all(link, id, err);
    if (r < 0)
        return r;
    if (session_runs(link, id)) {
        session->closing = true;
        session->close_request = frame->request;
        return 0;
    }
    session_close(session);
    return link_sent(msg_session_encode(link->out, WIRE_SESSION_CLOSED, frame->request, id), err);
}

/* Checks a step against what is true now and hands it to the kernel thread. */
static int start(struct link *link, struct step *step, struct err *why)
{
    const struct session *session = session_find(&link->sessions, step->words.session);
    if (!session || session->closing)
        return err_set(why, -ENOENT, ERR_NO_SUCH, "session %" PRIu64 " is not open", step->words.session);
    uint32_t slot = wbuf_find(link->wbuf, session->open.model_key, step->words.layer);
    if (slot == WBUF_NONE) {
        char key[DIGEST_HEX_SIZE];
        digest_hex(session->open.model_key, key);
        err_set(why, -ESTALE, ERR_CACHE_STALE, "layer %u of model %.12s has no finished slot here", step->words.layer, key);
        err_value_int(why, "layer", step->words.layer);
        return why->code;
    }
    const struct geometry *geometry = wbuf_geometry(link->wbuf, slot);
    int r = session_check_step(session, geometry, &step->words, why);
    if (r < 0)
        return err_prefix(why, "layer %u", step->words.layer);
    int32_t *ids = (int32_t *)(void *)step->ids;
    geometry_own_ids(geometry, ids, (size_t)step->words.tokens * step->words.top_k);
    struct exec_job job = {
        .compute =
            {
                .layer = geometry_layer(geometry, wbuf_data(link->wbuf, slot)),
                .kind = geometry->kind,
                .tokens = step->words.tokens,
                .top_k = step->words.top_k,
                .hidden = step->words.hidden,
                .dtype = session->open.partials,
                .x = (const uint16_t *)(const void *)step->words.x,
                .ids = ids,
                .weights = (const float *)(const void *)step->words.weights,
                .partial = step->partial,
            },
        .one_shot = session->open.one_shot,
    };
    if (job.one_shot)
        job.slot =
            (struct judge_slot){.words = wbuf_words(link->wbuf, slot), .offset = wbuf_offset(link->wbuf, slot), .bytes = geometry->bytes};
    enum exec_place place = step->batch ? EXEC_BATCH : EXEC_INTERACTIVE;
    r = exec_reserve(link->exec, place,
                     compute_scratch_bytes(&job.compute.layer, job.compute.tokens, job.compute.top_k, exec_members(link->exec)), why);
    if (r < 0)
        return r;
    wbuf_pin(link->wbuf, slot);
    link->running[place] = (struct running){
        .step = step,
        .slot = slot,
        .dtype = session->open.partials,
    };
    exec_post(link->exec, place, &job);
    return 0;
}

/* Fills the kernel thread's empty places. */
static int start_next(struct link *link, struct err *err)
{
    for (int batch = 0; batch < 2; batch++) {
        struct step *step;
        while (!exec_busy(link->exec, batch ? EXEC_BATCH : EXEC_INTERACTIVE) && (step = steps_pop(&link->steps, batch))) {
            struct err why;
            int r = start(link, step, &why);
            if (r == 0)
                break;
            r = link_fail(link, step->request, &why, err);
            steps_done(&link->steps, step);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

int link_step_take(struct link *link, const struct frame *frame, struct err *err)
{
    struct msg_step step;
    int r = msg_step_decode(frame, &step, err);
    if (r < 0)
        return r;
    struct err why;
    const struct session *session = session_find(&link->sessions, step.session);
    if (!session)
        r = err_set(&why, -ENOENT, ERR_NO_SUCH, "session %" PRIu64 " is not open", step.session);
    else if (step.tokens > session->open.max_tokens)
        r = err_set(&why, -EINVAL, ERR_BAD_SHAPE, "layer %u: %u tokens, the session was opened for %u", step.layer, step.tokens,
                    session->open.max_tokens);
    else
        r = steps_push(&link->steps, frame->request, &step, &why);
    if (r < 0)
        return link_fail(link, frame->request, &why, err);
    return start_next(link, err);
}

/* 1: it is there; 0: it must go over the socket. */
static int answer_in_channel(struct link *link, const struct step *step, const struct msg_step_done *done, size_t bytes, struct err *err)
{
    uint8_t head[MSG_STEP_DONE_HEAD_MAX];
    size_t head_bytes;
    enum channel_mode mode;
    int r = msg_step_done_head(head, step->request, done, &head_bytes);
    if (r < 0)
        return link_sent(r, err);
    r = channel_send(link->channel, head, head_bytes, step->partial, bytes, &mode, err);
    if (r > 0 && mode != CHANNEL_AWAKE)
        (void)eventfd_write(link->bell_fd, 1);
    return r;
}

static int answer_step(struct link *link, const struct running *run, const struct exec_result *result, struct err *err)
{
    const struct step *step = run->step;
    if (result->code < 0) {
        struct err why = result->err;
        err_prefix(&why, "layer %u", step->words.layer);
        return link_fail(link, step->request, &why, err);
    }
    struct msg_step_done done = {
        .duck_time_ns = result->duck_time_ns,
        .params = result->cost.params,
        .weight_bytes = result->cost.weight_bytes,
        .dtype = run->dtype,
        .tokens = step->words.tokens,
        .hidden = step->words.hidden,
        .counted = link->counts,
        .mode = (uint8_t)result->cost.mode,
        .tiles = result->cost.tiles,
        .tile_tokens = result->cost.tile_tokens,
        .one_shot = link->one_shots && result->one_shot,
        .parts = result->parts,
    };
    size_t bytes = (size_t)done.tokens * done.hidden * (done.dtype == MSG_F32 ? 4 : 2);
    int r = link->channel ? answer_in_channel(link, step, &done, bytes, err) : 0;
    if (r != 0)
        return r < 0 ? r : 0;
    uint8_t *partial;
    r = msg_step_done_encode(link->out, step->request, &done, &partial);
    if (r < 0)
        return link_sent(r, err);
    if (bytes)
        memcpy(partial, step->partial, bytes);
    return 0;
}

/* A step is through: its answer, and those that waited for it. */
static int finish(struct link *link, struct running *run, const struct exec_result *result, struct err *err)
{
    int r = answer_step(link, run, result, err);
    uint64_t id = run->step->words.session;
    wbuf_unpin(link->wbuf, run->slot);
    steps_done(&link->steps, run->step);
    *run = (struct running){0};
    if (r == 0)
        r = link_answer_drops(link, err);
    struct session *session = session_find(&link->sessions, id);
    if (r == 0 && session && session->closing && !session_runs(link, id)) {
        r = link_sent(msg_session_encode(link->out, WIRE_SESSION_CLOSED, session->close_request, id), err);
        session_close(session);
    }
    return r;
}

int link_exec_broken(struct link *link, const struct err *why, struct err *err)
{
    struct exec_result result = {.code = why->code, .err = *why};
    int r = 0;
    for (int i = 0; i < EXEC_PLACES && r == 0; i++)
        if (link->running[i].step)
            r = answer_step(link, &link->running[i], &result, err);
    return r;
}

int link_exec_event(struct link *link, struct err *err)
{
    struct exec_result result;
    enum exec_place place;
    int r = 0;
    while (r == 0 && exec_take(link->exec, &place, &result)) {
        if (exec_broken(link->exec)) {
            r = answer_step(link, &link->running[place], &result, err);
            link->running[place].step = NULL; /* answered; its memory stays as it is, see exec.h */
            return r;
        }
        r = finish(link, &link->running[place], &result, err);
    }
    return r == 0 ? start_next(link, err) : r;
}

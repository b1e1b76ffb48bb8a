/* PURE. Steps: one layer call of one session, sent in chunks of tokens to the ranks that each concerns, gathered, added up. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "kernels/kernels.h"
#include "proto/base/size.h"

/* Set only in the mutated build that proves that the tests of late answers would notice. */
#ifdef CORE_STEP_TAKES_LATE
#define DROP_LATE false
#else
#define DROP_LATE true
#endif

int core_step_check(struct core *core, uint64_t id, uint32_t layer, uint32_t tokens, struct err *err)
{
    const struct core_session *session = core_session_find(core, id);
    if (!session)
        return err_set(err, -ENOENT, ERR_NO_SUCH, "session %" PRIu64 ": there is none of that number", id);
    const struct core_model *model = &core->models[session->model];
    if (session->err.code) {
        err_copy(err, &session->err);
        return session->err.code;
    }
    if (core_session_lane(session) == CORE_NONE) {
        err_set(err, -EBUSY, ERR_BUSY, "session %" PRIu64 ": %u of its steps %s in flight, which is what it was opened for (lanes)",
                session->id, session->lanes, session->lanes == 1 ? "is" : "are");
        err_value_int(err, "lanes", session->lanes);
        return -EBUSY;
    }
    if (layer >= model->arch->layers)
        return core_model_no_layer(model, layer, err);
    if (tokens > session->max_tokens) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "tokens %u: session %" PRIu64 " was opened for at most %u", tokens, session->id,
                session->max_tokens);
        err_value_int(err, "tokens", tokens);
        err_value_int(err, "max_tokens", session->max_tokens);
        return -EINVAL;
    }
    return 0;
}

static int check_routing(const struct core *core, const struct core_session *session, uint32_t layer, uint32_t top_k, struct err *err)
{
    bool moe = core->models[session->model].arch->layer_is_moe[layer];
    if (moe && !top_k) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "layer %u is a MoE layer: topk_ids and topk_weights are missing, %s%u expert%s a token", layer,
                session->top_k_max == 1 ? "" : "1 to ", session->top_k_max, size_plural(session->top_k_max));
        err_value_int(err, "top_k", 0);
        return -EINVAL;
    }
    if (moe && top_k > session->top_k_max) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "layer %u is a MoE layer: topk_ids must hold %s%u expert%s a token, not %u", layer,
                session->top_k_max == 1 ? "" : "1 to ", session->top_k_max, size_plural(session->top_k_max), top_k);
        err_value_int(err, "top_k", top_k);
        return -EINVAL;
    }
    if (!moe && top_k)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "layer %u is dense: it takes no topk_ids and topk_weights", layer);
    return 0;
}

/* Every rank that is asked can take the step, or will when its duck has opened the session again. */
static int check_ranks(const struct core *core, const struct core_session *session, const bool *asked, const char *phase, uint32_t layer,
                       struct err *err)
{
    const struct core_model *model = &core->models[session->model];
    for (uint32_t rank = 0; rank < session->tp; rank++) {
        uint32_t duck = session->duck_of_rank[rank];
        if (!asked[rank])
            continue;
        if (core->ducks[duck].state != CORE_DUCK_UP) {
            core_err_duck_lost(core, duck, phase, layer, err);
            return -EHOSTDOWN;
        }
        if (session->ranks[rank] == CORE_RANK_CLOSED) {
            err_set(err, -EAGAIN, ERR_NOT_READY, "model %s is %s: duck %s is being prepared again", model->name,
                    core_model_state_text(model->state), core->ducks[duck].name);
            err_value_str(err, "duck", core->ducks[duck].name);
            return -EAGAIN;
        }
    }
    return 0;
}

/* The ducks that still work on it do so for nothing. */
static void stop_ranks(struct core *core, const struct core_session *session, const struct core_step *step)
{
    for (uint32_t rank = 0; rank < session->tp; rank++) {
        uint32_t duck = session->duck_of_rank[rank];
        const struct core_duck *worker = &core->ducks[duck];
        if (!step->answered[rank] && worker->state == CORE_DUCK_UP && worker->hello.features & WIRE_FEATURE_CANCEL)
            core_push(core, CORE_ACT_STEP_CANCEL, duck, step->id);
    }
}

void core_step_end(struct core *core, struct core_session *session, struct core_step *step, const struct err *err)
{
    if (!step->running)
        return;
    step->running = false;
    err_copy(&step->err, err);
    stop_ranks(core, session, step);
    core_batch_trouble(core, session, err);
    core_push_step(core, CORE_ACT_STEP_FAILED, session, step);
}

void core_step_cancel(struct core *core, uint64_t id, uint32_t lane, const char *why)
{
    struct core_session *session = core_session_find(core, id);
    struct err err = {0};
    err_set(&err, -ECANCELED, ERR_CANCELLED, "session %" PRIu64 ": %s", id, why);
    if (session && lane < session->lanes)
        core_step_end(core, session, &session->steps[lane], &err);
}

/* The step's next chunk, and whom it concerns; an error when one of those cannot take it. */
static int begin_chunk(const struct core *core, const struct core_session *session, struct core_step *step, struct err *err)
{
    bool moe = core->models[session->model].arch->layer_is_moe[step->layer];
    const int32_t *ids = step->ids ? step->ids + (size_t)step->chunk_first * step->top_k : NULL;
    uint32_t left = step->tokens - step->chunk_first;
    step->chunk_tokens = left < session->chunk_max ? left : session->chunk_max;
    step->asked_count = plan_owners_asked(&session->owners, moe, ids, (size_t)step->chunk_tokens * step->top_k, step->asked);
    return check_ranks(core, session, step->asked, step->prefill ? "prefill" : "decode", step->layer, err);
}

static void chunk_whole(struct core *core, uint64_t now, struct core_session *session, struct core_step *step);

static void send_chunk(struct core *core, uint64_t now, struct core_session *session, struct core_step *step)
{
    step->id = core->next_id++;
    step->waiting = step->asked_count;
    for (uint32_t rank = 0; rank < session->tp; rank++)
        step->answered[rank] = !step->asked[rank];
    step->chunk_started_ns = now;
    step->chunk_duck_max_ns = 0;
    step->chunk_parts = (struct msg_one_shot){0};
    step->answered_ns = 0;
    core_push_step(core, CORE_ACT_STEP_CHUNK, session, step);
    if (!step->waiting)
        chunk_whole(core, now, session, step);
}

int core_step_submit(struct core *core, uint64_t now, uint64_t id, uint32_t layer, uint32_t tokens, uint32_t top_k, bool prefill,
                     struct err *err)
{
    return core_step_submit_routed(core, now, id, layer, tokens, top_k, NULL, prefill, err);
}

int core_step_submit_routed(struct core *core, uint64_t now, uint64_t id, uint32_t layer, uint32_t tokens, uint32_t top_k,
                            const int32_t *ids, bool prefill, struct err *err)
{
    struct core_session *session = core_session_find(core, id);
    int r = core_step_check(core, id, layer, tokens, err);
    if (r == 0)
        r = check_routing(core, session, layer, top_k, err);
    struct core_step *step = r == 0 ? &session->steps[core_session_lane(session)] : NULL;
    struct core_step next = {.running = true,
                             .layer = layer,
                             .tokens = tokens,
                             .top_k = top_k,
                             .prefill = prefill,
                             .ids = top_k ? ids : NULL,
                             .asked = step ? step->asked : NULL,
                             .answered = step ? step->answered : NULL,
                             .straggler = CORE_NONE};
    if (r == 0)
        r = begin_chunk(core, session, &next, err);
    if (r < 0 && session && err)
        core_batch_trouble(core, session, err);
    if (r < 0)
        return r;
    *step = next;
    if (tokens)
        send_chunk(core, now, session, step);
    else {
        step->running = false;
        core_push_step(core, CORE_ACT_STEP_DONE, session, step);
    }
    return 0;
}

/* The step that a duck answers, and its rank there. NULL when that is not wanted any more: it is of an older step, or the second. */
static struct core_step *answered_step(struct core_session *session, uint32_t duck, uint64_t id, uint32_t *ret_rank)
{
    for (uint32_t lane = 0; session && lane < session->lanes; lane++) {
        struct core_step *step = &session->steps[lane];
        if (!step->running || (DROP_LATE && step->id != id))
            continue;
        uint32_t rank = core_session_rank(session, duck);
        if (rank == CORE_NONE || step->answered[rank])
            return NULL;
        *ret_rank = rank;
        return step;
    }
    return NULL;
}

static uint64_t whole(const struct msg_one_shot *parts)
{
    return parts->spawn_ns + parts->map_ns + parts->team_ns + parts->run_ns + parts->exit_ns;
}

static void add_parts(struct msg_one_shot *sum, const struct msg_one_shot *more)
{
    sum->spawn_ns += more->spawn_ns;
    sum->map_ns += more->map_ns;
    sum->team_ns += more->team_ns;
    sum->run_ns += more->run_ns;
    sum->exit_ns += more->exit_ns;
}

void core_step_out(struct core *core, uint64_t now, uint64_t id, uint32_t lane)
{
    struct core_session *session = core_session_find(core, id);
    if (session && lane < session->lanes && session->steps[lane].running)
        session->steps[lane].chunk_started_ns = now;
}

void core_step_result(struct core *core, uint64_t now, uint32_t duck, uint64_t id, uint64_t step_id, const struct msg_step_done *done)
{
    struct core_session *session = core_session_find(core, id);
    uint32_t rank;
    struct core_step *step = answered_step(session, duck, step_id, &rank);
    if (!step)
        return;
    step->answered[rank] = true;
    step->params += done->params;
    step->weight_bytes += done->weight_bytes;
    step->tiles += done->tiles;
    step->tile_tokens += done->tile_tokens;
    /* A prefill's last chunk may be so short that it runs as a decode. */
    if (done->counted && done->mode > step->mode)
        step->mode = done->mode;
    step->counted |= done->counted;
    if (done->duck_time_ns > step->chunk_duck_max_ns)
        step->chunk_duck_max_ns = done->duck_time_ns;
    step->one_shot |= done->one_shot;
    if (done->one_shot && whole(&done->parts) > whole(&step->chunk_parts))
        step->chunk_parts = done->parts;
    uint64_t before = step->answered_ns;
    step->answered_ns = now;
    if (--step->waiting)
        return;
    if (before && (step->straggler == CORE_NONE || now - before > step->straggler_ns)) {
        step->straggler = duck;
        step->straggler_ns = now - before;
    }
    chunk_whole(core, now, session, step);
}

/* All that were asked have answered. */
static void chunk_whole(struct core *core, uint64_t now, struct core_session *session, struct core_step *step)
{
    step->judge_wait_ns += now - step->chunk_started_ns;
    step->duck_max_ns += step->chunk_duck_max_ns;
    add_parts(&step->parts, &step->chunk_parts);
    step->chunks++;
    core_push_step(core, CORE_ACT_STEP_SUM, session, step);
}

void core_step_failed(struct core *core, uint64_t now, uint32_t duck, uint64_t id, uint64_t step_id, const struct err *err)
{
    struct core_session *session = core_session_find(core, id);
    uint32_t rank;
    struct core_step *step = answered_step(session, duck, step_id, &rank);
    if (!step)
        return;
    if (err->name == ERR_CACHE_STALE)
        core_slot_gone(core, now, duck, session->key, step->layer, step->prefill ? "prefill" : "decode");
    step->answered[rank] = true;
    struct err named = *err;
    err_prefix(&named, "duck %s", core->ducks[duck].name);
    err_value_str(&named, "duck", core->ducks[duck].name);
    core_step_end(core, session, step, &named);
}

void core_step_summed(struct core *core, uint64_t now, uint64_t id, uint32_t lane)
{
    struct core_session *session = core_session_find(core, id);
    struct core_step *step = session && lane < session->lanes ? &session->steps[lane] : NULL;
    if (!step || !step->running)
        return;
    step->chunk_first += step->chunk_tokens;
    core_batch_progress(core, now, session, step->chunk_tokens);
    if (step->chunk_first < step->tokens) {
        struct err err = {0};
        if (begin_chunk(core, session, step, &err) < 0)
            core_step_end(core, session, step, &err);
        else
            send_chunk(core, now, session, step);
        return;
    }
    step->running = false;
    session->steps_done++;
    core_push_step(core, CORE_ACT_STEP_DONE, session, step);
}

/* PURE. Sessions: opened on every rank of a model, reopened when a duck comes back, closed with their client or model. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "kernels/kernels.h"

struct core_session *core_session_find(struct core *core, uint64_t id)
{
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++)
        if (core->sessions[i].used && core->sessions[i].id == id)
            return &core->sessions[i];
    return NULL;
}

uint32_t core_session_rank(const struct core_session *session, uint32_t duck)
{
    for (uint32_t rank = 0; rank < session->tp; rank++)
        if (session->duck_of_rank[rank] == duck)
            return rank;
    return CORE_NONE;
}

void core_session_free(struct core_session *session)
{
    free(session->ranks);
    free(session->duck_of_rank);
    if (session->steps)
        free(session->steps[0].answered); /* of all lanes */
    free(session->steps);
    *session = (struct core_session){0};
}

static void open_rank(struct core *core, struct core_session *session, uint32_t rank)
{
    session->ranks[rank] = CORE_RANK_OPENING;
    core_push(core, CORE_ACT_SESSION_OPEN, session->duck_of_rank[rank], session->id);
}

uint32_t core_session_lane(const struct core_session *session)
{
    for (uint32_t lane = 0; lane < session->lanes; lane++)
        if (!session->steps[lane].running)
            return lane;
    return CORE_NONE;
}

uint32_t core_session_in_flight(const struct core_session *session)
{
    uint32_t count = 0;
    for (uint32_t lane = 0; lane < session->lanes; lane++)
        count += session->steps[lane].running;
    return count;
}

static uint32_t chunk_of(uint32_t max_tokens, uint32_t lanes, uint32_t tp, uint32_t hidden, enum msg_dtype partials)
{
    uint64_t chunk = CORE_CHUNK_BYTES / ((uint64_t)lanes * tp * hidden * (partials == MSG_F32 ? sizeof(float) : sizeof(uint16_t)));
    if (chunk > CORE_CHUNK_TOKENS_MAX)
        chunk = CORE_CHUNK_TOKENS_MAX;
    if (chunk > max_tokens)
        chunk = max_tokens;
    return chunk ? (uint32_t)chunk : 1;
}

static int not_ready(const struct core_model *model, struct err *err)
{
    if (model->error.code) {
        err_copy(err, &model->error);
        return err ? err->code : -EAGAIN;
    }
    err_set(err, -EAGAIN, ERR_NOT_READY, "model %s is %s", model->name, core_model_state_text(model->state));
    err_value_str(err, "model", model->name);
    err_value_str(err, "state", core_model_state_text(model->state));
    return -EAGAIN;
}

int core_session_open(struct core *core, uint64_t now, const struct core_session_request *request, uint64_t *ret_session, struct err *err)
{
    (void)now;
    const struct core_model *model = core_model_find(core, request->model);
    if (!model) {
        err_set(err, -ENOENT, ERR_NO_SUCH, "model %s: no model of that name is loaded", request->model);
        err_value_str(err, "model", request->model);
        return -ENOENT;
    }
    if (model->state != CORE_MODEL_READY)
        return not_ready(model, err);
    if (!request->max_tokens || request->max_tokens > WIRE_STEP_TOKENS_MAX)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "max_tokens %u: must be 1 to %u", request->max_tokens, WIRE_STEP_TOKENS_MAX);
    uint32_t lanes = request->lanes ? request->lanes : CORE_LANES_DEFAULT;
    if (lanes > CORE_LANES_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "lanes %u: must be 1 to %d", lanes, CORE_LANES_MAX);
    int r = core_admit_session(core, request->client, model, err);
    if (r < 0)
        return r;
    struct core_session *session = core->sessions;
    while (session->used)
        session++;
    uint32_t tp = model->plan->tp;
    enum msg_dtype partials = request->partials_given ? request->partials : core->conf.partials;
    *session = (struct core_session){
        .used = true,
        .id = core->next_id++,
        .client = request->client,
        .model = (uint32_t)(model - core->models),
        .tp = tp,
        .owners = plan_owners_of(model->arch, model->plan),
        .max_tokens = request->max_tokens,
        .top_k_max = model->arch->top_k,
        .chunk_max = chunk_of(request->max_tokens, lanes, tp, model->arch->hidden, partials),
        .partials = partials,
        .output = request->output,
        .one_shot = request->one_shot || !core->conf.persistent_judge,
        .batch = request->batch,
        .lanes = lanes,
        .ranks = calloc(tp, sizeof *session->ranks),
        .duck_of_rank = calloc(tp, sizeof *session->duck_of_rank),
        .steps = calloc(lanes, sizeof *session->steps),
    };
    memcpy(session->key, model->key, DIGEST_SIZE);
    bool *answered = calloc((size_t)lanes * tp * 2, sizeof *answered); /* and asked */
    for (uint32_t lane = 0; session->steps && answered && lane < lanes; lane++) {
        session->steps[lane].answered = answered + (size_t)lane * tp;
        session->steps[lane].asked = answered + (size_t)(lanes + lane) * tp;
    }
    if (!session->ranks || !session->duck_of_rank || !session->steps || !answered) {
        if (!session->steps)
            free(answered);
        core_session_free(session);
        return err_no_memory(err, "session", tp * sizeof *session->ranks);
    }
    memcpy(session->duck_of_rank, model->duck_of_rank, tp * sizeof *session->duck_of_rank);
    for (uint32_t rank = 0; rank < tp; rank++)
        open_rank(core, session, rank);
    *ret_session = session->id;
    return 0;
}

void core_session_opened(struct core *core, uint64_t now, uint32_t duck, uint64_t id)
{
    (void)now;
    struct core_session *session = core_session_find(core, id);
    uint32_t rank = session ? core_session_rank(session, duck) : CORE_NONE;
    if (rank == CORE_NONE || session->ranks[rank] != CORE_RANK_OPENING)
        return;
    session->ranks[rank] = CORE_RANK_OPEN;
    for (uint32_t r = 0; r < session->tp; r++)
        if (session->ranks[r] != CORE_RANK_OPEN)
            return;
    if (!session->announced && !session->err.code) {
        session->announced = true;
        core_push(core, CORE_ACT_SESSION_READY, CORE_NONE, id);
    }
}

/* A session that is not announced yet comes to nothing. */
static void open_fail(struct core *core, struct core_session *session, const struct err *err)
{
    if (session->announced || session->err.code)
        return;
    err_copy(&session->err, err);
    core_push(core, CORE_ACT_SESSION_FAILED, CORE_NONE, session->id);
}

/* The session's client gets err, now or with its next step. */
static void session_fail(struct core *core, struct core_session *session, const struct err *err)
{
    for (uint32_t lane = 0; lane < session->lanes; lane++)
        core_step_end(core, session, &session->steps[lane], err);
    open_fail(core, session, err);
}

void core_session_failed(struct core *core, uint64_t now, uint32_t duck, uint64_t id, const struct err *err)
{
    struct core_session *session = core_session_find(core, id);
    uint32_t rank = session ? core_session_rank(session, duck) : CORE_NONE;
    if (rank == CORE_NONE)
        return;
    if (err->name == ERR_CACHE_STALE)
        core_slots_gone(core, now, duck, session->key, "session.open");
    session->ranks[rank] = CORE_RANK_CLOSED;
    struct err named = *err;
    err_prefix(&named, "duck %s", core->ducks[duck].name);
    err_value_str(&named, "duck", core->ducks[duck].name);
    for (uint32_t lane = 0; lane < session->lanes; lane++)
        if (session->steps[lane].asked[rank])
            core_step_end(core, session, &session->steps[lane], &named);
    open_fail(core, session, &named);
}

static void close_ranks(struct core *core, struct core_session *session)
{
    for (uint32_t rank = 0; rank < session->tp; rank++) {
        if (session->ranks[rank] != CORE_RANK_CLOSED && core->ducks[session->duck_of_rank[rank]].state == CORE_DUCK_UP)
            core_push(core, CORE_ACT_SESSION_CLOSE, session->duck_of_rank[rank], session->id);
        session->ranks[rank] = CORE_RANK_CLOSED;
    }
}

void core_session_close(struct core *core, uint64_t id)
{
    struct core_session *session = core_session_find(core, id);
    if (!session)
        return;
    core_batch_over(core, core->ticked_ns, session, NULL);
    close_ranks(core, session);
    core_push(core, CORE_ACT_SESSION_GONE, CORE_NONE, id);
    core_session_free(session);
}

void core_session_duck_lost(struct core *core, uint64_t now, uint32_t duck)
{
    (void)now;
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        struct core_session *session = &core->sessions[i];
        uint32_t rank = session->used ? core_session_rank(session, duck) : CORE_NONE;
        if (rank == CORE_NONE)
            continue;
        session->ranks[rank] = CORE_RANK_CLOSED;
        struct err err = {0};
        for (uint32_t lane = 0; lane < session->lanes; lane++) {
            struct core_step *step = &session->steps[lane];
            if (!step->asked[rank])
                continue;
            core_err_duck_lost(core, duck, step->prefill ? "prefill" : "decode", step->layer, &err);
            core_step_end(core, session, step, &err);
        }
        core_err_duck_lost(core, duck, "session.open", CORE_NONE, &err);
        open_fail(core, session, &err);
    }
}

void core_session_model_ready(struct core *core, uint32_t index)
{
    const struct core_model *model = &core->models[index];
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        struct core_session *session = &core->sessions[i];
        if (!session->used || session->model != index || memcmp(session->key, model->key, DIGEST_SIZE) != 0 || session->err.code)
            continue;
        for (uint32_t rank = 0; rank < session->tp; rank++) {
            bool moved = session->duck_of_rank[rank] != model->duck_of_rank[rank];
            session->duck_of_rank[rank] = model->duck_of_rank[rank];
            if (moved || session->ranks[rank] == CORE_RANK_CLOSED)
                open_rank(core, session, rank);
        }
    }
}

void core_session_end(struct core *core, uint64_t now, struct core_session *session, const struct err *err)
{
    core_batch_over(core, now, session, err);
    session_fail(core, session, err);
    close_ranks(core, session);
    err_copy(&session->err, err);
}

void core_session_break(struct core *core, uint64_t now, uint64_t id, const struct err *err)
{
    struct core_session *session = core_session_find(core, id);
    if (session)
        core_session_end(core, now, session, err);
}

void core_session_key_gone(struct core *core, uint32_t index, const struct err *err)
{
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        struct core_session *session = &core->sessions[i];
        if (!session->used || session->model != index || memcmp(session->key, core->models[index].key, DIGEST_SIZE) == 0)
            continue;
        core_session_end(core, core->ticked_ns, session, err);
    }
}

void core_session_model_gone(struct core *core, uint64_t now, uint32_t index, const struct err *err)
{
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        struct core_session *session = &core->sessions[i];
        if (session->used && session->model == index)
            core_session_end(core, now, session, err);
    }
}

/* session.* */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/head/ring.h"
#include "daemon/head/rpc.h"
#include "daemon/head/session.h"
#include "daemon/head/timing_json.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"
#include "proto/control/ring.h"

_Static_assert(RPC_LANES_MAX == CORE_LANES_MAX, "the limit has two names");

static enum msg_dtype dtype_param(const json_t *params, const char *key)
{
    return strcmp(rpc_param_string(params, key, "bf16"), "f32") == 0 ? MSG_F32 : MSG_BF16;
}

/* Its steps are a batch: a job from now on. */
static int begin_batch(const struct call *call, struct session *session, struct err *err)
{
    const char *kind = rpc_param_string(call->params, "job", NULL);
    long long layer = rpc_param_int(call->params, "job_layer", -1), tokens = rpc_param_int(call->params, "job_tokens", -1);
    if (!kind && layer < 0 && tokens < 0)
        return 0;
    if (!kind || layer < 0 || tokens < 0)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "job, job_layer and job_tokens go together");
    int r = core_batch_begin(call->head->core, clock_now_ns(), session->id, strcmp(kind, "prefill") == 0, (uint32_t)layer, (uint64_t)tokens,
                             &session->job, err);
    if (r < 0)
        return r;
    control_client_asks(call->head->control, call->client, session->job);
    waiters_add(call->head->waiters, call->client, call->id, WAITERS_WATCH, session->job);
    return 0;
}

int rpc_session_open(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)ret_result;
    struct core *core = call->head->core;
    struct core_session_request request = {
        .client = call->client,
        .model = rpc_param_string(call->params, "model", ""),
        .max_tokens = (uint32_t)rpc_param_int(call->params, "max_tokens", 0),
        .partials_given = json_object_get(call->params, "partials") != NULL,
        .partials = dtype_param(call->params, "partials"),
        .output = dtype_param(call->params, "output_dtype"),
        .one_shot = rpc_param_bool(call->params, "one_shot", false),
        .batch = strcmp(rpc_param_string(call->params, "priority", "interactive"), "batch") == 0,
        .lanes = (uint32_t)rpc_param_int(call->params, "lanes", 0),
    };
    uint64_t id;
    int r = core_session_open(core, clock_now_ns(), &request, &id, err);
    if (r < 0)
        return r;
    r = session_new(call->head, core_session_find(core, id), call->id, rpc_param_bool(call->params, "ring", false), err);
    if (r == 0)
        r = begin_batch(call, session_find(call->head, id), err);
    if (r < 0) {
        core_session_close(core, id);
        return r;
    }
    return RPC_LATER;
}

void rpc_session_ready(struct head *head, uint64_t id)
{
    struct session *session = session_find(head, id);
    if (!session || !session->open_id)
        return;
    json_t *open_id = STEAL(session->open_id);
    json_t *result =
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "session", (json_int_t)id, "arena_bytes", (json_int_t)session->arena_bytes, "hidden_size",
                  (json_int_t)session->hidden, "top_k_max", (json_int_t)session->top_k_max, "lanes", (json_int_t)session->lane_count);
    if (session->job)
        json_object_set_new(result, "job", json_integer((json_int_t)session->job));
    int fds[] = {session->arena_fd, -1};
    if (session->ring) {
        fds[1] = ring_doorbell(session->ring);
        json_object_set_new(result, "ring",
                            json_pack("{s:i, s:I, s:I, s:i}", "version", RING_VERSION, "offset", (json_int_t)session->arena_bytes, "bytes",
                                      (json_int_t)ring_bytes(), "slots", RING_SLOTS));
    }
    control_reply_fds(head->control, session->client, open_id, result, fds, session->ring ? 2 : 1);
    json_decref(open_id);
}

void rpc_session_failed(struct head *head, uint64_t id)
{
    struct session *session = session_find(head, id);
    const struct core_session *core_session = core_session_find(head->core, id);
    if (!session || !core_session)
        return;
    if (session->open_id)
        control_reply_error(head->control, session->client, session->open_id, &core_session->err);
    core_session_close(head->core, id);
}

struct session *rpc_own_session(const struct call *call, struct err *err)
{
    uint64_t id = (uint64_t)rpc_param_int(call->params, "session", 0);
    struct session *session = session_find(call->head, id);
    if (session && session->client == call->client)
        return session;
    err_set(err, -ENOENT, ERR_NO_SUCH, "session %" PRIu64 ": this connection has none of that number", id);
    err_value_int(err, "session", (long long)id);
    return NULL;
}

int rpc_session_close(const struct call *call, json_t **ret_result, struct err *err)
{
    struct session *session = rpc_own_session(call, err);
    if (!session)
        return -ENOENT;
    struct err closed = {0};
    err_set(&closed, -ECANCELED, ERR_CANCELLED, "session %" PRIu64 " was closed while the step ran", session->id);
    ring_free(call->head, STEAL(session->ring), &closed);
    for (uint32_t lane = 0; lane < session->lane_count; lane++)
        if (session->lanes[lane].step_id)
            control_reply_error(call->head->control, call->client, session->lanes[lane].step_id, &closed);
    core_session_close(call->head->core, session->id);
    *ret_result = json_object();
    return 0;
}

int rpc_session_list(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)err;
    const struct core *core = call->head->core;
    uint64_t now = clock_now_ns();
    json_t *sessions = json_array();
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        const struct core_session *session = &core->sessions[i];
        if (!session->used)
            continue;
        const struct timing_session *timing = timing_session_find(call->head->metrics->timing, session->id);
        uint32_t in_flight = core_session_in_flight(session);
        json_array_append_new(
            sessions, json_pack("{s:I, s:s, s:I, s:s, s:s, s:s, s:b, s:s, s:I, s:b, s:I, s:I, s:o}", "session", (json_int_t)session->id,
                                "model", core->models[session->model].name, "max_tokens", (json_int_t)session->max_tokens, "partials",
                                session->partials == MSG_F32 ? "f32" : "bf16", "output_dtype", session->output == MSG_F32 ? "f32" : "bf16",
                                "judge", session->one_shot ? "one-shot" : "persistent", "one_shot", session->one_shot, "priority",
                                session->batch ? "batch" : "interactive", "steps", (json_int_t)session->steps_done, "running",
                                in_flight > 0, "in_flight", (json_int_t)in_flight, "lanes", (json_int_t)session->lanes, "timing",
                                timing ? timing_json_summary(call->head, timing, now) : json_null()));
    }
    *ret_result = json_pack("{s:o}", "sessions", sessions);
    return 0;
}

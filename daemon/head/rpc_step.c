/* decode and prefill as requests: from JSON to a step, and back to its answer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/rpc.h"
#include "daemon/head/step.h"

/* The schema has checked types and dtype names. */
static struct step_tensor tensor_of(const json_t *params, const char *name)
{
    const json_t *json = json_object_get(params, name), *offset = json_object_get(json, "offset");
    const char *text = json_string_value(json_object_get(json, "b64"));
    return (struct step_tensor){
        .given = json != NULL,
        .b64 = text || !offset,
        .offset = (uint64_t)json_integer_value(offset),
        .text = text,
    };
}

static int step(const struct call *call, bool prefill, struct err *err)
{
    struct session *session = rpc_own_session(call, err);
    if (!session)
        return -ENOENT;
    const char *dtype = json_string_value(json_object_get(json_object_get(call->params, "y"), "dtype"));
    struct step_call step = {
        .prefill = prefill,
        .layer = (uint32_t)rpc_param_int(call->params, "layer", 0),
        .tokens = (uint32_t)rpc_param_int(call->params, "tokens", 0),
        .top_k = (uint32_t)rpc_param_int(call->params, "top_k", 0),
        .deadline_ms = (uint32_t)rpc_param_int(call->params, "deadline_ms", call->head->conf->deadline_s * 1000LL),
        .y_dtype_given = dtype != NULL,
        .y_dtype = dtype && strcasecmp(dtype, "F32") == 0 ? MSG_F32 : MSG_BF16,
        .tensors = {tensor_of(call->params, "x"), tensor_of(call->params, "topk_ids"), tensor_of(call->params, "topk_weights"),
                    tensor_of(call->params, "y")},
    };
    _cleanup_(trace_freep) struct trace *trace = NULL;
    if (rpc_param_bool(call->params, "trace", false) && !(trace = trace_new(call->received_ns, session->tp)))
        return err_no_memory(err, "trace", session->tp);
    uint32_t lane;
    int r = step_take(call->head, session, &step, &lane, err);
    if (r < 0)
        return r;
    session->lanes[lane].trace = STEAL(trace);
    session->lanes[lane].step_id = json_incref((json_t *)call->id);
    return RPC_LATER;
}

int rpc_decode(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)ret_result;
    return step(call, false, err);
}

int rpc_prefill(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)ret_result;
    return step(call, true, err);
}

int rpc_step_cancel(const struct call *call, json_t **ret_result, struct err *err)
{
    const struct session *session = rpc_own_session(call, err);
    const json_t *wanted = json_object_get(call->params, "request");
    bool found = false;
    if (!session)
        return -ENOENT;
    for (uint32_t lane = 0; lane < session->lane_count; lane++) {
        if (!session->lanes[lane].busy || !json_equal(session->lanes[lane].step_id, wanted))
            continue;
        step_cancel(call->head, session, lane);
        found = true;
    }
    *ret_result = json_pack("{s:b}", "cancelled", found);
    return 0;
}

static json_t *one_shot_json(const struct msg_one_shot *parts)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "spawn", rpc_real((double)parts->spawn_ns / 1e3), "map",
                     rpc_real((double)parts->map_ns / 1e3), "team", rpc_real((double)parts->team_ns / 1e3), "run",
                     rpc_real((double)parts->run_ns / 1e3), "exit", rpc_real((double)parts->exit_ns / 1e3));
}

static json_t *step_json(const struct core_step *done)
{
    double wait = (double)done->judge_wait_ns / 1e3, most = (double)done->duck_max_ns / 1e3;
    json_t *json = json_pack("{s:o, s:o, s:o, s:o, s:I, s:I}", "judge_wait_us", rpc_real(wait), "duck_max_us", rpc_real(most),
                             "judge_gap_us", rpc_real(wait - most), "judge_ratio", most > 0 ? rpc_real(wait / most) : json_null(), "params",
                             (json_int_t)done->params, "weight_bytes", (json_int_t)done->weight_bytes);
    if (done->counted)
        json_object_set_new(json, "mode", json_integer(done->mode));
    if (done->one_shot)
        json_object_set_new(json, "one_shot_us", one_shot_json(&done->parts));
    if (done->straggler != CORE_NONE) {
        json_object_set_new(json, "straggler", json_integer(done->straggler));
        json_object_set_new(json, "straggler_us", rpc_real((double)done->straggler_ns / 1e3));
    }
    if (done->prefill) {
        json_object_set_new(json, "tiles", json_integer((json_int_t)done->tiles));
        json_object_set_new(json, "avg_tile_batch", rpc_real(done->tiles ? (double)done->tile_tokens / (double)done->tiles : 0.0));
    }
    return json;
}

static int attach_y(const struct session *session, const struct session_lane *lane, uint32_t tokens, json_t *json)
{
    size_t bytes = (size_t)tokens * session->hidden * (lane->y_dtype == MSG_F32 ? sizeof(float) : sizeof(uint16_t));
    char *text = malloc(B64_TEXT_LENGTH(bytes) + 1);
    if (!text)
        return -ENOMEM;
    b64_encode(lane->y, bytes, text);
    json_object_set_new(json, "y", json_pack("{s:s, s:s}", "b64", text, "dtype", lane->y_dtype == MSG_F32 ? "F32" : "BF16"));
    free(text);
    return 0;
}

void rpc_step_done(struct head *head, struct session *session, uint32_t index, const struct core_step *step)
{
    struct session_lane *lane = &session->lanes[index];
    json_t *step_id = STEAL(lane->step_id), *json = step_json(step);
    _cleanup_(trace_freep) struct trace *trace = STEAL(lane->trace);
    if (trace)
        json_object_set_new(json, "trace", trace_json(trace, head->core, core_session_find(head->core, session->id)));
    if (lane->y_b64 && attach_y(session, lane, step->tokens, json) < 0) {
        struct err err = {0};
        err_no_memory(&err, "y", B64_BYTES_MAX);
        json_decref(json);
        control_reply_error(head->control, session->client, step_id, &err);
    } else {
        control_reply(head->control, session->client, step_id, json, -1);
    }
    json_decref(step_id);
}

void rpc_step_failed(struct head *head, struct session *session, uint32_t lane, const struct err *err)
{
    json_t *step_id = STEAL(session->lanes[lane].step_id);
    trace_free(STEAL(session->lanes[lane].trace));
    control_reply_error(head->control, session->client, step_id, err);
    json_decref(step_id);
}

/* decode and prefill: where a step's tensors are, the call, its timing. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "proto/client/session.h"

/* One tensor of a step: used where it is when that is in the arena, else copied between the caller's memory and its place. */
struct tensor {
    const char *name;
    const void *data; /* the caller's; NULL for an output that stays in its place */
    size_t bytes;
    size_t place;  /* offset of its place in lane 0 of fp9_session_lane_places() */
    size_t at;     /* offset where fp9d finds it */
    bool in_place; /* at is its place in a lane, by our choice */
};

enum { X, IDS, WEIGHTS, Y, TENSORS };

static int check_step(const struct fp9_session *session, const struct fp9_step *step, struct err *err)
{
    if (!session->conn)
        return err_set(err, -ENOTCONN, ERR_BAD_REQUEST, "the session's connection was closed");
    if (step->tokens > session->max_tokens)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "tokens: %u is out of range; the session takes at most %u", step->tokens,
                       session->max_tokens);
    if (!step->x)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "x is missing");
    if (step->top_k > session->top_k_max)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "top_k: %u is out of range; the model takes 0 to %u", step->top_k, session->top_k_max);
    if (step->top_k && (!step->topk_ids || !step->topk_weights))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "top_k is %u, but %s is missing", step->top_k,
                       step->topk_ids ? "topk_weights" : "topk_ids");
    return 0;
}

static int locate(const struct fp9_session *session, struct tensor *tensor, struct err *err)
{
    uintptr_t data = (uintptr_t)tensor->data, arena = (uintptr_t)session->arena;
    tensor->in_place = data < arena || data - arena >= session->arena_bytes;
    if (tensor->in_place)
        return 0;
    tensor->at = data - arena;
    if (tensor->at % SESSION_ALIGN)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s is at offset %zu of the arena; multiples of %u are right", tensor->name, tensor->at,
                       SESSION_ALIGN);
    if (tensor->bytes > session->arena_bytes - tensor->at)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %zu bytes at offset %zu end past the arena of %zu bytes", tensor->name,
                       tensor->bytes, tensor->at, session->arena_bytes);
    return 0;
}

/* A step whose answer was not taken has a tensor there. */
static bool lane_taken(const struct fp9_session *session, uint32_t lane)
{
    size_t begin = lane * session->lane_bytes, end = begin + session->lane_bytes;
    for (size_t i = 0; i < RPC_INFLIGHT_MAX; i++) {
        const struct core_call *call = &session->conn->calls[i];
        if (!call->id || call->step.session != session)
            continue;
        for (int t = 0; t < TENSORS; t++)
            if (call->step.tensors[t].begin < end && begin < call->step.tensors[t].end)
                return true;
    }
    return false;
}

/* The lane whose places a step uses: that in which its x is; for a copied x the first that is free, or lane 0 when the caller will look
 * for y there. */
static int choose_lane(const struct fp9_session *session, const struct fp9_step *step, const struct tensor tensors[TENSORS],
                       uint32_t *ret_lane, struct err *err)
{
    uint32_t lane = 0, end = session->lanes;
    if (!tensors[X].in_place && tensors[X].at / session->lane_bytes < session->lanes)
        lane = (uint32_t)(tensors[X].at / session->lane_bytes);
    if (!tensors[X].in_place || !step->y)
        end = lane + 1;
    while (lane < end && lane_taken(session, lane))
        lane++;
    if (lane == end)
        return err_set(err, -EBUSY, ERR_BUSY, "the session's places (%u lane%s) are in use by steps whose answers were not taken yet",
                       session->lanes, size_plural(session->lanes));
    *ret_lane = lane;
    return 0;
}

static int locate_all(const struct fp9_session *session, const struct fp9_step *step, struct tensor tensors[TENSORS], struct err *err)
{
    size_t values = (size_t)step->tokens * session->hidden_size, slots = (size_t)step->tokens * step->top_k;
    const void *ids = step->top_k ? step->topk_ids : NULL, *weights = step->top_k ? step->topk_weights : NULL;
    tensors[X] = (struct tensor){"x", step->x, values * sizeof *step->x, 0, 0, false};
    tensors[IDS] = (struct tensor){"topk_ids", ids, slots * sizeof *step->topk_ids, session->ids_at, 0, false};
    tensors[WEIGHTS] = (struct tensor){"topk_weights", weights, slots * sizeof *step->topk_weights, session->weights_at, 0, false};
    tensors[Y] = (struct tensor){"y", step->y, values * session_value_bytes(session), session->y_at, 0, false};
    bool in_places = false;
    uint32_t lane = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        int r = locate(session, &tensors[i], err);
        if (r)
            return r;
        in_places = in_places || (tensors[i].in_place && tensors[i].bytes);
    }
    int r = in_places ? choose_lane(session, step, tensors, &lane, err) : 0;
    for (size_t i = 0; r == 0 && i < TENSORS; i++)
        if (tensors[i].in_place)
            tensors[i].at = tensors[i].place + lane * session->lane_bytes;
    return r;
}

static json_t *step_params(const struct fp9_session *session, const struct fp9_step *step, const struct tensor tensors[TENSORS])
{
    json_t *params =
        json_pack("{s:I,s:I,s:I,s:{s:I,s:s},s:{s:I,s:s}}", "session", (json_int_t)session->id, "layer", (json_int_t)step->layer, "tokens",
                  (json_int_t)step->tokens, "x", "offset", (json_int_t)tensors[X].at, "dtype", "BF16", "y", "offset",
                  (json_int_t)tensors[Y].at, "dtype", session->output_dtype == FP9_BF16 ? "BF16" : "F32");
    if (params && step->top_k) {
        json_object_set_new(params, "top_k", json_integer(step->top_k));
        json_object_set_new(params, "topk_ids", json_pack("{s:I}", "offset", (json_int_t)tensors[IDS].at));
        json_object_set_new(params, "topk_weights", json_pack("{s:I}", "offset", (json_int_t)tensors[WEIGHTS].at));
    }
    if (params && step->deadline_ms)
        json_object_set_new(params, "deadline_ms", json_integer(step->deadline_ms));
    return params;
}

/* Through the ring. */
static int hand_over(struct fp9_session *session, enum fp9_kind kind, const struct fp9_step *step, const struct tensor tensors[TENSORS],
                     bool notified, uint64_t *ret_id, uint32_t *ret_slot, struct err *err)
{
    uint32_t slot = ring_free_slot(&session->ring);
    if (slot == RING_SLOTS)
        return err_set(err, -EBUSY, ERR_BUSY, "%d steps of the session are under way already", RING_SLOTS);
    int r = core_call_new(session->conn, ret_id, err);
    if (r)
        return r;
    struct ring_call call = {
        .kind = kind == FP9_PREFILL ? RING_PREFILL : RING_DECODE,
        .y_dtype = RING_DTYPE_SESSION,
        .layer = step->layer,
        .tokens = step->tokens,
        .top_k = step->top_k,
        .deadline_ms = step->deadline_ms,
        .x = tensors[X].at,
        .topk_ids = step->top_k ? tensors[IDS].at : 0,
        .topk_weights = step->top_k ? tensors[WEIGHTS].at : 0,
        .y = tensors[Y].at,
    };
    ring_submit(&session->ring, slot, *ret_id, &call, notified);
    *ret_slot = slot;
    return 0;
}

/* As a line. */
static int send_line(struct fp9_session *session, enum fp9_kind kind, const struct fp9_step *step, const struct tensor tensors[TENSORS],
                     uint64_t *ret_id, struct err *err)
{
    json_t *params = step_params(session, step, tensors);
    if (!params)
        return err_no_memory(err, "a step", 0);
    return core_request(session->conn, kind == FP9_PREFILL ? "prefill" : "decode", params, ret_id, err);
}

static int step_request(struct fp9_session *session, enum fp9_kind kind, const struct fp9_step *step, bool notified, uint64_t *ret_id,
                        struct err *err)
{
    uint64_t begin = clock_now_ns(), id = 0;
    uint32_t slot = 0;
    struct tensor tensors[TENSORS];
    bool in_ring = session->ring.memory != NULL;
    int r = check_step(session, step, err);
    if (r == 0)
        r = locate_all(session, step, tensors, err);
    for (size_t i = X; r == 0 && i < Y; i++)
        if (tensors[i].in_place && tensors[i].bytes)
            memcpy(session->arena + tensors[i].at, tensors[i].data, tensors[i].bytes);
    if (r == 0)
        r = in_ring ? hand_over(session, kind, step, tensors, notified, &id, &slot, err)
                    : send_line(session, kind, step, tensors, &id, err);
    if (r)
        return r;
    struct core_step *under_way = &core_find(session->conn, id)->step;
    *under_way = (struct core_step){
        .session = session,
        .y = tensors[Y].in_place ? step->y : NULL,
        .y_at = tensors[Y].at,
        .y_bytes = tensors[Y].bytes,
        .begin_ns = begin,
        .in_ring = in_ring,
        .slot = slot,
    };
    for (int i = 0; i < TENSORS; i++)
        under_way->tensors[i] = (struct core_range){.begin = tensors[i].at, .end = tensors[i].at + tensors[i].bytes};
    *ret_id = id;
    return 0;
}

static double number_or_nan(const json_t *result, const char *key)
{
    const json_t *value = json_object_get(result, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static uint64_t count_or_zero(const json_t *result, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(result, key));
    return value > 0 ? (uint64_t)value : 0;
}

static int mode_of(const json_t *result)
{
    const json_t *value = json_object_get(result, "mode");
    json_int_t mode = json_integer_value(value);
    return json_is_integer(value) && mode >= 0 && mode < 256 ? (int)mode : -1;
}

static int straggler_of(const json_t *result)
{
    const json_t *value = json_object_get(result, "straggler");
    json_int_t duck = json_integer_value(value);
    return json_is_integer(value) && duck >= 0 && duck <= INT_MAX ? (int)duck : -1;
}

static struct fp9_one_shot one_shot_of(const json_t *result)
{
    const json_t *parts = json_object_get(result, "one_shot_us");
    return (struct fp9_one_shot){
        .spawn_us = number_or_nan(parts, "spawn"),
        .map_us = number_or_nan(parts, "map"),
        .team_us = number_or_nan(parts, "team"),
        .run_us = number_or_nan(parts, "run"),
        .exit_us = number_or_nan(parts, "exit"),
    };
}

static struct fp9_timing timing_of(const json_t *result)
{
    return (struct fp9_timing){
        .judge_wait_us = number_or_nan(result, "judge_wait_us"),
        .duck_max_us = number_or_nan(result, "duck_max_us"),
        .judge_gap_us = number_or_nan(result, "judge_gap_us"),
        .judge_ratio = number_or_nan(result, "judge_ratio"),
        .params = count_or_zero(result, "params"),
        .weight_bytes = count_or_zero(result, "weight_bytes"),
        .tiles = count_or_zero(result, "tiles"),
        .avg_tile_batch = number_or_nan(result, "avg_tile_batch"),
        .mode = mode_of(result),
        .one_shot = one_shot_of(result),
        .straggler = straggler_of(result),
        .straggler_us = number_or_nan(result, "straggler_us"),
    };
}

static int take_line(struct fp9_session *session, uint64_t id, struct fp9_timing *ret_timing, struct err *err)
{
    json_t *result = NULL;
    int r = core_answer(session->conn, id, &result, NULL, err);
    if (r == 0)
        *ret_timing = timing_of(result);
    json_decref(result);
    return r;
}

static int take_from_ring(struct fp9_session *session, struct core_call *call, struct fp9_timing *ret_timing, struct err *err)
{
    struct fp9_conn *conn = session->conn;
    if (!call->done)
        ring_collect(conn);
    if (!call->done && !conn->broken.code)
        return -EAGAIN;
    int r;
    if (call->done) {
        r = ring_take(&session->ring, call->step.slot, ret_timing, err);
        /* -EAGAIN means "no answer yet" here. */
        if (r == -EAGAIN)
            r = err->code = -ENODATA;
    } else {
        err_copy(err, &conn->broken);
        r = conn->broken.code;
    }
    core_clear(call);
    return r;
}

static int step_answer(struct fp9_session *session, uint64_t id, struct fp9_timing *ret_timing, struct err *err)
{
    struct core_call *call = session->conn && id ? core_find(session->conn, id) : NULL;
    if (!call || call->step.session != session || call->forgotten)
        return err_set(err, -ENOENT, ERR_NO_SUCH, "the session has no step %llu under way", (unsigned long long)id);
    struct core_step step = call->step;
    struct fp9_timing timing;
    int r = step.in_ring ? take_from_ring(session, call, &timing, err) : take_line(session, id, &timing, err);
    if (r)
        return r;
    if (step.y && step.y_bytes)
        memcpy(step.y, session->arena + step.y_at, step.y_bytes);
    timing.job_time_us = (double)(clock_now_ns() - step.begin_ns) / 1000.0;
    if (ret_timing)
        *ret_timing = timing;
    return 0;
}

const char *fp9_mode_name(int mode)
{
    switch (mode) {
    case 0: return "dense forward";
    case 1: return "MoE forward";
    case 4: return "MoE forward SMP";
    case 5: return "dense prefill";
    case 6: return "MoE prefill";
    default: return "unknown";
    }
}

int fp9_step_request(struct fp9_session *session, enum fp9_kind kind, const struct fp9_step *step, uint64_t *ret_id,
                     struct fp9_error *error)
{
    struct err err = {0};
    return step_request(session, kind, step, true, ret_id, &err) ? conn_error(error, &err) : 0;
}

int fp9_step_answer(struct fp9_session *session, uint64_t id, struct fp9_timing *ret_timing, struct fp9_error *error)
{
    struct err err = {0};
    int r = step_answer(session, id, ret_timing, &err);
    return r == 0 || r == -EAGAIN ? r : conn_error(error, &err);
}

static int step_cancel(struct fp9_session *session, uint64_t id, struct err *err)
{
    struct core_call *call = session->conn && id ? core_find(session->conn, id) : NULL;
    if (!call || call->step.session != session || call->forgotten)
        return err_set(err, -ENOENT, ERR_NO_SUCH, "the session has no step %llu under way", (unsigned long long)id);
    if (call->done)
        return 0;
    if (call->step.in_ring) {
        ring_cancel(&session->ring, call->step.slot);
        return 0;
    }
    json_t *params = json_pack("{s:I,s:I}", "session", (json_int_t)session->id, "request", (json_int_t)id);
    uint64_t asked = 0;
    int r = params ? core_request(session->conn, "step.cancel", params, &asked, err) : err_no_memory(err, "a cancel", 0);
    if (r == 0)
        core_forget(session->conn, core_find(session->conn, asked));
    return r;
}

int fp9_step_cancel(struct fp9_session *session, uint64_t id, struct fp9_error *error)
{
    struct err err = {0};
    return step_cancel(session, id, &err) ? conn_error(error, &err) : 0;
}

static int step_run(struct fp9_session *session, enum fp9_kind kind, const struct fp9_step *step, struct fp9_timing *ret_timing,
                    struct fp9_error *error)
{
    struct err err = {0};
    uint64_t id = 0;
    int r = session->conn ? conn_socket(session->conn, &err) : 0;
    if (r == 0)
        r = step_request(session, kind, step, false, &id, &err);
    if (r == 0) {
        const struct core_call *call = core_find(session->conn, id);
        if (call->step.in_ring)
            ring_until(session->conn, &session->ring, call->step.slot);
        else
            conn_until(session->conn, id);
        r = step_answer(session, id, ret_timing, &err);
    }
    return r ? conn_error(error, &err) : 0;
}

int fp9_decode(struct fp9_session *session, const struct fp9_step *step, struct fp9_timing *ret_timing, struct fp9_error *error)
{
    return step_run(session, FP9_DECODE, step, ret_timing, error);
}

int fp9_prefill(struct fp9_session *session, const struct fp9_step *step, struct fp9_timing *ret_timing, struct fp9_error *error)
{
    return step_run(session, FP9_PREFILL, step, ret_timing, error);
}

/* decode and prefill: tensors checked and copied, the step handed to the core, the answer written. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/deadline.h"
#include "daemon/head/rpc.h"
#include "daemon/head/session.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"

/* Where a tensor is: `bytes` at `offset` of the arena, or decoded text. */
struct tensor {
    const char *name;
    bool given, b64;
    uint64_t offset, bytes;
    const char *text;
};

static int shape_err(struct err *err, const char *name, const char *what, uint64_t got, uint64_t want)
{
    err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %s %" PRIu64 "; %" PRIu64 " would be right", name, what, got, want);
    err_value_str(err, "tensor", name);
    err_value_int(err, "got", (long long)got);
    err_value_int(err, "expected", (long long)want);
    return -EINVAL;
}

/* The schema has checked types and dtype names. */
static void read_tensor(const json_t *params, const char *name, struct tensor *ret_tensor)
{
    const json_t *json = json_object_get(params, name);
    *ret_tensor = (struct tensor){.name = name, .given = json != NULL};
    if (!json)
        return;
    const json_t *text = json_object_get(json, "b64"), *offset = json_object_get(json, "offset");
    ret_tensor->b64 = text || !offset;
    ret_tensor->text = json_string_value(text);
    ret_tensor->offset = (uint64_t)json_integer_value(offset);
}

static int place_in_arena(const struct session *session, struct tensor *tensor, uint64_t bytes, struct err *err)
{
    tensor->bytes = bytes;
    if (tensor->offset % SESSION_ALIGN)
        return shape_err(err, tensor->name, "offset modulo 64 is", tensor->offset % SESSION_ALIGN, 0);
    if (tensor->offset > session->arena_bytes || bytes > session->arena_bytes - tensor->offset) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %" PRIu64 " bytes at offset %" PRIu64 " end past the arena of %" PRIu64 " bytes",
                tensor->name, bytes, tensor->offset, session->arena_bytes);
        err_value_str(err, "tensor", tensor->name);
        err_value_int(err, "arena_bytes", (long long)session->arena_bytes);
        return -EINVAL;
    }
    return 0;
}

static int overlap(const struct tensor *y, const struct tensor *other, struct err *err)
{
    if (!other->given || other->b64 || !y->bytes || !other->bytes)
        return 0;
    if (y->offset + y->bytes <= other->offset || other->offset + other->bytes <= y->offset)
        return 0;
    err_set(err, -EINVAL, ERR_BAD_SHAPE, "y overlaps %s in the arena", other->name);
    err_value_str(err, "tensor", other->name);
    return -EINVAL;
}

/* Decodes text of exactly `bytes` into `to`. */
static int take_b64(const struct tensor *tensor, void *to, uint64_t bytes, struct err *err)
{
    if (!tensor->text)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: has neither offset nor b64", tensor->name);
    if (bytes > B64_BYTES_MAX)
        return shape_err(err, tensor->name, "is too long for b64; bytes", bytes, B64_BYTES_MAX);
    int r = b64_decode(tensor->text, strlen(tensor->text), to, bytes, err);
    return r < 0 ? err_prefix(err, "%s", tensor->name) : 0;
}

static int copies(struct session *session, struct err *err)
{
    if (!session->x_copy)
        session->x_copy = malloc(B64_BYTES_MAX);
    if (!session->y_copy)
        session->y_copy = malloc(B64_BYTES_MAX);
    return session->x_copy && session->y_copy ? 0 : err_no_memory(err, "b64 tensors", B64_BYTES_MAX);
}

static int check_ids(struct session *session, uint32_t tokens, uint32_t top_k, uint32_t experts, struct err *err)
{
    for (uint32_t token = 0; token < tokens; token++) {
        for (uint32_t slot = 0; slot < top_k; slot++) {
            int32_t id = session->ids[(size_t)token * top_k + slot];
            if (id == -1)
                continue;
            if (id < 0 || (uint32_t)id >= experts) {
                err_set(err, -EINVAL, ERR_BAD_EXPERT, "topk_ids: token %u, slot %u holds %d; experts are 0 to %u, -1 is an empty slot",
                        token, slot, id, experts - 1);
                err_value_int(err, "token", token);
                err_value_int(err, "slot", slot);
                err_value_int(err, "expert", id);
                return -EINVAL;
            }
        }
    }
    return 0;
}

/* k: as given, by the length of the text, or the session's. */
static int top_k_of(const struct call *call, const struct session *session, const struct tensor *ids, uint32_t tokens, uint32_t *ret_top_k,
                    struct err *err)
{
    *ret_top_k = 0;
    if (!ids->given)
        return 0;
    uint64_t k = (uint64_t)rpc_param_int(call->params, "top_k", 0);
    for (uint32_t fits = 1; !k && ids->text && fits <= session->top_k_max; fits++)
        if (strlen(ids->text) == B64_TEXT_LENGTH((size_t)tokens * fits * sizeof(int32_t)))
            k = fits;
    if (!k)
        k = session->top_k_max;
    if (k > session->top_k_max)
        return shape_err(err, ids->name, "more columns than the session's top_k_max:", k, session->top_k_max);
    *ret_top_k = (uint32_t)k;
    return 0;
}

/* ids and weights are copied whole before anything looks at them: the client may be scribbling. */
static int take_routing(const struct call *call, struct session *session, struct tensor *ids, struct tensor *weights, uint32_t tokens,
                        uint32_t experts, uint32_t *ret_top_k, struct err *err)
{
    if (ids->given != weights->given)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s is given and %s is not; they go together", ids->given ? ids->name : weights->name,
                       ids->given ? weights->name : ids->name);
    int r = top_k_of(call, session, ids, tokens, ret_top_k, err);
    if (r < 0 || !*ret_top_k)
        return r;
    uint64_t bytes = (uint64_t)tokens * *ret_top_k * sizeof(int32_t);
    struct tensor *const tensors[] = {ids, weights};
    void *const to[] = {session->ids, session->weights};
    for (size_t i = 0; i < ARRAY_LENGTH(tensors); i++) {
        if (tensors[i]->b64)
            r = take_b64(tensors[i], to[i], bytes, err);
        else
            r = place_in_arena(session, tensors[i], bytes, err);
        if (r < 0)
            return r;
        if (!tensors[i]->b64)
            memcpy(to[i], session->arena + tensors[i]->offset, bytes);
    }
    return check_ids(session, tokens, *ret_top_k, experts, err);
}

static int take_x(struct session *session, struct tensor *x, uint32_t tokens, struct err *err)
{
    uint64_t bytes = (uint64_t)tokens * session->hidden * sizeof(uint16_t);
    if (x->b64) {
        session->x = session->x_copy;
        return take_b64(x, session->x_copy, bytes, err);
    }
    int r = place_in_arena(session, x, bytes, err);
    session->x = session->arena + x->offset;
    return r;
}

static int take_y(const struct call *call, struct session *session, struct tensor *y, uint32_t tokens, struct err *err)
{
    const char *dtype = json_string_value(json_object_get(json_object_get(call->params, "y"), "dtype"));
    session->y_dtype = !dtype ? session->output : strcmp(dtype, "F32") == 0 ? MSG_F32 : MSG_BF16;
    uint64_t bytes = (uint64_t)tokens * session->hidden * (session->y_dtype == MSG_F32 ? sizeof(float) : sizeof(uint16_t));
    session->y_b64 = !y->given || y->b64;
    if (!session->y_b64) {
        session->y = session->arena + y->offset;
        return place_in_arena(session, y, bytes, err);
    }
    y->bytes = 0;
    session->y = session->y_copy;
    return bytes <= B64_BYTES_MAX ? 0 : shape_err(err, "y", "is too long for b64; bytes", bytes, B64_BYTES_MAX);
}

static int take_step(const struct call *call, struct session *session, bool prefill, struct err *err)
{
    struct core *core = call->head->core;
    const struct core_session *core_session = core_session_find(core, session->id);
    const struct core_model *model = &core->models[core_session->model];
    uint32_t tokens = (uint32_t)rpc_param_int(call->params, "tokens", 0), layer = (uint32_t)rpc_param_int(call->params, "layer", 0),
             top_k = 0;
    int r = core_step_check(core, session->id, layer, tokens, err);
    if (r < 0)
        return r;
    struct tensor x, ids, weights, y;
    read_tensor(call->params, "x", &x);
    read_tensor(call->params, "topk_ids", &ids);
    read_tensor(call->params, "topk_weights", &weights);
    read_tensor(call->params, "y", &y);
    r = copies(session, err);
    if (r == 0)
        r = take_routing(call, session, &ids, &weights, tokens, model->arch->experts, &top_k, err);
    if (r == 0)
        r = take_x(session, &x, tokens, err);
    if (r == 0)
        r = take_y(call, session, &y, tokens, err);
    if (r == 0)
        r = overlap(&y, &x, err);
    if (r == 0)
        r = overlap(&y, &ids, err);
    if (r == 0)
        r = overlap(&y, &weights, err);
    if (r == 0)
        r = core_step_submit(core, clock_now_ns(), session->id, layer, tokens, top_k, prefill, err);
    if (r < 0)
        return r;
    session->step_id = json_incref((json_t *)call->id);
    deadline_set(call->head, session->id, (uint32_t)rpc_param_int(call->params, "deadline_ms", call->head->conf->deadline_s * 1000LL));
    return 0;
}

static int step(const struct call *call, bool prefill, struct err *err)
{
    struct session *session = rpc_own_session(call, err);
    if (!session)
        return -ENOENT;
    int r = take_step(call, session, prefill, err);
    return r < 0 ? r : RPC_LATER;
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

static json_t *one_shot_json(const struct msg_one_shot *parts)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "spawn", rpc_real((double)parts->spawn_ns / 1e3), "map",
                     rpc_real((double)parts->map_ns / 1e3), "team", rpc_real((double)parts->team_ns / 1e3), "run",
                     rpc_real((double)parts->run_ns / 1e3), "exit", rpc_real((double)parts->exit_ns / 1e3));
}

static json_t *step_json(const struct core_session *core_session)
{
    const struct core_step *done = &core_session->step;
    double wait = (double)done->judge_wait_ns / 1e3, most = (double)done->duck_max_ns / 1e3;
    json_t *json = json_pack("{s:o, s:o, s:o, s:o, s:I, s:I}", "judge_wait_us", rpc_real(wait), "duck_max_us", rpc_real(most),
                             "judge_gap_us", rpc_real(wait - most), "judge_ratio", most > 0 ? rpc_real(wait / most) : json_null(), "params",
                             (json_int_t)done->params, "weight_bytes", (json_int_t)done->weight_bytes);
    if (done->counted)
        json_object_set_new(json, "mode", json_integer(done->mode));
    if (done->one_shot)
        json_object_set_new(json, "one_shot_us", one_shot_json(&done->parts));
    if (done->prefill) {
        json_object_set_new(json, "tiles", json_integer((json_int_t)done->tiles));
        json_object_set_new(json, "avg_tile_batch", rpc_real(done->tiles ? (double)done->tile_tokens / (double)done->tiles : 0.0));
    }
    return json;
}

static int attach_y(const struct session *session, uint32_t tokens, json_t *json)
{
    size_t bytes = (size_t)tokens * session->hidden * (session->y_dtype == MSG_F32 ? sizeof(float) : sizeof(uint16_t));
    char *text = malloc(B64_TEXT_LENGTH(bytes) + 1);
    if (!text)
        return -ENOMEM;
    b64_encode(session->y, bytes, text);
    json_object_set_new(json, "y", json_pack("{s:s, s:s}", "b64", text, "dtype", session->y_dtype == MSG_F32 ? "F32" : "BF16"));
    free(text);
    return 0;
}

void rpc_step_done(struct head *head, uint64_t id)
{
    struct session *session = session_find(head, id);
    const struct core_session *core_session = core_session_find(head->core, id);
    if (!session || !core_session || !session->step_id)
        return;
    const struct core_step *done = &core_session->step;
    json_t *step_id = STEAL(session->step_id);
    json_t *json = step_json(core_session);
    if (session->y_b64 && attach_y(session, done->tokens, json) < 0) {
        struct err err = {0};
        err_no_memory(&err, "y", B64_BYTES_MAX);
        json_decref(json);
        control_reply_error(head->control, session->client, step_id, &err);
    } else {
        control_reply(head->control, session->client, step_id, json, -1);
    }
    json_decref(step_id);
}

void rpc_step_failed(struct head *head, uint64_t id)
{
    struct session *session = session_find(head, id);
    const struct core_session *core_session = core_session_find(head->core, id);
    if (!session || !core_session || !session->step_id)
        return;
    json_t *step_id = STEAL(session->step_id);
    control_reply_error(head->control, session->client, step_id, &core_session->step.err);
    json_decref(step_id);
}

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "proto/client/core.h"

#define ALIGN 64u
#define HIDDEN_MAX (1u << 20)
#define TOP_K_MAX 4096u
#define ARENA_MAX (UINT64_C(1) << 40)

struct fp9_session {
    struct fp9_conn *conn; /* borrowed */
    uint64_t id;
    uint32_t max_tokens, hidden_size, top_k_max;
    enum fp9_dtype output_dtype;
    uint8_t *arena; /* mapped */
    size_t arena_bytes;
    size_t ids_at, weights_at, y_at; /* offsets of the places; x is at 0 */
};

static const char *dtype_param(enum fp9_dtype dtype)
{
    return dtype == FP9_BF16 ? "bf16" : "f32";
}

static size_t dtype_bytes(enum fp9_dtype dtype)
{
    return dtype == FP9_BF16 ? 2 : 4;
}

static void session_free(struct fp9_session *session)
{
    if (session->arena)
        munmap(session->arena, session->arena_bytes);
    free(session);
}
CLEANUP_DEFINE(struct fp9_session *, session_free);

static json_t *open_params(const char *model, const struct fp9_session_options *options)
{
    json_t *params = json_pack("{s:s,s:I}", "model", model, "max_tokens", (json_int_t)options->max_tokens);
    if (!params)
        return NULL;
    if (options->partials != FP9_DEFAULT)
        json_object_set_new(params, "partials", json_string(dtype_param(options->partials)));
    if (options->output_dtype != FP9_DEFAULT)
        json_object_set_new(params, "output_dtype", json_string(dtype_param(options->output_dtype)));
    if (options->one_shot)
        json_object_set_new(params, "one_shot", json_true());
    return params;
}

static int read_count(const json_t *result, const char *key, uint64_t low, uint64_t high, uint64_t *ret_value, struct err *err)
{
    const json_t *value = json_object_get(result, key);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || (uint64_t)number < low || (uint64_t)number > high)
        return err_set(err, -EPROTO, ERR_INTERNAL, "fp9d's answer: %s is no whole number from %llu to %llu", key, (unsigned long long)low,
                       (unsigned long long)high);
    *ret_value = (uint64_t)number;
    return 0;
}

/* Lays the places out; sizes are bounded by the limits above, so nothing here can overflow. */
static size_t lay_out(struct fp9_session *session)
{
    uint64_t tokens = session->max_tokens;
    session->ids_at = size_round_up(tokens * session->hidden_size * 2, ALIGN);
    session->weights_at = session->ids_at + size_round_up(tokens * session->top_k_max * 4, ALIGN);
    session->y_at = session->weights_at + size_round_up(tokens * session->top_k_max * 4, ALIGN);
    return session->y_at + size_round_up(tokens * session->hidden_size * dtype_bytes(session->output_dtype), ALIGN);
}

static int map_arena(struct fp9_session *session, int fd, struct err *err)
{
    struct stat stat;
    if (fd < 0)
        return err_set(err, -EPROTO, ERR_INTERNAL, "fp9d's answer came without the arena's descriptor (or this process has none left)");
    if (fstat(fd, &stat) < 0)
        return err_errno(err, "arena");
    /* Pages past the file's end would raise SIGBUS. */
    if (stat.st_size < 0 || (uint64_t)stat.st_size < session->arena_bytes)
        return err_set(err, -EPROTO, ERR_INTERNAL, "the arena has %lld bytes, fp9d announced %zu", (long long)stat.st_size,
                       session->arena_bytes);
    void *arena = mmap(NULL, session->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (arena == MAP_FAILED)
        return err_errno(err, "mapping an arena of %zu bytes", session->arena_bytes);
    session->arena = arena;
    return 0;
}

static int session_read(struct fp9_session *session, const json_t *result, int fd, struct err *err)
{
    uint64_t arena_bytes, hidden_size, top_k_max;
    int r = read_count(result, "session", 1, INT64_MAX, &session->id, err);
    if (r == 0)
        r = read_count(result, "hidden_size", 1, HIDDEN_MAX, &hidden_size, err);
    if (r == 0)
        r = read_count(result, "top_k_max", 0, TOP_K_MAX, &top_k_max, err);
    if (r == 0)
        r = read_count(result, "arena_bytes", 1, ARENA_MAX, &arena_bytes, err);
    if (r)
        return r;
    session->hidden_size = (uint32_t)hidden_size;
    session->top_k_max = (uint32_t)top_k_max;
    session->arena_bytes = arena_bytes;
    size_t needed = lay_out(session);
    if (arena_bytes < needed)
        return err_set(err, -EPROTO, ERR_INTERNAL, "the arena has %zu bytes, %u tokens need %zu", session->arena_bytes, session->max_tokens,
                       needed);
    return map_arena(session, fd, err);
}

static int session_open(struct fp9_conn *conn, const char *model, const struct fp9_session_options *options,
                        struct fp9_session **ret_session, struct err *err)
{
    if (options->max_tokens < 1 || options->max_tokens > 4096)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "max_tokens: %u is out of range; 1 to 4096 are right", options->max_tokens);
    if (options->partials > FP9_F32 || options->output_dtype > FP9_F32)
        return err_set(err, -EINVAL, ERR_BAD_DTYPE, "partials and output_dtype are FP9_BF16, FP9_F32 or FP9_DEFAULT");
    json_t *params = open_params(model, options);
    if (!params)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "the model's name is no UTF-8");
    _cleanup_(session_freep) struct fp9_session *session = calloc(1, sizeof *session);
    if (!session) {
        json_decref(params);
        return err_no_memory(err, "a session", sizeof *session);
    }
    session->conn = conn;
    session->max_tokens = options->max_tokens;
    session->output_dtype = options->output_dtype == FP9_F32 ? FP9_F32 : FP9_BF16;
    json_t *result = NULL;
    _cleanup_(closep) int fd = -1;
    int r = conn_call(conn, "session.open", params, &result, &fd, err);
    if (r)
        return r;
    r = session_read(session, result, fd, err);
    json_decref(result);
    if (r) {
        if (session->id)
            conn_call(conn, "session.close", json_pack("{s:I}", "session", (json_int_t)session->id), NULL, NULL, NULL);
        return r;
    }
    *ret_session = STEAL(session);
    return 0;
}

int fp9_session_open(struct fp9_conn *conn, const char *model, const struct fp9_session_options *options, struct fp9_session **ret_session,
                     struct fp9_error *error)
{
    struct err err = {0};
    return session_open(conn, model, options, ret_session, &err) ? conn_error(error, &err) : 0;
}

int fp9_session_close(struct fp9_session *session, struct fp9_error *error)
{
    if (!session)
        return 0;
    struct err err = {0};
    int r = conn_call(session->conn, "session.close", json_pack("{s:I}", "session", (json_int_t)session->id), NULL, NULL, &err);
    session_free(session);
    return r ? conn_error(error, &err) : 0;
}

void *fp9_session_arena(struct fp9_session *session)
{
    return session->arena;
}

size_t fp9_session_arena_size(const struct fp9_session *session)
{
    return session->arena_bytes;
}

uint32_t fp9_session_hidden_size(const struct fp9_session *session)
{
    return session->hidden_size;
}

uint32_t fp9_session_top_k_max(const struct fp9_session *session)
{
    return session->top_k_max;
}

enum fp9_dtype fp9_session_output_dtype(const struct fp9_session *session)
{
    return session->output_dtype;
}

void fp9_session_places(struct fp9_session *session, struct fp9_places *ret_places)
{
    *ret_places = (struct fp9_places){
        .x = (uint16_t *)(void *)session->arena,
        .topk_ids = (int32_t *)(void *)(session->arena + session->ids_at),
        .topk_weights = (float *)(void *)(session->arena + session->weights_at),
        .y = session->arena + session->y_at,
    };
}

static int check_step(const struct fp9_session *session, const struct fp9_step *step, struct err *err)
{
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

static void place(void *to, const void *from, size_t bytes)
{
    if (to != from)
        memcpy(to, from, bytes);
}

static json_t *step_params(const struct fp9_session *session, const struct fp9_step *step)
{
    json_int_t id = (json_int_t)session->id, y_at = (json_int_t)session->y_at;
    json_t *params = json_pack("{s:I,s:I,s:I,s:{s:i,s:s},s:{s:I,s:s}}", "session", id, "layer", (json_int_t)step->layer, "tokens",
                               (json_int_t)step->tokens, "x", "offset", 0, "dtype", "BF16", "y", "offset", y_at, "dtype",
                               session->output_dtype == FP9_BF16 ? "BF16" : "F32");
    if (params && step->top_k) {
        json_object_set_new(params, "top_k", json_integer(step->top_k));
        json_object_set_new(params, "topk_ids", json_pack("{s:I}", "offset", (json_int_t)session->ids_at));
        json_object_set_new(params, "topk_weights", json_pack("{s:I}", "offset", (json_int_t)session->weights_at));
    }
    return params;
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

static int step_run(struct fp9_session *session, const char *method, const struct fp9_step *step, struct fp9_timing *ret_timing,
                    struct err *err)
{
    uint64_t begin = clock_now_ns();
    struct fp9_places places;
    fp9_session_places(session, &places);
    int r = check_step(session, step, err);
    if (r)
        return r;
    size_t values = (size_t)step->tokens * session->hidden_size;
    place(places.x, step->x, values * sizeof *step->x);
    if (step->top_k) {
        place(places.topk_ids, step->topk_ids, (size_t)step->tokens * step->top_k * sizeof *step->topk_ids);
        place(places.topk_weights, step->topk_weights, (size_t)step->tokens * step->top_k * sizeof *step->topk_weights);
    }
    json_t *params = step_params(session, step), *result = NULL;
    if (!params)
        return err_no_memory(err, "a step", 0);
    r = conn_call(session->conn, method, params, &result, NULL, err);
    if (r)
        return r;
    if (step->y)
        place(step->y, places.y, values * dtype_bytes(session->output_dtype));
    if (ret_timing)
        *ret_timing = (struct fp9_timing){
            .job_time_us = (double)(clock_now_ns() - begin) / 1000.0,
            .judge_wait_us = number_or_nan(result, "judge_wait_us"),
            .duck_max_us = number_or_nan(result, "duck_max_us"),
            .judge_gap_us = number_or_nan(result, "judge_gap_us"),
            .judge_ratio = number_or_nan(result, "judge_ratio"),
            .params = count_or_zero(result, "params"),
            .weight_bytes = count_or_zero(result, "weight_bytes"),
            .tiles = count_or_zero(result, "tiles"),
            .avg_tile_batch = number_or_nan(result, "avg_tile_batch"),
        };
    json_decref(result);
    return 0;
}

int fp9_decode(struct fp9_session *session, const struct fp9_step *step, struct fp9_timing *ret_timing, struct fp9_error *error)
{
    struct err err = {0};
    return step_run(session, "decode", step, ret_timing, &err) ? conn_error(error, &err) : 0;
}

int fp9_prefill(struct fp9_session *session, const struct fp9_step *step, struct fp9_timing *ret_timing, struct fp9_error *error)
{
    struct err err = {0};
    return step_run(session, "prefill", step, ret_timing, &err) ? conn_error(error, &err) : 0;
}

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"
#include "proto/client/session.h"

#define HIDDEN_MAX (1u << 20)
#define TOP_K_MAX 4096u
#define LANES_READ_MAX 1024u
#define ARENA_MAX (UINT64_C(1) << 40)

static const char *dtype_param(enum fp9_dtype dtype)
{
    return dtype == FP9_BF16 ? "bf16" : "f32";
}

size_t session_value_bytes(const struct fp9_session *session)
{
    return session->output_dtype == FP9_BF16 ? 2 : 4;
}

/* A step in the ring goes with the ring. */
static void leave_call(struct fp9_conn *conn, struct core_call *call)
{
    if (call->step.in_ring)
        core_clear(call);
    else
        core_forget(conn, call);
}

/* Out of the connection's list; the answers of steps under way find nobody. */
static void leave(struct fp9_session *session)
{
    struct fp9_conn *conn = session->conn;
    if (!conn)
        return;
    for (struct fp9_session **at = &conn->sessions; *at; at = &(*at)->next) {
        if (*at == session) {
            *at = session->next;
            break;
        }
    }
    for (size_t i = 0; i < RPC_INFLIGHT_MAX; i++)
        if (conn->calls[i].id && conn->calls[i].step.session == session)
            leave_call(conn, &conn->calls[i]);
    session->conn = NULL;
}

static void session_free(struct fp9_session *session)
{
    leave(session);
    ring_release(&session->ring);
    if (session->arena)
        munmap(session->arena, session->mapped_bytes);
    free(session);
}
CLEANUP_DEFINE(struct fp9_session *, session_free);

void session_orphan(struct fp9_conn *conn)
{
    while (conn->sessions)
        leave(conn->sessions);
}

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
    if (options->batch)
        json_object_set_new(params, "priority", json_string("batch"));
    if (options->job_tokens) {
        json_object_set_new(params, "job", json_string(options->job_prefill ? "prefill" : "decode"));
        json_object_set_new(params, "job_layer", json_integer(options->job_layer));
        json_object_set_new(params, "job_tokens", json_integer((json_int_t)options->job_tokens));
    }
    if (options->lanes)
        json_object_set_new(params, "lanes", json_integer(options->lanes));
    if (options->path != FP9_PATH_JSON)
        json_object_set_new(params, "ring", json_true());
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
    session->ids_at = size_round_up(tokens * session->hidden_size * 2, SESSION_ALIGN);
    session->weights_at = session->ids_at + size_round_up(tokens * session->top_k_max * 4, SESSION_ALIGN);
    session->y_at = session->weights_at + size_round_up(tokens * session->top_k_max * 4, SESSION_ALIGN);
    session->lane_bytes = session->y_at + size_round_up(tokens * session->hidden_size * session_value_bytes(session), SESSION_ALIGN);
    return session->lanes * session->lane_bytes;
}

static int map_arena(struct fp9_session *session, int fd, struct err *err)
{
    struct stat stat;
    if (fd < 0)
        return err_set(err, -EPROTO, ERR_INTERNAL, "fp9d's answer came without the arena's descriptor (or this process has none left)");
    if (fstat(fd, &stat) < 0)
        return err_errno(err, "arena");
    /* Pages past the file's end would raise SIGBUS, now or when it shrinks. */
    if (stat.st_size < 0 || (uint64_t)stat.st_size < session->mapped_bytes)
        return err_set(err, -EPROTO, ERR_INTERNAL, "the arena has %lld bytes, fp9d announced %zu", (long long)stat.st_size,
                       session->mapped_bytes);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return err_set(err, -EPROTO, ERR_INTERNAL, "the arena is not sealed against shrinking");
    void *arena = mmap(NULL, session->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (arena == MAP_FAILED)
        return err_errno(err, "mapping an arena of %zu bytes", session->mapped_bytes);
    session->arena = arena;
    return 0;
}

/* Where the ring is, 0: there is none of a layout that this library knows. */
static int read_ring(struct fp9_session *session, const json_t *result, int doorbell, uint64_t *ret_offset, struct err *err)
{
    const json_t *ring = json_object_get(result, "ring");
    uint64_t offset, bytes, version, slots;
    *ret_offset = 0;
    if (!json_is_object(ring))
        return 0;
    int r = read_count(ring, "version", 1, UINT32_MAX, &version, err);
    if (r || version != RING_VERSION)
        return r;
    r = read_count(ring, "offset", session->arena_bytes, ARENA_MAX, &offset, err);
    if (r == 0)
        r = read_count(ring, "bytes", sizeof(struct ring), ARENA_MAX, &bytes, err);
    if (r == 0)
        r = read_count(ring, "slots", RING_SLOTS, RING_SLOTS, &slots, err);
    if (r == 0 && (offset % SESSION_ALIGN || doorbell < 0))
        r = err_set(err, -EPROTO, ERR_INTERNAL, "fp9d's answer: the ring %s",
                    doorbell < 0 ? "came without its doorbell (or this process has no descriptors left)" : "is not aligned");
    if (r)
        return r;
    session->mapped_bytes = offset + bytes;
    *ret_offset = offset;
    return 0;
}

static int session_read(struct fp9_session *session, const json_t *result, int fd, int *doorbell, struct err *err)
{
    uint64_t arena_bytes, hidden_size, top_k_max, lanes = 1, ring_at = 0;
    int r = read_count(result, "session", 1, INT64_MAX, &session->id, err);
    if (r == 0)
        r = read_count(result, "hidden_size", 1, HIDDEN_MAX, &hidden_size, err);
    if (r == 0)
        r = read_count(result, "top_k_max", 0, TOP_K_MAX, &top_k_max, err);
    if (r == 0)
        r = read_count(result, "arena_bytes", 1, ARENA_MAX, &arena_bytes, err);
    if (r == 0 && json_object_get(result, "lanes"))
        r = read_count(result, "lanes", 1, LANES_READ_MAX, &lanes, err);
    if (r)
        return r;
    if (json_object_get(result, "job"))
        r = read_count(result, "job", 1, INT64_MAX, &session->job, err);
    if (r)
        return r;
    session->hidden_size = (uint32_t)hidden_size;
    session->top_k_max = (uint32_t)top_k_max;
    session->arena_bytes = session->mapped_bytes = arena_bytes;
    session->lanes = (uint32_t)lanes;
    size_t needed = lay_out(session);
    if (arena_bytes < needed)
        return err_set(err, -EPROTO, ERR_INTERNAL, "the arena has %zu bytes, %u token%s in each of %u lane%s need %zu",
                       session->arena_bytes, session->max_tokens, size_plural(session->max_tokens), session->lanes,
                       size_plural(session->lanes), needed);
    r = read_ring(session, result, *doorbell, &ring_at, err);
    if (r == 0)
        r = map_arena(session, fd, err);
    if (r == 0 && ring_at)
        ring_init(&session->ring, (struct ring *)(void *)(session->arena + ring_at), STEAL_FD(*doorbell), session->spin_us);
    return r;
}

static int session_request(struct fp9_conn *conn, const char *model, const struct fp9_session_options *options, uint64_t *ret_id,
                           struct err *err)
{
    if (options->max_tokens < 1 || options->max_tokens > 4096)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "max_tokens: %u is out of range; 1 to 4096 are right", options->max_tokens);
    if (options->partials > FP9_F32 || options->output_dtype > FP9_F32)
        return err_set(err, -EINVAL, ERR_BAD_DTYPE, "partials and output_dtype are FP9_BF16, FP9_F32 or FP9_DEFAULT");
    if (options->lanes > RPC_LANES_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "lanes: %u is out of range; 1 to %d are right", options->lanes, RPC_LANES_MAX);
    if (options->path > FP9_PATH_RING)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "path is FP9_PATH_DEFAULT, FP9_PATH_JSON or FP9_PATH_RING");
    json_t *params = open_params(model, options);
    if (!params)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "the model's name is no UTF-8");
    _cleanup_(session_freep) struct fp9_session *session = calloc(1, sizeof *session);
    if (!session) {
        json_decref(params);
        return err_no_memory(err, "a session", sizeof *session);
    }
    session->max_tokens = options->max_tokens;
    session->spin_us = options->spin_us;
    session->ring_needed = options->path == FP9_PATH_RING;
    session->output_dtype = options->output_dtype == FP9_F32 ? FP9_F32 : FP9_BF16;
    uint64_t id = 0;
    int r = core_request(conn, "session.open", params, &id, err);
    if (r)
        return r;
    core_find(conn, id)->opening = STEAL(session);
    *ret_id = id;
    return 0;
}

static int close_request(struct fp9_conn *conn, uint64_t session, uint64_t *ret_id, struct err *err)
{
    return core_request(conn, "session.close", json_pack("{s:I}", "session", (json_int_t)session), ret_id, err);
}

static int session_answer(struct fp9_conn *conn, uint64_t id, struct fp9_session **ret_session, struct err *err)
{
    struct core_call *call = id ? core_find(conn, id) : NULL;
    if (!call || !call->opening)
        return err_set(err, -ENOENT, ERR_NO_SUCH, "no session.open %llu is waiting", (unsigned long long)id);
    if (!call->done && !conn->broken.code)
        return -EAGAIN;
    _cleanup_(session_freep) struct fp9_session *session = STEAL(call->opening);
    json_t *result = NULL;
    _cleanup_(closep) int fd = -1, doorbell = STEAL_FD(call->doorbell);
    int r = core_answer(conn, id, &result, &fd, err);
    if (r)
        return r;
    r = session_read(session, result, fd, &doorbell, err);
    if (r == 0 && session->ring_needed && !session->ring.memory)
        r = err_set(err, -ENOTSUP, ERR_NOT_READY, "fp9d offers no step ring that this library knows");
    json_decref(result);
    if (r) {
        /* fp9d takes it for open. */
        if (session->id && close_request(conn, session->id, &id, NULL) == 0)
            core_forget(conn, core_find(conn, id));
        return r;
    }
    session->conn = conn;
    session->next = conn->sessions;
    conn->sessions = session;
    *ret_session = STEAL(session);
    return 0;
}

int fp9_session_request(struct fp9_conn *conn, const char *model, const struct fp9_session_options *options, uint64_t *ret_id,
                        struct fp9_error *error)
{
    struct err err = {0};
    return session_request(conn, model, options, ret_id, &err) ? conn_error(error, &err) : 0;
}

int fp9_session_answer(struct fp9_conn *conn, uint64_t id, struct fp9_session **ret_session, struct fp9_error *error)
{
    struct err err = {0};
    int r = session_answer(conn, id, ret_session, &err);
    return r == 0 || r == -EAGAIN ? r : conn_error(error, &err);
}

int fp9_session_open(struct fp9_conn *conn, const char *model, const struct fp9_session_options *options, struct fp9_session **ret_session,
                     struct fp9_error *error)
{
    struct err err = {0};
    uint64_t id;
    int r = conn_socket(conn, &err);
    if (r == 0)
        r = session_request(conn, model, options, &id, &err);
    if (r == 0) {
        conn_until(conn, id);
        r = session_answer(conn, id, ret_session, &err);
        if (r)
            fp9_process(conn, 0, NULL); /* sends what closes a session that could not be taken */
    }
    return r ? conn_error(error, &err) : 0;
}

int fp9_session_close_request(struct fp9_session *session, uint64_t *ret_id, struct fp9_error *error)
{
    if (!session)
        return 0;
    struct err err = {0};
    struct fp9_conn *conn = session->conn;
    uint64_t id = 0;
    int r = conn ? close_request(conn, session->id, &id, &err) : 0;
    session_free(session);
    if (r)
        return conn_error(error, &err);
    if (ret_id)
        *ret_id = id;
    else if (conn)
        core_forget(conn, core_find(conn, id));
    return 0;
}

int fp9_session_close(struct fp9_session *session, struct fp9_error *error)
{
    if (!session)
        return 0;
    struct err err = {0};
    struct fp9_conn *conn = session->conn;
    json_int_t id = (json_int_t)session->id;
    session_free(session);
    int r = conn ? conn_call(conn, "session.close", json_pack("{s:I}", "session", id), NULL, NULL, &err) : 0;
    return r ? conn_error(error, &err) : 0;
}

uint64_t fp9_session_id(const struct fp9_session *session)
{
    return session->id;
}

uint64_t fp9_session_job(const struct fp9_session *session)
{
    return session->job;
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

uint32_t fp9_session_lanes(const struct fp9_session *session)
{
    return session->lanes;
}

bool fp9_session_has_ring(const struct fp9_session *session)
{
    return session->ring.memory != NULL;
}

void fp9_session_lane_places(struct fp9_session *session, uint32_t lane, struct fp9_places *ret_places)
{
    uint8_t *base = session->arena + (lane < session->lanes ? lane : 0) * session->lane_bytes;
    *ret_places = (struct fp9_places){
        .x = (uint16_t *)(void *)base,
        .topk_ids = (int32_t *)(void *)(base + session->ids_at),
        .topk_weights = (float *)(void *)(base + session->weights_at),
        .y = base + session->y_at,
    };
}

void fp9_session_places(struct fp9_session *session, struct fp9_places *ret_places)
{
    fp9_session_lane_places(session, 0, ret_places);
}

#include "daemon/head/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/head/metrics.h"
#include "daemon/head/ring.h"
#include "kernels/kernels.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"

struct session *session_find(const struct head *head, uint64_t id)
{
    for (struct session *session = head->sessions; session; session = session->next)
        if (session->id == id)
            return session;
    return NULL;
}

static void lane_release(struct session_lane *lane)
{
    outgoing_unref(lane->frame);
    free(lane->partials);
    free(lane->sum);
    free(lane->ids);
    free(lane->weights);
    free(lane->x_copy);
    free(lane->y_copy);
    json_decref(lane->step_id);
    trace_free(lane->trace);
}

static void session_free(struct head *head, struct session *session)
{
    ring_free(head, session->ring, NULL);
    if (session->arena)
        munmap(session->arena, session->mapped_bytes);
    closep(&session->arena_fd);
    for (uint32_t i = 0; i < session->lane_count; i++)
        lane_release(&session->lanes[i]);
    json_decref(session->open_id);
    free(session);
}

/* One memfd of which fp9d holds a mapping; sealed, so that the client cannot take the pages away under it. Every factor of its size has a
 * limit, so nothing overflows. */
static int make_arena(struct session *session, bool ring, struct err *err)
{
    uint64_t tokens = session->max_tokens, row = session->hidden;
    uint64_t step_bytes = size_round_up(tokens * row * sizeof(uint16_t), SESSION_ALIGN) +
                          2 * size_round_up(tokens * session->top_k_max * sizeof(int32_t), SESSION_ALIGN) +
                          size_round_up(tokens * row * sizeof(float), SESSION_ALIGN);
    session->arena_bytes = size_round_up(session->lane_count * step_bytes, 4096);
    session->mapped_bytes = session->arena_bytes + (ring ? ring_bytes() : 0);
    session->arena_fd = memfd_create("fp9-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (session->arena_fd < 0 || ftruncate(session->arena_fd, (off_t)session->mapped_bytes) < 0 ||
        fcntl(session->arena_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return err_errno(err, "arena of %llu bytes", (unsigned long long)session->arena_bytes);
    void *arena = mmap(NULL, session->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, session->arena_fd, 0);
    if (arena == MAP_FAILED)
        return err_errno(err, "arena of %llu bytes", (unsigned long long)session->arena_bytes);
    session->arena = arena;
    return 0;
}

static int make_buffers(const struct session *session, struct session_lane *lane, struct err *err)
{
    size_t chunk = (size_t)session->chunk_max * session->hidden, pairs = (size_t)session->max_tokens * session->top_k_max;
    lane->partials = malloc(session->tp * chunk * session->partial_size);
    lane->sum = malloc(chunk * sizeof *lane->sum);
    lane->ids = calloc(pairs ? pairs : 1, sizeof *lane->ids);
    lane->weights = calloc(pairs ? pairs : 1, sizeof *lane->weights);
    if (!lane->partials || !lane->sum || !lane->ids || !lane->weights)
        return err_no_memory(err, "session buffers", session->tp * chunk * session->partial_size);
    lane->frame = outgoing_new();
    return 0;
}

int session_new(struct head *head, const struct core_session *core_session, const json_t *open_id, bool ring, struct err *err)
{
    struct session *session = calloc(1, sizeof *session);
    if (!session)
        return err_no_memory(err, "session", sizeof *session);
    *session = (struct session){
        .id = core_session->id,
        .client = core_session->client,
        .hidden = head->core->models[core_session->model].arch->hidden,
        .tp = core_session->tp,
        .top_k_max = core_session->top_k_max,
        .max_tokens = core_session->max_tokens,
        .chunk_max = core_session->chunk_max,
        .lane_count = core_session->lanes,
        .partial_size = core_session->partials == MSG_F32 ? sizeof(float) : sizeof(uint16_t),
        .output = core_session->output,
        .open_id = json_incref((json_t *)open_id),
        .arena_fd = -1,
    };
    int r = make_arena(session, ring, err);
    for (uint32_t i = 0; r == 0 && i < session->lane_count; i++)
        r = make_buffers(session, &session->lanes[i], err);
    if (r == 0 && ring)
        r = ring_new(head, session, &session->ring, err);
    if (r < 0) {
        session_free(head, session);
        return r;
    }
    session->next = head->sessions;
    head->sessions = session;
    return 0;
}

void session_forget(struct head *head, uint64_t id)
{
    for (struct session **at = &head->sessions; *at; at = &(*at)->next) {
        struct session *session = *at;
        if (session->id != id)
            continue;
        *at = session->next;
        session_free(head, session);
        return;
    }
}

void session_free_all(struct head *head)
{
    while (head->sessions) {
        struct session *next = head->sessions->next;
        session_free(head, head->sessions);
        head->sessions = next;
    }
}

/* ---- frames ---- */

void session_send_open(struct head *head, uint32_t duck, uint64_t id)
{
    const struct core_session *session = core_session_find(head->core, id);
    if (!session)
        return;
    struct msg_session_open msg = {
        .session = id,
        .max_tokens = session->chunk_max,
        .top_k_max = session->top_k_max,
        .partials = session->partials,
        .one_shot = session->one_shot,
    };
    memcpy(msg.model_key, session->key, DIGEST_SIZE);
    struct outgoing *out = outgoing_new();
    if (msg_session_open_encode(&out->buf, id, &msg) < 0)
        abort();
    peer_send(head->peers[duck], out, false);
    outgoing_unref(out);
}

void session_send_close(struct head *head, uint32_t duck, uint64_t id)
{
    struct outgoing *out = outgoing_new();
    if (msg_session_encode(&out->buf, WIRE_SESSION_CLOSE, id, id) < 0)
        abort();
    peer_send(head->peers[duck], out, false);
    outgoing_unref(out);
}

void session_send_step_cancel(struct head *head, uint32_t duck, uint64_t step)
{
    if (peer_withdraw_step(head->peers[duck], step))
        return;
    struct outgoing *out = outgoing_new();
    if (msg_empty_encode(&out->buf, WIRE_STEP_CANCEL, step) < 0)
        abort();
    peer_send(head->peers[duck], out, false);
    outgoing_unref(out);
}

/* A frame may still be leaving for a slow or dying duck of an aborted step; it is never overwritten. */
static struct outgoing *fresh_frame(struct session_lane *lane)
{
    if (lane->frame->refs > 1) {
        outgoing_unref(lane->frame);
        lane->frame = outgoing_new();
    }
    lane->frame->buf.length = 0;
    return lane->frame;
}

/* Up to the next rank that was asked. */
static void pass_unasked(const struct session *session, struct session_lane *lane, const struct core_step *step)
{
    while (lane->summed < session->tp && !step->asked[lane->summed])
        lane->summed++;
}

/* One frame goes to all ranks: every duck must know the flag. */
static bool batch_flag(const struct head *head, const struct core_session *session)
{
    bool known = true;
    for (uint32_t rank = 0; rank < session->tp; rank++)
        known &= (head->core->ducks[session->duck_of_rank[rank]].hello.features & WIRE_FEATURE_BATCH) != 0;
    return session->batch && known;
}

void session_send_chunk(struct head *head, uint64_t id, uint32_t lane_index)
{
    struct session *session = session_find(head, id);
    const struct core_session *core_session = core_session_find(head->core, id);
    if (!session || !core_session || !core_session->steps[lane_index].running)
        return;
    struct session_lane *lane = &session->lanes[lane_index];
    const struct core_step *step = &core_session->steps[lane_index];
    struct msg_step msg = {
        .session = id,
        .layer = step->layer,
        .tokens = step->chunk_tokens,
        .top_k = step->top_k,
        .hidden = session->hidden,
        .prefill = step->prefill,
        .batch = batch_flag(head, core_session),
    };
    memset(lane->sum, 0, step->chunk_tokens * session->hidden * sizeof *lane->sum);
    lane->summed = 0;
    pass_unasked(session, lane, step);
    if (!step->asked_count)
        return; /* nobody holds what it asks for: its sum is there */
    struct outgoing *out = fresh_frame(lane);
    uint8_t *x, *ids, *weights;
    int r = msg_step_encode(&out->buf, step->id, &msg, &x, &ids, &weights);
    if (r < 0) {
        struct err err = {0};
        err_set(&err, r, ERR_NO_MEMORY, "step frame of %u tokens cannot be made: %s", step->chunk_tokens, strerror(-r));
        core_step_failed(head->core, clock_now_ns(), core_session->duck_of_rank[lane->summed], id, step->id, &err);
        return;
    }
    size_t row = session->hidden * sizeof(uint16_t), first = (size_t)step->chunk_first * step->top_k,
           pairs = (size_t)step->chunk_tokens * step->top_k;
    memcpy(x, lane->x + step->chunk_first * row, step->chunk_tokens * row);
    if (pairs) {
        memcpy(ids, lane->ids + first, pairs * sizeof(int32_t));
        memcpy(weights, lane->weights + first, pairs * sizeof(float));
    }
    core_step_out(head->core, clock_now_ns(), id, lane_index);
    trace_chunk(lane->trace, step);
    for (uint32_t rank = 0; rank < core_session->tp; rank++) {
        if (!step->asked[rank])
            continue;
        peer_send_step(head->peers[core_session->duck_of_rank[rank]], out, core_session->ranks[rank] == CORE_RANK_OPEN);
        trace_sent(lane->trace, rank);
    }
}

static int check_result(const struct session *session, const struct core_session *core_session, const struct core_step *step,
                        const struct msg_step_done *done, struct err *err)
{
    if (done->dtype != core_session->partials || done->tokens != step->chunk_tokens || done->hidden != session->hidden)
        return err_set(err, -EPROTO, ERR_INTERNAL, "its partial is of %u tokens of %u, dtype %d; expected %u of %u, dtype %d", done->tokens,
                       done->hidden, (int)done->dtype, step->chunk_tokens, session->hidden, (int)core_session->partials);
    return 0;
}

/* The session and lane whose running step has this id. */
static struct session *session_of_step(const struct head *head, uint64_t step, const struct core_session **ret_core, uint32_t *ret_lane)
{
    for (struct session *session = head->sessions; session; session = session->next) {
        const struct core_session *core_session = core_session_find(head->core, session->id);
        for (uint32_t lane = 0; core_session && lane < session->lane_count; lane++) {
            if (!core_session->steps[lane].running || core_session->steps[lane].id != step)
                continue;
            *ret_core = core_session;
            *ret_lane = lane;
            return session;
        }
    }
    return NULL;
}

static void add_partial(struct session *session, struct session_lane *lane, const struct core_step *step, const uint8_t *partial,
                        size_t count)
{
    if (session->partial_size == sizeof(float))
        kernels_add_f32(lane->sum, (const float *)(const void *)partial, count);
    else
        kernels_add_bf16(lane->sum, (const uint16_t *)(const void *)partial, count);
    lane->summed++;
    pass_unasked(session, lane, step);
}

/* kernels/README.md section 6: in rank order, whatever the order of arrival. A rank that was not asked would have answered +0 for every
 * token, which changes no sum that began with +0. The rank whose turn it is is added from where its frame lies;
 * one that comes early waits in `partials`. */
static void take_partial(struct session *session, struct session_lane *lane, const struct core_step *step, uint32_t rank,
                         const uint8_t *partial, size_t count)
{
    size_t stride = (size_t)session->chunk_max * session->hidden * session->partial_size;
    if (rank != lane->summed) {
        memcpy(lane->partials + rank * stride, partial, count * session->partial_size);
        return;
    }
    add_partial(session, lane, step, partial, count);
    while (lane->summed < session->tp && step->answered[lane->summed])
        add_partial(session, lane, step, lane->partials + lane->summed * stride, count);
}

void session_take_result(struct head *head, uint32_t duck, const struct frame *frame)
{
    uint64_t now = clock_now_ns();
    const struct core_session *core_session;
    uint32_t lane;
    struct session *session = session_of_step(head, frame->request, &core_session, &lane);
    uint32_t rank = session ? core_session_rank(core_session, duck) : CORE_NONE;
    if (rank == CORE_NONE || core_session->steps[lane].answered[rank])
        return; /* late: of a step that was given up */
    uint64_t id = core_session->id;
    struct err err; /* not cleared: this is the step path */
    if (frame->type == WIRE_FAIL) {
        struct err theirs;
        if (msg_fail_decode(frame, &theirs, &err) < 0)
            theirs = err;
        core_step_failed(head->core, now, duck, id, frame->request, &theirs);
        return;
    }
    struct msg_step_done done;
    int r = msg_step_done_decode(frame, &done, &err);
    if (r == 0)
        r = check_result(session, core_session, &core_session->steps[lane], &done, &err);
    if (r < 0) {
        core_duck_broken(head->core, now, duck, err.message);
        return;
    }
    if (done.tokens)
        take_partial(session, &session->lanes[lane], &core_session->steps[lane], rank, done.partial, (size_t)done.tokens * done.hidden);
    metrics_answer(head, now, duck, &core_session->steps[lane], &done);
    trace_answered(session->lanes[lane].trace, now, rank, done.duck_time_ns);
    core_step_result(head->core, now, duck, id, frame->request, &done);
}

void session_sum_chunk(struct head *head, uint64_t id, uint32_t lane_index)
{
    struct session *session = session_find(head, id);
    const struct core_session *core_session = core_session_find(head->core, id);
    if (!session || !core_session || !core_session->steps[lane_index].running)
        return; /* its memory may be another step's by now */
    struct session_lane *lane = &session->lanes[lane_index];
    const struct core_step *step = &core_session->steps[lane_index];
    size_t count = (size_t)step->chunk_tokens * session->hidden;
    size_t first = (size_t)step->chunk_first * session->hidden;
    if (lane->y_dtype == MSG_F32) {
        kernels_canonical(lane->sum, count);
        memcpy(lane->y + first * sizeof(float), lane->sum, count * sizeof(float));
    } else {
        kernels_to_bf16((uint16_t *)lane->y + first, lane->sum, count);
    }
    trace_summed(lane->trace);
    core_step_summed(head->core, clock_now_ns(), id, lane_index);
}

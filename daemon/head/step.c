#include "daemon/head/step.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/deadline.h"
#include "daemon/head/ring.h"
#include "daemon/head/rpc.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"

static const char *const names[SESSION_TENSORS] = {"x", "topk_ids", "topk_weights", "y"};

static int shape_err(struct err *err, enum session_tensor which, const char *what, uint64_t got, uint64_t want)
{
    err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %s %" PRIu64 "; %" PRIu64 " would be right", names[which], what, got, want);
    err_value_str(err, "tensor", names[which]);
    err_value_int(err, "got", (long long)got);
    err_value_int(err, "expected", (long long)want);
    return -EINVAL;
}

/* Where a tensor of so many bytes is in the arena. */
static int locate(const struct session *session, const struct step_call *call, enum session_tensor which, uint64_t bytes,
                  struct session_range *ret_range, struct err *err)
{
    uint64_t offset = call->tensors[which].offset;
    if (offset % SESSION_ALIGN)
        return shape_err(err, which, "offset modulo 64 is", offset % SESSION_ALIGN, 0);
    if (offset > session->arena_bytes || bytes > session->arena_bytes - offset) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %" PRIu64 " bytes at offset %" PRIu64 " end past the arena of %" PRIu64 " bytes",
                names[which], bytes, offset, session->arena_bytes);
        err_value_str(err, "tensor", names[which]);
        err_value_int(err, "arena_bytes", (long long)session->arena_bytes);
        return -EINVAL;
    }
    *ret_range = (struct session_range){.begin = offset, .end = offset + bytes};
    return 0;
}

static bool overlap(const struct session_range *a, const struct session_range *b)
{
    return a->begin < b->end && b->begin < a->end;
}

/* What fp9d writes, y, lies clear of all other tensors: the step's own, and those of the session's steps in flight, whose x may still be
 * read and whose y may be written at the same time. Inputs may share memory with inputs. */
static int check_overlaps(const struct core *core, const struct session *session, uint32_t lane,
                          const struct session_range tensors[SESSION_TENSORS], struct err *err)
{
    for (int i = 0; i < SESSION_Y; i++) {
        if (!overlap(&tensors[SESSION_Y], &tensors[i]))
            continue;
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "y overlaps %s in the arena", names[i]);
        err_value_str(err, "tensor", names[i]);
        return -EINVAL;
    }
    const struct core_session *core_session = core_session_find((struct core *)core, session->id);
    for (uint32_t other = 0; other < session->lane_count; other++) {
        if (other == lane || !session->lanes[other].busy)
            continue;
        for (int i = 0; i < SESSION_TENSORS; i++) {
            for (int j = i == SESSION_Y ? 0 : SESSION_Y; j < SESSION_TENSORS; j++) {
                if (!overlap(&tensors[i], &session->lanes[other].tensors[j]))
                    continue;
                err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s overlaps %s of the step of layer %u that is in flight", names[i], names[j],
                        core_session->steps[other].layer);
                err_value_str(err, "tensor", names[i]);
                return -EINVAL;
            }
        }
    }
    return 0;
}

/* Decodes text of exactly `bytes` into `to`. */
static int take_b64(const struct step_call *call, enum session_tensor which, void *to, uint64_t bytes, struct err *err)
{
    const char *text = call->tensors[which].text;
    if (!text)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: has neither offset nor b64", names[which]);
    if (bytes > B64_BYTES_MAX)
        return shape_err(err, which, "is too long for b64; bytes", bytes, B64_BYTES_MAX);
    int r = b64_decode(text, strlen(text), to, bytes, err);
    return r < 0 ? err_prefix(err, "%s", names[which]) : 0;
}

static int make_copy(uint8_t **copy, struct err *err)
{
    if (!*copy)
        *copy = malloc(B64_BYTES_MAX);
    return *copy ? 0 : err_no_memory(err, "b64 tensors", B64_BYTES_MAX);
}

static int check_ids(const int32_t *ids, uint32_t tokens, uint32_t top_k, uint32_t experts, struct err *err)
{
    for (uint32_t token = 0; token < tokens; token++) {
        for (uint32_t slot = 0; slot < top_k; slot++) {
            int32_t id = ids[(size_t)token * top_k + slot];
            if (id == -1)
                continue;
            if (id < 0 || (uint32_t)id >= experts) {
                char known[40] = "0 is the only expert";
                if (experts > 1)
                    snprintf(known, sizeof known, "experts are 0 to %u", experts - 1);
                err_set(err, -EINVAL, ERR_BAD_EXPERT, "topk_ids: token %u, slot %u holds %d; %s, -1 is an empty slot", token, slot, id,
                        known);
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
static int top_k_of(const struct session *session, const struct step_call *call, uint32_t *ret_top_k, struct err *err)
{
    *ret_top_k = 0;
    const struct step_tensor *ids = &call->tensors[SESSION_IDS];
    if (!ids->given)
        return 0;
    uint64_t k = call->top_k;
    for (uint32_t fits = 1; !k && ids->text && fits <= session->top_k_max; fits++)
        if (strlen(ids->text) == B64_TEXT_LENGTH((size_t)call->tokens * fits * sizeof(int32_t)))
            k = fits;
    if (!k)
        k = session->top_k_max;
    if (k > session->top_k_max)
        return shape_err(err, SESSION_IDS, "more columns than the session's top_k_max:", k, session->top_k_max);
    *ret_top_k = (uint32_t)k;
    return 0;
}

/* ids and weights are copied whole before anything looks at them. */
static int take_routing(const struct session *session, struct session_lane *lane, const struct step_call *call,
                        struct session_range tensors[SESSION_TENSORS], uint32_t *ret_top_k, struct err *err)
{
    bool given[] = {call->tensors[SESSION_IDS].given, call->tensors[SESSION_WEIGHTS].given};
    if (given[0] != given[1])
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s is given and %s is not; they go together",
                       names[given[0] ? SESSION_IDS : SESSION_WEIGHTS], names[given[0] ? SESSION_WEIGHTS : SESSION_IDS]);
    int r = top_k_of(session, call, ret_top_k, err);
    if (r < 0 || !*ret_top_k)
        return r;
    uint64_t bytes = (uint64_t)call->tokens * *ret_top_k * sizeof(int32_t);
    void *const to[] = {lane->ids, lane->weights};
    for (int i = 0; i < 2; i++) {
        enum session_tensor which = i ? SESSION_WEIGHTS : SESSION_IDS;
        if (call->tensors[which].b64)
            r = take_b64(call, which, to[i], bytes, err);
        else
            r = locate(session, call, which, bytes, &tensors[which], err);
        if (r < 0)
            return r;
        if (!call->tensors[which].b64)
            memcpy(to[i], session->arena + tensors[which].begin, bytes);
    }
    return 0;
}

static int take_x(const struct session *session, struct session_lane *lane, const struct step_call *call,
                  struct session_range tensors[SESSION_TENSORS], struct err *err)
{
    uint64_t bytes = (uint64_t)call->tokens * session->hidden * sizeof(uint16_t);
    if (call->tensors[SESSION_X].b64) {
        int r = make_copy(&lane->x_copy, err);
        lane->x = lane->x_copy;
        return r < 0 ? r : take_b64(call, SESSION_X, lane->x_copy, bytes, err);
    }
    lane->x = session->arena + call->tensors[SESSION_X].offset;
    return locate(session, call, SESSION_X, bytes, &tensors[SESSION_X], err);
}

static int take_y(const struct session *session, struct session_lane *lane, const struct step_call *call,
                  struct session_range tensors[SESSION_TENSORS], struct err *err)
{
    lane->y_dtype = call->y_dtype_given ? call->y_dtype : session->output;
    uint64_t bytes = (uint64_t)call->tokens * session->hidden * (lane->y_dtype == MSG_F32 ? sizeof(float) : sizeof(uint16_t));
    lane->y_b64 = !call->tensors[SESSION_Y].given || call->tensors[SESSION_Y].b64;
    if (!lane->y_b64) {
        lane->y = session->arena + call->tensors[SESSION_Y].offset;
        return locate(session, call, SESSION_Y, bytes, &tensors[SESSION_Y], err);
    }
    if (bytes > B64_BYTES_MAX)
        return shape_err(err, SESSION_Y, "is too long for b64; bytes", bytes, B64_BYTES_MAX);
    int r = make_copy(&lane->y_copy, err);
    lane->y = lane->y_copy;
    return r;
}

static int take(struct head *head, struct session *session, const struct step_call *call, uint32_t *ret_lane, struct err *err)
{
    struct core *core = head->core;
    int r = core_step_check(core, session->id, call->layer, call->tokens, err);
    if (r < 0)
        return r;
    const struct core_session *core_session = core_session_find(core, session->id);
    uint32_t index = core_session_lane(core_session), top_k = 0;
    struct session_lane *lane = &session->lanes[index];
    struct session_range tensors[SESSION_TENSORS] = {0};
    r = take_routing(session, lane, call, tensors, &top_k, err);
    if (r == 0)
        r = take_x(session, lane, call, tensors, err);
    if (r == 0)
        r = take_y(session, lane, call, tensors, err);
    if (r == 0)
        r = check_overlaps(core, session, index, tensors, err);
    if (r == 0)
        r = check_ids(lane->ids, call->tokens, top_k, core->models[core_session->model].arch->experts, err);
    if (r == 0)
        r = core_step_submit_routed(core, clock_now_ns(), session->id, call->layer, call->tokens, top_k, lane->ids, call->prefill, err);
    if (r < 0)
        return r;
    memcpy(lane->tensors, tensors, sizeof tensors);
    lane->busy = true;
    lane->in_ring = false;
    deadline_set(head, session->id, index, call->deadline_ms);
    *ret_lane = index;
    return 0;
}

int step_take(struct head *head, struct session *session, const struct step_call *call, uint32_t *ret_lane, struct err *err)
{
    int r = take(head, session, call, ret_lane, err);
    const struct core_session *core_session = r < 0 ? core_session_find(head->core, session->id) : NULL;
    if (core_session)
        core_batch_trouble(head->core, core_session, err); /* if its client leaves now, this is why */
    return r;
}

void step_cancel(struct head *head, const struct session *session, uint32_t lane)
{
    const struct core_session *core_session = core_session_find(head->core, session->id);
    char why[64];
    snprintf(why, sizeof why, "its step of layer %u was cancelled by its client", core_session ? core_session->steps[lane].layer : 0);
    core_step_cancel(head->core, session->id, lane, why);
}

/* The lane is the next step's. NULL: nobody waits for an answer. */
static struct session *end_step(struct head *head, uint64_t id, uint32_t lane, const struct core_step **ret_step)
{
    struct session *session = session_find(head, id);
    const struct core_session *core_session = core_session_find(head->core, id);
    if (!session || !core_session || !session->lanes[lane].busy)
        return NULL;
    session->lanes[lane].busy = false;
    *ret_step = &core_session->steps[lane];
    return session;
}

void step_done(struct head *head, uint64_t id, uint32_t lane)
{
    const struct core_step *step;
    struct session *session = end_step(head, id, lane, &step);
    if (session && session->lanes[lane].in_ring)
        ring_step_done(head, session, lane, step);
    else if (session)
        rpc_step_done(head, session, lane, step);
}

void step_failed(struct head *head, uint64_t id, uint32_t lane)
{
    const struct core_step *step;
    struct session *session = end_step(head, id, lane, &step);
    if (session && session->lanes[lane].in_ring)
        ring_step_failed(head, session, lane, &step->err);
    else if (session)
        rpc_step_failed(head, session, lane, &step->err);
}

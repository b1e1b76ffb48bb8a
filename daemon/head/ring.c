#include "daemon/head/ring.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "daemon/head/control.h"
#include "daemon/head/metrics.h"
#include "daemon/head/step.h"
#include "proto/base/clock.h"
#include "proto/base/futex.h"
#include "proto/base/log.h"
#include "proto/base/size.h"
#include "proto/control/ring.h"
#include "proto/control/rpc.h"

_Static_assert(RING_SLOTS >= CORE_LANES_MAX, "a client must be able to use all lanes");

struct ring_host {
    struct ring_host *next; /* of the head's list, that whose turn is next first */
    struct session *session;
    struct ring *memory; /* the client may write to it at any time */
    int doorbell;        /* eventfd */
    struct loop_io *io;
    /* what is relied on, whatever stands in the memory */
    uint32_t taken, completed, cancels, done[RING_SLOTS];
    bool in_flight[RING_SLOTS];
    bool parked; /* memory->parked was set */
    bool active; /* a step was taken or answered since the loop slept */
    bool ended;
};

uint64_t ring_bytes(void)
{
    return size_round_up(sizeof(struct ring), 4096);
}

int ring_doorbell(const struct ring_host *ring)
{
    return ring->doorbell;
}

/* ---- answers ---- */

static void write_text(struct ring_text *text, const struct err *err)
{
    snprintf(text->name, sizeof text->name, "%s", err_name_text(err->name));
    memcpy(text->message, err->message, sizeof text->message);
    memcpy(text->values, err->values, sizeof text->values);
}

/* What was written before it is there for whoever sees it; then those who wait are woken. */
static void tell(struct head *head, struct ring_host *ring)
{
    struct ring *memory = ring->memory;
    atomic_store_explicit(&memory->completed, ++ring->completed, memory_order_seq_cst);
    uint32_t waits = atomic_load_explicit(&memory->waits, memory_order_seq_cst);
    if (waits == RING_WAITS_FUTEX)
        futex_wake_shared(&memory->completed, 1);
    else if (waits == RING_WAITS_NOTIFIED && control_waiting_bytes(head->control, ring->session->client) == 0)
        control_notify(head->control, ring->session->client, "ring.completed",
                       json_pack("{s:I}", "session", (json_int_t)ring->session->id));
}

static void publish(struct head *head, struct ring_host *ring, uint32_t index)
{
    ring->in_flight[index] = false;
    ring->active = true;
    atomic_store_explicit(&ring->memory->slots[index].done, ++ring->done[index], memory_order_release);
    tell(head, ring);
}

static void fail(struct head *head, struct ring_host *ring, uint32_t index, const struct err *err)
{
    struct ring_slot *slot = &ring->memory->slots[index];
    metrics_error(head, err);
    write_text(&slot->text, err);
    slot->answer.failed = 1;
    publish(head, ring, index);
}

void ring_step_failed(struct head *head, struct session *session, uint32_t lane, const struct err *err)
{
    fail(head, session->ring, session->lanes[lane].ring_slot, err);
}

void ring_step_done(struct head *head, struct session *session, uint32_t lane, const struct core_step *step)
{
    uint32_t index = session->lanes[lane].ring_slot;
    struct ring_answer answer = {
        .mode = step->counted ? step->mode : RING_MODE_NONE,
        .one_shot = step->one_shot,
        .judge_wait_ns = step->judge_wait_ns,
        .duck_max_ns = step->duck_max_ns,
        .params = step->params,
        .weight_bytes = step->weight_bytes,
        .tiles = step->prefill ? step->tiles : 0,
        .tile_tokens = step->prefill ? step->tile_tokens : 0,
        .spawn_ns = step->parts.spawn_ns,
        .map_ns = step->parts.map_ns,
        .team_ns = step->parts.team_ns,
        .run_ns = step->parts.run_ns,
        .exit_ns = step->parts.exit_ns,
        .last = step->straggler == CORE_NONE ? 0 : step->straggler + 1,
        .straggler_ns = step->straggler_ns,
    };
    session->ring->memory->slots[index].answer = answer;
    publish(head, session->ring, index);
}

/* ---- steps handed over ---- */

/* Once, into memory of ours. */
static struct ring_call copy_call(const struct ring_slot *slot)
{
    union {
        uint64_t words[sizeof(struct ring_call) / sizeof(uint64_t)];
        struct ring_call call;
    } copy;
    const volatile uint64_t *from = (const volatile uint64_t *)(const volatile void *)&slot->call;
    for (size_t i = 0; i < ARRAY_LENGTH(copy.words); i++)
        copy.words[i] = from[i];
    return copy.call;
}

static int bad_field(struct err *err, const char *field, uint64_t value, const char *right)
{
    err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: %" PRIu64 " is not right in a ring's call; %s", field, value, right);
    err_value_str(err, "field", field);
    err_value_int(err, "value", (long long)value);
    return -EINVAL;
}

/* What the schema says of a request's numbers holds here, too, and refuses in its words. */
static int check_numbers(const struct schema_method *method, const struct ring_call *call, struct err *err)
{
    int r = rpc_check_number(method, "layer", call->layer, err);
    if (r == 0)
        r = rpc_check_number(method, "tokens", call->tokens, err);
    if (r == 0 && call->top_k)
        r = rpc_check_number(method, "top_k", call->top_k, err);
    if (r == 0 && call->deadline_ms)
        r = rpc_check_number(method, "deadline_ms", call->deadline_ms, err);
    if (r == 0)
        r = rpc_check_offset(method, "x", call->x, err);
    if (r == 0 && call->top_k)
        r = rpc_check_offset(method, "topk_ids", call->topk_ids, err);
    if (r == 0 && call->top_k)
        r = rpc_check_offset(method, "topk_weights", call->topk_weights, err);
    if (r == 0)
        r = rpc_check_offset(method, "y", call->y, err);
    return r;
}

static int read_call(const struct head *head, const struct ring_call *call, struct step_call *ret_step, struct err *err)
{
    if (call->kind >= RING_KINDS)
        return bad_field(err, "kind", call->kind, "0 is decode, 1 is prefill");
    if (call->y_dtype >= RING_DTYPES)
        return bad_field(err, "y_dtype", call->y_dtype, "0 is the session's, 1 BF16, 2 F32");
    if (call->zero || call->zero2 || call->zero3)
        return bad_field(err, "zero", 1, "what is not used is 0");
    int r = check_numbers(call->kind == RING_PREFILL ? schema_find("prefill") : schema_find("decode"), call, err);
    if (r < 0)
        return r;
    bool routed = call->top_k != 0;
    *ret_step = (struct step_call){
        .prefill = call->kind == RING_PREFILL,
        .layer = call->layer,
        .tokens = call->tokens,
        .top_k = call->top_k,
        .deadline_ms = call->deadline_ms ? call->deadline_ms : (uint32_t)(head->conf->deadline_s * 1000),
        .y_dtype_given = call->y_dtype != RING_DTYPE_SESSION,
        .y_dtype = call->y_dtype == RING_DTYPE_F32 ? MSG_F32 : MSG_BF16,
        .tensors =
            {
                [SESSION_X] = {.given = true, .offset = call->x},
                [SESSION_IDS] = {.given = routed, .offset = call->topk_ids},
                [SESSION_WEIGHTS] = {.given = routed, .offset = call->topk_weights},
                [SESSION_Y] = {.given = true, .offset = call->y},
            },
    };
    return 0;
}

static void take_call(struct head *head, struct ring_host *ring, uint32_t index)
{
    struct ring_call call = copy_call(&ring->memory->slots[index]);
    struct step_call step;
    struct err err = {0};
    uint32_t lane;
    ring->in_flight[index] = true;
    ring->active = true;
    int r = read_call(head, &call, &step, &err);
    if (r == 0)
        r = step_take(head, ring->session, &step, &lane, &err);
    if (r < 0) {
        fail(head, ring, index, &err);
        return;
    }
    ring->session->lanes[lane].in_ring = true;
    ring->session->lanes[lane].ring_slot = index;
}

static void end(struct head *head, struct ring_host *ring, const struct err *why)
{
    ring->ended = true;
    write_text(&ring->memory->end, why);
    atomic_store_explicit(&ring->memory->ended, 1, memory_order_release);
    tell(head, ring);
}

/* Nothing in it can be relied on: the session ends, its steps in flight with it. */
static void break_session(struct head *head, struct ring_host *ring, const char *what, uint32_t value)
{
    struct err err = {0};
    err_set(&err, -EPROTO, ERR_BAD_REQUEST, "session %" PRIu64 ": its ring makes no sense: %s (%u); the session is ended",
            ring->session->id, what, value);
    log_warning("ring", "%s", err.message);
    core_session_break(head->core, clock_now_ns(), ring->session->id, &err);
    end(head, ring, &err);
}

/* One step, of those that `submitted` says. */
static void take_one(struct head *head, struct ring_host *ring, uint32_t submitted)
{
    if (submitted - ring->taken > RING_SLOTS) {
        break_session(head, ring, "more steps are handed over than there are slots", submitted - ring->taken);
        return;
    }
    uint32_t index = *(const volatile uint8_t *)&ring->memory->queue[ring->taken % RING_SLOTS];
    if (index >= RING_SLOTS) {
        break_session(head, ring, "a slot that is not there is in the queue", index);
        return;
    }
    if (ring->in_flight[index]) {
        break_session(head, ring, "a slot is in the queue whose step is in flight", index);
        return;
    }
    ring->taken++;
    take_call(head, ring, index);
}

/* Steps in flight whose answers are not wanted. A word that tells of another answer than the next one is old, or nonsense. */
static void take_cancels(struct head *head, struct ring_host *ring, uint32_t cancels)
{
    const struct session *session = ring->session;
    ring->cancels = cancels;
    for (uint32_t lane = 0; lane < session->lane_count; lane++) {
        uint32_t slot = session->lanes[lane].ring_slot;
        if (session->lanes[lane].busy && session->lanes[lane].in_ring &&
            *(const volatile uint32_t *)&ring->memory->cancel[slot] == ring->done[slot] + 1)
            step_cancel(head, session, lane);
    }
}

static enum loop_found look(void *user)
{
    struct head *head = user;
    bool active = false;
    for (struct ring_host **at = &head->rings; *at; at = &(*at)->next) {
        struct ring_host *ring = *at;
        if (ring->parked) {
            ring->parked = false;
            atomic_store_explicit(&ring->memory->parked, 0, memory_order_relaxed);
        }
        active |= ring->active;
        uint32_t submitted = atomic_load_explicit(&ring->memory->submitted, memory_order_acquire);
        uint32_t cancels = atomic_load_explicit(&ring->memory->cancels, memory_order_acquire);
        if ((submitted == ring->taken && cancels == ring->cancels) || ring->ended)
            continue;
        /* It is the last whose turn comes again. */
        *at = ring->next;
        while (*at)
            at = &(*at)->next;
        *at = ring;
        ring->next = NULL;
        if (submitted != ring->taken)
            take_one(head, ring, submitted);
        else
            take_cancels(head, ring, cancels);
        act_run(head); /* may be the end of the ring */
        return LOOP_FOUND;
    }
    return active ? LOOP_EXPECTS : LOOP_IDLE;
}

static bool park(void *user)
{
    struct head *head = user;
    for (struct ring_host *ring = head->rings; ring; ring = ring->next) {
        ring->active = false;
        if (ring->ended)
            continue;
        ring->parked = true;
        atomic_store_explicit(&ring->memory->parked, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&ring->memory->submitted, memory_order_seq_cst) != ring->taken ||
            atomic_load_explicit(&ring->memory->cancels, memory_order_seq_cst) != ring->cancels)
            return false;
    }
    return true;
}

int ring_begin(struct head *head, struct err *err)
{
    struct loop_poller poller = {.poll = look, .park = park, .user = head};
    return loop_poller_add(head->loop, &poller, err);
}

/* ---- life ---- */

int ring_new(struct head *head, struct session *session, struct ring_host **ret_ring, struct err *err)
{
    struct ring_host *ring = calloc(1, sizeof *ring);
    if (!ring)
        return err_no_memory(err, "ring", sizeof *ring);
    *ring = (struct ring_host){
        .session = session,
        .memory = (struct ring *)(void *)(session->arena + session->arena_bytes),
        .doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
        .next = head->rings,
    };
    int r = ring->doorbell < 0 ? err_errno(err, "ring: eventfd") : loop_bell_add(head->loop, ring->doorbell, &ring->io, err);
    if (r < 0) {
        closep(&ring->doorbell);
        free(ring);
        return r;
    }
    ring->memory->version = RING_VERSION;
    ring->memory->slot_count = RING_SLOTS;
    ring->memory->slot_bytes = sizeof(struct ring_slot);
    head->rings = ring;
    *ret_ring = ring;
    return 0;
}

void ring_free(struct head *head, struct ring_host *ring, const struct err *why)
{
    if (!ring)
        return;
    for (uint32_t i = 0; why && i < RING_SLOTS; i++)
        if (ring->in_flight[i])
            fail(head, ring, i, why);
    if (why && !ring->ended)
        end(head, ring, why);
    for (struct ring_host **at = &head->rings; *at; at = &(*at)->next) {
        if (*at != ring)
            continue;
        *at = ring->next;
        break;
    }
    loop_io_free(ring->io);
    closep(&ring->doorbell);
    free(ring);
}

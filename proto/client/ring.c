#include "proto/client/ring.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/base/cleanup.h"
#include "proto/base/futex.h"
#include "proto/client/session.h"

#define SPIN_DEFAULT_US 50
#define LOOK_AFTER_NS (100 * CLOCK_NS_PER_MS) /* that long asleep: is fp9d still there? */

/* Where nobody else can run meanwhile there is nothing to spin for. */
static uint64_t default_spin_ns(void)
{
    cpu_set_t cpus;
    bool alone = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) == 1;
    return alone ? 0 : SPIN_DEFAULT_US * CLOCK_NS_PER_US;
}

void ring_init(struct ring_client *ring, struct ring *memory, int doorbell, uint32_t spin_us)
{
    uint64_t spin_ns = spin_us == FP9_SPIN_NEVER ? 0 : spin_us ? spin_us * CLOCK_NS_PER_US : default_spin_ns();
    *ring = (struct ring_client){.memory = memory, .doorbell = doorbell, .spin = spin_init(spin_ns)};
}

void ring_release(struct ring_client *ring)
{
    if (ring->memory)
        close(ring->doorbell);
    ring->memory = NULL;
}

uint32_t ring_free_slot(const struct ring_client *ring)
{
    uint32_t slot = 0;
    while (slot < RING_SLOTS && ring->calls[slot])
        slot++;
    return slot;
}

static void set_waits(struct ring_client *ring, enum ring_waits waits)
{
    atomic_store_explicit(&ring->memory->waits, waits, memory_order_seq_cst);
}

static void wake(struct ring_client *ring)
{
    /* It fails only when so many rings are unread that fp9d is sure to look. */
    if (atomic_load_explicit(&ring->memory->parked, memory_order_seq_cst) && eventfd_write(ring->doorbell, 1) < 0)
        return;
}

void ring_submit(struct ring_client *ring, uint32_t slot, uint64_t id, const struct ring_call *call, bool notified)
{
    struct ring *memory = ring->memory;
    ring->calls[slot] = id;
    memory->slots[slot].call = *call;
    memory->queue[ring->submitted % RING_SLOTS] = (uint8_t)slot;
    if (notified)
        set_waits(ring, RING_WAITS_NOTIFIED);
    atomic_store_explicit(&memory->submitted, ++ring->submitted, memory_order_seq_cst);
    wake(ring);
}

void ring_cancel(struct ring_client *ring, uint32_t slot)
{
    ring->memory->cancel[slot] = ring->done[slot] + 1;
    atomic_store_explicit(&ring->memory->cancels, ++ring->cancels, memory_order_seq_cst);
    wake(ring);
}

static bool answered(const struct ring_client *ring, uint32_t slot)
{
    return atomic_load_explicit(&ring->memory->slots[slot].done, memory_order_seq_cst) != ring->done[slot];
}

static bool ended(const struct ring_client *ring)
{
    return atomic_load_explicit(&ring->memory->ended, memory_order_acquire) != 0;
}

static bool collect(struct fp9_conn *conn, struct ring_client *ring)
{
    bool some = false;
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++) {
        struct core_call *call = ring->calls[slot] ? core_find(conn, ring->calls[slot]) : NULL;
        if (!call || call->done || (!ended(ring) && !answered(ring, slot)))
            continue;
        some = true;
        core_done(conn, call);
        if (call->forgotten) {
            ring_take(ring, slot, NULL, NULL);
            core_clear(call);
        }
    }
    return some;
}

bool ring_collect(struct fp9_conn *conn)
{
    bool some = false;
    for (struct fp9_session *session = conn->sessions; session; session = session->next)
        if (session->ring.memory)
            some |= collect(conn, &session->ring);
    return some;
}

bool ring_arm(struct fp9_conn *conn)
{
    for (struct fp9_session *session = conn->sessions; session; session = session->next)
        for (uint32_t slot = 0; session->ring.memory && slot < RING_SLOTS; slot++)
            if (session->ring.calls[slot])
                set_waits(&session->ring, RING_WAITS_NOTIFIED);
    return !ring_collect(conn);
}

static void set_error(const struct ring_text *text, struct err *err)
{
    char name_text[RING_NAME_MAX], message[ERR_MESSAGE_MAX];
    snprintf(name_text, sizeof name_text, "%.*s", RING_NAME_MAX - 1, text->name);
    snprintf(message, sizeof message, "%.*s", ERR_MESSAGE_MAX - 1, text->message);
    enum err_name name = ERR_INTERNAL;
    if (!err_name_parse(name_text, &name))
        name = ERR_INTERNAL;
    err_set(err, rpc_errno_of(name), name, "%s", message);
    if (err)
        snprintf(err->values, sizeof err->values, "%.*s", ERR_VALUES_MAX - 1, text->values);
}

static double us_of(uint64_t ns)
{
    return (double)ns / 1000.0;
}

int ring_take(struct ring_client *ring, uint32_t slot, struct fp9_timing *ret_timing, struct err *err)
{
    const struct ring_slot *from = &ring->memory->slots[slot];
    struct err why = {0};
    ring->calls[slot] = 0;
    if (!answered(ring, slot)) { /* and never will be: the ring has ended */
        set_error(&ring->memory->end, &why);
        err_copy(err, &why);
        return why.code;
    }
    ring->done[slot]++;
    struct ring_answer answer = from->answer;
    if (answer.failed) {
        set_error(&from->text, &why);
        err_copy(err, &why);
        return why.code;
    }
    if (!ret_timing)
        return 0;
    double wait = us_of(answer.judge_wait_ns), most = us_of(answer.duck_max_ns);
    bool parts = answer.one_shot;
    *ret_timing = (struct fp9_timing){
        .judge_wait_us = wait,
        .duck_max_us = most,
        .judge_gap_us = wait - most,
        .judge_ratio = most > 0 ? wait / most : (double)NAN,
        .params = answer.params,
        .weight_bytes = answer.weight_bytes,
        .tiles = answer.tiles,
        .avg_tile_batch = answer.tiles ? (double)answer.tile_tokens / (double)answer.tiles : (double)NAN,
        .mode = answer.mode == RING_MODE_NONE ? -1 : (int)answer.mode,
        .one_shot = {.spawn_us = parts ? us_of(answer.spawn_ns) : (double)NAN,
                     .map_us = parts ? us_of(answer.map_ns) : (double)NAN,
                     .team_us = parts ? us_of(answer.team_ns) : (double)NAN,
                     .run_us = parts ? us_of(answer.run_ns) : (double)NAN,
                     .exit_us = parts ? us_of(answer.exit_ns) : (double)NAN},
        .straggler = answer.last > 0 && answer.last <= INT_MAX ? (int)answer.last - 1 : -1,
        .straggler_us = answer.last ? us_of(answer.straggler_ns) : (double)NAN,
    };
    return 0;
}

/* Is fp9d gone? Then nobody will write to the ring any more. What else it has sent stays unread, and must not hide its end. */
static void look_for_end(struct fp9_conn *conn)
{
    struct pollfd hangup = {.fd = conn->fd, .events = POLLRDHUP};
    if (poll(&hangup, 1, 0) <= 0)
        return;
    struct err reason = {0};
    err_set(&reason, -ECONNRESET, ERR_INTERNAL, "fp9d closed the connection");
    core_break(conn, &reason);
}

struct wait {
    const struct ring_client *ring;
    uint32_t slot;
};

static bool ready(void *wait_)
{
    const struct wait *wait = wait_;
    return answered(wait->ring, wait->slot) || ended(wait->ring);
}

void ring_until(struct fp9_conn *conn, struct ring_client *ring, uint32_t slot)
{
    struct wait wait = {.ring = ring, .slot = slot};
    if (spin_while_not(&ring->spin, ready, &wait))
        return;
    _Atomic uint32_t *completed = &ring->memory->completed;
    while (!conn->broken.code) {
        uint32_t seen = atomic_load_explicit(completed, memory_order_acquire);
        set_waits(ring, RING_WAITS_FUTEX);
        if (ready(&wait))
            break;
        if (futex_wait_shared(completed, seen, LOOK_AFTER_NS))
            look_for_end(conn);
    }
    set_waits(ring, RING_WAITS_NOT);
}

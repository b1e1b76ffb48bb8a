/* libfp9's side of a step ring; the test is fp9d: it looks at the shared memory and writes answers into it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/client/fp9.h"
#include "proto/control/ring.h"

#define HIDDEN 64
#define LANES 3
#define ARENA 8192

struct daemon {
    struct fp9_conn *conn;
    struct fp9_session *session;
    uint8_t *arena;
    struct ring *ring;
    int doorbell; /* our own descriptor of it */
};

static void answer(struct daemon *daemon, uint64_t id, const char *result, const int *fds, size_t fd_count)
{
    char line[512];
    int length = snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":%llu,\"result\":%s}\n", (unsigned long long)id, result);
    assert_int_equal(fp9_input(daemon->conn, line, (size_t)length, fds, fd_count, NULL), 0);
}

static void begin(struct daemon *daemon)
{
    struct fp9_session_options options = {.max_tokens = 1, .lanes = LANES, .path = FP9_PATH_RING};
    uint64_t id;
    size_t size = ARENA + sizeof(struct ring), length;
    char opened[256];
    int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING), doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(fd >= 0 && doorbell >= 0 && ftruncate(fd, (off_t)size) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    *daemon = (struct daemon){.conn = fp9_new(), .doorbell = dup(doorbell)};
    daemon->arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(daemon->arena != MAP_FAILED);
    daemon->ring = (struct ring *)(void *)(daemon->arena + ARENA);
    assert_int_equal(fp9_session_request(daemon->conn, "m", &options, &id, NULL), 0);
    const char *request = fp9_output(daemon->conn, &length);
    assert_non_null(memmem(request, length, "\"ring\":true", 11));
    assert_non_null(memmem(request, length, "\"lanes\":3", 9));
    fp9_output_sent(daemon->conn, length);
    snprintf(opened, sizeof opened,
             "{\"session\":5,\"arena_bytes\":%d,\"hidden_size\":64,\"top_k_max\":4,\"lanes\":3,"
             "\"ring\":{\"version\":1,\"offset\":%d,\"bytes\":%zu,\"slots\":8}}",
             ARENA, ARENA, sizeof(struct ring));
    answer(daemon, id, opened, (int[]){fd, doorbell}, 2);
    assert_int_equal(fp9_session_answer(daemon->conn, id, &daemon->session, NULL), 0);
    assert_true(fp9_session_has_ring(daemon->session));
    assert_int_equal(fp9_session_lanes(daemon->session), LANES);
}

static void end(struct daemon *daemon)
{
    fp9_session_close_request(daemon->session, NULL, NULL);
    fp9_close(daemon->conn);
    munmap(daemon->arena, ARENA + sizeof(struct ring));
    close(daemon->doorbell);
}

/* Of the step that was handed over as number n. */
static struct ring_slot *slot_of(struct daemon *daemon, uint32_t n)
{
    assert_int_equal(atomic_load(&daemon->ring->submitted), n + 1);
    assert_true(daemon->ring->queue[n % RING_SLOTS] < RING_SLOTS);
    return &daemon->ring->slots[daemon->ring->queue[n % RING_SLOTS]];
}

static void done(struct daemon *daemon, struct ring_slot *slot)
{
    atomic_fetch_add(&slot->done, 1);
    atomic_fetch_add(&daemon->ring->completed, 1);
}

static uint64_t submit(struct daemon *daemon, uint16_t *x, uint16_t *y)
{
    struct fp9_step step = {.layer = 7, .tokens = 1, .x = x, .y = y, .deadline_ms = 9};
    uint64_t id;
    assert_int_equal(fp9_step_request(daemon->session, FP9_PREFILL, &step, &id, NULL), 0);
    size_t length;
    fp9_output(daemon->conn, &length);
    assert_int_equal(length, 0); /* nothing of it is JSON */
    return id;
}

static void steps_there_and_back(void **state)
{
    (void)state;
    struct daemon daemon;
    begin(&daemon);
    uint16_t x[LANES][HIDDEN], y[LANES][HIDDEN] = {0};
    uint64_t ids[LANES], rung;
    struct ring_slot *slots[LANES];
    struct fp9_timing timing;
    struct fp9_error error;
    for (uint32_t i = 0; i < LANES; i++) {
        for (int k = 0; k < HIDDEN; k++)
            x[i][k] = (uint16_t)(100 * i + (uint32_t)k);
        atomic_store(&daemon.ring->parked, i == 1);
        ids[i] = submit(&daemon, x[i], y[i]);
        slots[i] = slot_of(&daemon, i);
        const struct ring_call *call = &slots[i]->call;
        assert_true(call->kind == RING_PREFILL && call->layer == 7 && call->tokens == 1 && call->top_k == 0 && call->deadline_ms == 9);
        assert_memory_equal(daemon.arena + call->x, x[i], sizeof x[i]);
        assert_int_equal(eventfd_read(daemon.doorbell, &rung), i == 1 ? 0 : -1); /* only when fp9d sleeps */
    }
    uint64_t more;
    struct fp9_step step = {.layer = 1, .tokens = 1, .x = x[0], .y = y[0]};
    assert_int_equal(fp9_step_request(daemon.session, FP9_DECODE, &step, &more, &error), -EBUSY);
    assert_int_equal(atomic_load(&daemon.ring->waits), RING_WAITS_NOTIFIED);
    assert_int_equal(fp9_next_answer(daemon.conn), 0);
    assert_int_equal(fp9_step_answer(daemon.session, ids[2], &timing, &error), -EAGAIN);
    for (uint32_t i = LANES; i-- > 0;) { /* in the other order */
        slots[i]->answer = (struct ring_answer){.mode = RING_MODE_NONE, .judge_wait_ns = 3000 * (i + 1), .duck_max_ns = 2000, .params = i};
        memset(daemon.arena + slots[i]->call.y, (int)(i + 1), sizeof y[i]);
        done(&daemon, slots[i]);
        assert_int_equal(fp9_next_answer(daemon.conn), ids[i]);
        assert_int_equal(fp9_step_answer(daemon.session, ids[i], &timing, &error), 0);
        assert_true(y[i][0] == 0x0101 * (i + 1) && y[i][HIDDEN - 1] == y[i][0]);
        assert_true(timing.judge_wait_us == 3.0 * (i + 1) && timing.duck_max_us == 2.0 && timing.params == i && timing.mode == -1);
        assert_true(isnan(timing.one_shot.run_us) && timing.job_time_us > 0);
    }
    end(&daemon);
}

static void errors(void **state)
{
    (void)state;
    struct daemon daemon;
    begin(&daemon);
    uint16_t x[HIDDEN] = {0}, y[HIDDEN];
    struct fp9_error error;
    uint64_t id = submit(&daemon, x, y);
    struct ring_slot *slot = slot_of(&daemon, 0);
    slot->answer.failed = 1;
    snprintf(slot->text.name, sizeof slot->text.name, "DUCK_LOST");
    snprintf(slot->text.message, sizeof slot->text.message, "duck a was lost");
    snprintf(slot->text.values, sizeof slot->text.values, "\"duck\":\"a\"");
    done(&daemon, slot);
    assert_int_equal(fp9_step_answer(daemon.session, id, NULL, &error), -ENOTCONN);
    assert_string_equal(error.name, "DUCK_LOST");
    assert_string_equal(error.message, "duck a was lost");
    assert_string_equal(error.values, "{\"duck\":\"a\"}");
    /* Texts without an end, and a name that nobody knows. */
    id = submit(&daemon, x, y);
    slot = slot_of(&daemon, 1);
    memset(&slot->text, 'x', sizeof slot->text);
    done(&daemon, slot);
    assert_int_equal(fp9_step_answer(daemon.session, id, NULL, &error), -EIO);
    assert_string_equal(error.name, "INTERNAL");
    /* The ring ends with a step under way: that, and every later one. */
    id = submit(&daemon, x, y);
    snprintf(daemon.ring->end.name, sizeof daemon.ring->end.name, "CANCELLED");
    snprintf(daemon.ring->end.message, sizeof daemon.ring->end.message, "fp9d is stopping");
    atomic_store(&daemon.ring->ended, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fp9_next_answer(daemon.conn), id);
        assert_int_equal(fp9_step_answer(daemon.session, id, NULL, &error), -ECANCELED);
        assert_string_equal(error.message, "fp9d is stopping");
        id = submit(&daemon, x, y);
    }
    end(&daemon);
}

static void forgotten(void **state)
{
    (void)state;
    struct daemon daemon;
    begin(&daemon);
    uint16_t x[HIDDEN] = {0}, y[HIDDEN];
    for (uint32_t n = 0; n < 20; n++) { /* more than there are slots, lanes or calls */
        uint64_t id = submit(&daemon, x, y);
        fp9_forget(daemon.conn, id);
        done(&daemon, slot_of(&daemon, n));
        assert_int_equal(fp9_next_answer(daemon.conn), 0);
        assert_int_equal(fp9_step_answer(daemon.session, id, NULL, NULL), -ENOENT);
    }
    submit(&daemon, x, y); /* under way when the session is closed */
    end(&daemon);
}

/* ring.completed wakes whoever polls and is not shown to the program. */
static void never(void *userdata, const char *method, const char *params)
{
    (void)userdata;
    (void)params;
    fail_msg("%s was told", method);
}

static void notified(void **state)
{
    (void)state;
    static const char line[] = "{\"jsonrpc\":\"2.0\",\"method\":\"ring.completed\",\"params\":{\"session\":5}}\n";
    struct daemon daemon;
    begin(&daemon);
    fp9_on_notification(daemon.conn, never, NULL);
    assert_int_equal(fp9_input(daemon.conn, line, sizeof line - 1, NULL, 0, NULL), 0);
    end(&daemon);
}

/* Two words and, when fp9d sleeps, its doorbell; the answer comes as ever. */
static void cancelled(void **state)
{
    (void)state;
    struct daemon daemon;
    begin(&daemon);
    uint16_t x[HIDDEN] = {0}, y[HIDDEN];
    struct fp9_error error;
    uint64_t rung;
    for (uint32_t i = 0; i < 2; i++) { /* the second time the slot's done is 1 before */
        uint64_t id = submit(&daemon, x, y);
        struct ring_slot *slot = slot_of(&daemon, i);
        uint8_t index = daemon.ring->queue[i % RING_SLOTS];
        assert_int_equal(atomic_load(&daemon.ring->cancels), i);
        atomic_store(&daemon.ring->parked, i);
        assert_int_equal(fp9_step_cancel(daemon.session, id, &error), 0);
        assert_int_equal(daemon.ring->cancel[index], i + 1);
        assert_int_equal(atomic_load(&daemon.ring->cancels), i + 1);
        assert_int_equal(eventfd_read(daemon.doorbell, &rung), i ? 0 : -1);
        atomic_store(&daemon.ring->parked, 0);
        slot->answer = (struct ring_answer){.failed = 1};
        strcpy(slot->text.name, "CANCELLED");
        done(&daemon, slot);
        assert_int_equal(fp9_step_answer(daemon.session, id, NULL, &error), -ECANCELED);
        assert_string_equal(error.name, "CANCELLED");
        assert_int_equal(fp9_step_cancel(daemon.session, id, &error), -ENOENT);
        assert_int_equal(atomic_load(&daemon.ring->cancels), i + 1);
    }
    end(&daemon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_there_and_back),
        cmocka_unit_test(errors),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(forgotten),
        cmocka_unit_test(notified),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

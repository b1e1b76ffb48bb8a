/* STEP_CANCEL and SESSION_CLOSE at the real fp9-duck: what runs stops within a tile, what waits goes, and nothing else is touched.
 * argv[1] is its path. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "proto/base/clock.h"
#include "proto/wire/msg_hello.h"
#include "tests/unit/duck/process.h"

#define SEED 4711
#define LONG_TOKENS 4096
#define LAYER 1
#define FLOOD 20000

enum { PERSISTENT = 1, ONE_SHOT = 2, OTHER = 3 }; /* sessions */

static void start(struct process *p, int fd)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, LAYER);
    process_start(p, fd, "ref");
    assert_true(process_hello(p).features & WIRE_FEATURE_CANCEL);
    process_prepare(p, &words, SEED);
    process_session(p, PERSISTENT, MSG_F32, false, LONG_TOKENS);
    process_session(p, ONE_SHOT, MSG_F32, true, LONG_TOKENS);
    process_session(p, OTHER, MSG_F32, false, LONG_TOKENS);
}

static uint64_t send_step(struct process *p, uint64_t session, uint32_t tokens)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, LAYER);
    struct model_input input = model_input(&words, tokens, 5, SEED + tokens);
    uint64_t request = process_step(p, session, LAYER, &input);
    process_send(p);
    model_input_free(&input);
    return request;
}

static void send_cancel(struct process *p, uint64_t request)
{
    assert_int_equal(msg_empty_encode(&p->out.buf, WIRE_STEP_CANCEL, request), 0);
    process_send(p);
}

static void is_right(const struct frame *frame, uint32_t tokens)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, LAYER);
    struct model_input input = model_input(&words, tokens, 5, SEED + tokens);
    struct msg_step_done done;
    size_t bytes;
    void *want = model_answer(&words, SEED, &input, MSG_F32, &bytes);
    assert_int_equal(msg_step_done_decode(frame, &done, NULL), 0);
    assert_int_equal(done.tokens, tokens);
    assert_memory_equal(done.partial, want, bytes);
    free(want);
    model_input_free(&input);
}

static void expect_right(struct process *p, uint64_t request, uint32_t tokens)
{
    struct frame frame = process_expect(p, WIRE_STEP_DONE);
    assert_int_equal(frame.request, request);
    is_right(&frame, tokens);
}

static void expect_cancelled(struct process *p, uint64_t request, const char *how)
{
    struct frame frame = process_expect(p, WIRE_FAIL);
    struct err err;
    assert_int_equal(frame.request, request);
    assert_int_equal(msg_fail_decode(&frame, &err, NULL), 0);
    assert_int_equal(err.name, ERR_CANCELLED);
    assert_non_null(strstr(err.message, "layer 1"));
    assert_non_null(strstr(err.message, how));
}

/* Until its kernels run. */
static void wait_for_progress(struct process *p)
{
    const struct msg_ping ping = {.stamp = 1};
    uint64_t first = 0;
    for (int i = 0;; i++) {
        struct msg_ping pong;
        assert_int_equal(msg_ping_encode(&p->out.buf, WIRE_PING, ++p->request, &ping), 0);
        process_send(p);
        struct frame frame = process_expect(p, WIRE_PONG);
        assert_int_equal(msg_ping_decode(&frame, &pong, NULL), 0);
        if (i && pong.progress != first)
            return;
        first = pong.progress;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* A prefill of each kind, in the middle: the duck is free in a fraction of the time that it would have taken, and as right as ever. */
static void test_running(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start(&p, fd);
    for (uint64_t session = PERSISTENT; session <= ONE_SHOT; session++) {
        uint64_t begun = clock_now_ns();
        expect_right(&p, send_step(&p, session, LONG_TOKENS), LONG_TOKENS);
        uint64_t whole = clock_now_ns() - begun;
        uint64_t request = send_step(&p, session, LONG_TOKENS);
        wait_for_progress(&p);
        uint64_t asked = clock_now_ns();
        send_cancel(&p, request);
        expect_cancelled(&p, request, "was cancelled");
        uint64_t took = clock_now_ns() - asked;
        print_message("%s: %" PRIu64 " us of %" PRIu64 "\n", session == ONE_SHOT ? "one-shot" : "persistent", took / 1000, whole / 1000);
        assert_true(took < whole / 4);
        send_cancel(&p, request); /* it is over */
        for (uint64_t each = PERSISTENT; each <= OTHER; each++)
            expect_right(&p, send_step(&p, each, 3), 3);
        expect_right(&p, send_step(&p, session, 40), 40);
    }
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

/* Of several that wait those that are cancelled go, at once; the others keep their turns. */
static void test_waiting(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start(&p, fd);
    uint64_t first = send_step(&p, PERSISTENT, LONG_TOKENS);
    uint64_t second = send_step(&p, PERSISTENT, 50), third = send_step(&p, OTHER, 60), fourth = send_step(&p, ONE_SHOT, 70);
    send_cancel(&p, third);
    send_cancel(&p, third);
    expect_cancelled(&p, third, "before it began");
    expect_right(&p, first, LONG_TOKENS);
    for (int i = 0; i < 2; i++) { /* who has not had a turn comes first */
        struct frame frame = process_expect(&p, WIRE_STEP_DONE);
        assert_int_equal(frame.request, i ? second : fourth);
        is_right(&frame, i ? 50 : 70);
    }
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

static void test_closed_session(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start(&p, fd);
    for (uint64_t session = PERSISTENT; session <= ONE_SHOT; session++) {
        uint64_t running = send_step(&p, session, LONG_TOKENS);
        wait_for_progress(&p);
        uint64_t waiting = send_step(&p, session, 50), other = send_step(&p, OTHER, 60);
        assert_int_equal(msg_session_encode(&p.out.buf, WIRE_SESSION_CLOSE, ++p.request, session), 0);
        process_send(&p);
        expect_cancelled(&p, waiting, "before it began");
        expect_cancelled(&p, running, "was cancelled");
        process_expect(&p, WIRE_SESSION_CLOSED);
        expect_right(&p, other, 60);
    }
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

/* Cancels of nothing: no answer, no memory, no harm. */
static void test_of_nothing(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start(&p, fd);
    uint64_t request = send_step(&p, PERSISTENT, LONG_TOKENS);
    for (uint64_t i = 0; i < FLOOD; i++) {
        uint64_t of = i % 3 ? i << 32 | 7 : i % 2 ? 0 : UINT64_MAX;
        assert_int_equal(msg_empty_encode(&p.out.buf, WIRE_STEP_CANCEL, of), 0);
        if (i % 1000 == 0)
            process_send(&p);
    }
    process_send(&p);
    expect_right(&p, request, LONG_TOKENS);
    assert_int_equal(process_close(&p), 0);

    start(&p, fd); /* one with left-over bytes is none */
    assert_int_equal(msg_session_encode(&p.out.buf, WIRE_SESSION_CLOSE, 9, 1), 0);
    p.out.buf.data[4] = WIRE_STEP_CANCEL;
    process_send(&p);
    assert_non_null(strstr(process_expect_fail(&p).message, "STEP_CANCEL"));
    process_wait(&p);
    close(fd);
}

struct sent {
    uint64_t request;
    uint32_t tokens;
    bool cancelled, answered;
};

/* Any steps of any sessions, some cancelled at any moment: each has one answer, and who is not told of a cancel has the right bits. */
static void test_any(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)time(NULL), random = seed | 1;
    print_message("seed %" PRIu64 "\n", seed);
    static const uint32_t tokens[] = {1, 3, 4, 5, 30, 150};
    struct process p;
    int fd = process_weights();
    unsigned ended = 0, done = 0;
    start(&p, fd);
    for (int round = 0; round < 60; round++) {
        struct sent sent[8];
        uint32_t count = 1 + (uint32_t)(model_random(&random) % 8);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t session = model_random(&random) % 8 ? (i % 2 ? PERSISTENT : OTHER) : ONE_SHOT;
            sent[i] = (struct sent){.tokens = tokens[model_random(&random) % 6]};
            sent[i].request = send_step(&p, session, sent[i].tokens);
            struct sent *victim = &sent[model_random(&random) % (i + 1)];
            nanosleep(&(struct timespec){.tv_nsec = (long)(model_random(&random) % 300000)}, NULL);
            if (model_random(&random) % 2)
                continue;
            send_cancel(&p, victim->request);
            victim->cancelled = true;
        }
        for (uint32_t i = 0; i < count; i++) {
            struct frame frame = process_receive(&p);
            struct sent *of = sent;
            while (of < sent + count && of->request != frame.request)
                of++;
            assert_true(of < sent + count && !of->answered);
            of->answered = true;
            if (frame.type == WIRE_STEP_DONE) {
                is_right(&frame, of->tokens);
                done++;
                continue;
            }
            struct err err;
            assert_int_equal(msg_fail_decode(&frame, &err, NULL), 0);
            assert_int_equal(err.name, ERR_CANCELLED);
            assert_true(of->cancelled);
            ended++;
        }
    }
    print_message("%u done, %u cancelled\n", done, ended);
    assert_true(ended > 5 && done > 20);
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

int main(int argc, char **argv)
{
    if (!process_arguments(argc, argv))
        return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_running), cmocka_unit_test(test_waiting), cmocka_unit_test(test_closed_session),
        cmocka_unit_test(test_of_nothing), cmocka_unit_test(test_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

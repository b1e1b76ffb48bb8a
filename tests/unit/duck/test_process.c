/* The real fp9-duck as a process: prepare, steps, kills, restarts, garbage. argv[1] is its path. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/duck/wbuf_format.h"
#include "proto/base/clock.h"
#include "proto/wire/msg_hello.h"
#include "tests/unit/duck/process.h"

#define SEED 20260
#define LONG_TOKENS 4096

static void slots_ready(struct process *p, struct msg_slot ret_slots[2])
{
    for (uint32_t kind = 0; kind < 2; kind++) {
        struct msg_prepare_begin words = model_words((enum msg_slot_kind)kind, kind);
        ret_slots[kind] = process_prepare(p, &words, SEED);
    }
}

static void start_ready(struct process *p, int fd, const char *isa)
{
    struct msg_slot slots[2];
    process_start(p, fd, isa);
    process_hello(p);
    slots_ready(p, slots);
}

/* Runs a step and compares it with the kernels in this process. */
static void step_is_right(struct process *p, uint64_t session, uint32_t layer, uint32_t tokens, uint32_t top_k, enum msg_dtype dtype)
{
    struct msg_prepare_begin words = model_words((enum msg_slot_kind)layer, layer);
    struct model_input input = model_input(&words, tokens, top_k, SEED + tokens);
    size_t bytes;
    void *want = model_answer(&words, SEED, &input, dtype, &bytes);
    uint64_t request = process_step(p, session, layer, &input);
    process_send(p);
    struct frame frame = process_expect(p, WIRE_STEP_DONE);
    struct msg_step_done done;
    assert_int_equal(frame.request, request);
    assert_int_equal(msg_step_done_decode(&frame, &done, NULL), 0);
    assert_int_equal(done.tokens, tokens);
    assert_int_equal(done.dtype, dtype);
    if (bytes)
        assert_memory_equal(done.partial, want, bytes);
    uint64_t active = layer == 0 ? tokens : 0;
    for (size_t i = 0; i < (size_t)tokens * top_k; i++)
        active += input.ids[i] >= 0;
    assert_int_equal(done.params, active * 3 * 80 * 48 + (layer == 1 ? tokens * UINT64_C(3) * 80 * 32 : 0));
    if (tokens)
        assert_true(done.duck_time_ns > 0);
    model_input_free(&input);
    free(want);
}

static void test_steps(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start_ready(&p, fd, NULL);
    process_session(&p, 1, MSG_F32, false, 64);
    process_session(&p, 2, MSG_BF16, false, 64);
    process_session(&p, 3, MSG_F32, true, 64);
    process_session(&p, 4, MSG_BF16, true, 64);
    static const uint32_t tokens[] = {1, 0, 3, 33, 64};
    for (uint64_t session = 1; session <= 4; session++) {
        enum msg_dtype dtype = session % 2 ? MSG_F32 : MSG_BF16;
        for (size_t i = 0; i < ARRAY_LENGTH(tokens); i++) {
            step_is_right(&p, session, 0, tokens[i], 0, dtype);
            step_is_right(&p, session, 1, tokens[i], 1 + (uint32_t)i, dtype);
        }
    }
    /* Several in flight come back in order. */
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    struct model_input input = model_input(&words, 2, 2, SEED);
    uint64_t first = p.request + 1;
    for (int i = 0; i < 50; i++)
        process_step(&p, 1 + (uint64_t)i % 2, 1, &input);
    process_send(&p);
    for (uint64_t i = 0; i < 50; i++)
        assert_int_equal(process_expect(&p, WIRE_STEP_DONE).request, first + i);
    model_input_free(&input);
    assert_int_equal(msg_session_encode(&p.out.buf, WIRE_SESSION_CLOSE, ++p.request, 3), 0);
    process_send(&p);
    process_expect(&p, WIRE_SESSION_CLOSED);
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

static void test_step_refusals(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start_ready(&p, fd, NULL);
    process_session(&p, 1, MSG_F32, false, 4);
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    struct model_input input = model_input(&words, 2, 2, SEED);
    input.ids[3] = 5;
    process_step(&p, 1, 1, &input);
    process_send(&p);
    struct err err = process_expect_fail(&p);
    assert_int_equal(err.name, ERR_BAD_EXPERT);
    assert_string_equal(err.message, "layer 1: token 1, slot 1: expert 5, allowed are -1 to 4");
    input.ids[3] = 0;
    process_step(&p, 1, 7, &input);
    process_step(&p, 99, 1, &input);
    process_send(&p);
    assert_int_equal(process_expect_fail(&p).name, ERR_CACHE_STALE);
    assert_int_equal(process_expect_fail(&p).name, ERR_NO_SUCH);
    model_input_free(&input);
    step_is_right(&p, 1, 1, 4, 2, MSG_F32);
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

static size_t get_slots(struct process *p, struct msg_slot ret_slots[8])
{
    struct msg_slot *slots;
    size_t count;
    assert_int_equal(msg_empty_encode(&p->out.buf, WIRE_SLOTS_GET, ++p->request), 0);
    process_send(p);
    struct frame frame = process_expect(p, WIRE_SLOTS);
    assert_int_equal(msg_slots_decode(&frame, &slots, &count, NULL), 0);
    assert_true(count <= 8);
    memcpy(ret_slots, slots, count * sizeof *slots);
    free(slots);
    return count;
}

/* kill -9 in the middle of a prepare: finished slots stay, the unfinished one is gone, steps are right. */
static void test_killed_and_restarted(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    struct msg_slot before[2], after[8];
    process_start(&p, fd, NULL);
    struct msg_hello_duck hello = process_hello(&p);
    assert_string_equal(hello.name, "test");
    assert_true(hello.cores >= 1);
    assert_int_equal(hello.used_bytes, 0);
    slots_ready(&p, before);
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 2);
    assert_int_equal(msg_prepare_begin_encode(&p.out.buf, ++p.request, &words), 0);
    process_send(&p);
    assert_int_equal(get_slots(&p, after), 3);
    kill(p.pid, SIGKILL);
    assert_int_equal(process_wait(&p), SIGKILL);

    process_start(&p, fd, NULL);
    struct msg_hello_duck again = process_hello(&p);
    assert_string_equal(again.boot_id, hello.boot_id);
    assert_true(again.used_bytes > 0);
    assert_int_equal(get_slots(&p, after), 2);
    assert_memory_equal(before, after, sizeof before);
    process_session(&p, 1, MSG_BF16, false, 8);
    process_session(&p, 2, MSG_BF16, true, 8);
    for (uint64_t session = 1; session <= 2; session++) {
        step_is_right(&p, session, 0, 5, 0, MSG_BF16);
        step_is_right(&p, session, 1, 5, 3, MSG_BF16);
    }
    kill(p.pid, SIGTERM);
    assert_int_equal(process_wait(&p), 0);
    close(fd);
}

/* PING is answered while the kernels run, and its counter moves; a DROP waits for the step, the next step is told so. */
static void test_while_kernels_run(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start_ready(&p, fd, "ref");
    process_session(&p, 1, MSG_BF16, false, LONG_TOKENS);
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    struct model_input input = model_input(&words, LONG_TOKENS, 5, SEED);
    uint64_t step = process_step(&p, 1, 1, &input);
    struct msg_ping ping = {.stamp = 42};
    uint64_t progress = 0;
    int moved = 0;
    process_send(&p);
    /* A loaded machine may run the kernels late; the counter has all of the step to move in, and STEP_DONE instead of a PONG fails. */
    while (moved < 3) {
        assert_int_equal(msg_ping_encode(&p.out.buf, WIRE_PING, ++p.request, &ping), 0);
        process_send(&p);
        struct frame frame = process_expect(&p, WIRE_PONG);
        struct msg_ping pong;
        assert_int_equal(msg_ping_decode(&frame, &pong, NULL), 0);
        assert_int_equal(pong.stamp, 42);
        moved += pong.progress > progress;
        progress = pong.progress;
        poll(NULL, 0, 5);
    }
    struct msg_drop drop = {.all = true};
    assert_int_equal(msg_drop_encode(&p.out.buf, ++p.request, &drop), 0);
    process_step(&p, 1, 1, &input);
    process_send(&p);
    assert_int_equal(process_expect(&p, WIRE_STEP_DONE).request, step);
    /* The system has the memory back when DROPPED comes; whoever waits for the duck meanwhile is answered first. */
    assert_int_equal(process_expect_fail(&p).name, ERR_CACHE_STALE);
    struct frame frame = process_expect(&p, WIRE_DROPPED);
    uint64_t freed;
    struct stat st;
    assert_int_equal(msg_dropped_decode(&frame, &freed, NULL), 0);
    assert_true(freed > 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_blocks * 512, WBUF_DATA_OFFSET);
    /* Stopping does not wait for a long prefill. */
    struct msg_slot slots[2];
    slots_ready(&p, slots);
    process_step(&p, 1, 1, &input);
    process_send(&p);
    kill(p.pid, SIGTERM);
    assert_int_equal(process_wait(&p), 0);
    model_input_free(&input);
    close(fd);
}

static void test_killed_kernel_process(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start_ready(&p, fd, "ref");
    process_session(&p, 1, MSG_F32, true, LONG_TOKENS);
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    struct model_input input = model_input(&words, LONG_TOKENS, 5, SEED);
    process_step(&p, 1, 1, &input);
    process_send(&p);
    pid_t child = 0;
    for (int i = 0; i < 5000 && child == 0; i++) {
        child = process_child(&p);
        if (child == 0)
            poll(NULL, 0, 1);
    }
    assert_true(child > 0);
    kill(child, SIGSEGV);
    struct err err = process_expect_fail(&p);
    assert_int_equal(err.name, ERR_INTERNAL);
    assert_non_null(strstr(err.message, "was killed by signal 11 (SIGSEGV)"));
    assert_non_null(strstr(err.message, "layer 1"));
    step_is_right(&p, 1, 1, 2, 2, MSG_F32);
    /* SIGTERM with a kernel process at work: it goes too. */
    process_step(&p, 1, 1, &input);
    process_send(&p);
    kill(p.pid, SIGTERM);
    assert_int_equal(process_wait(&p), 0);
    model_input_free(&input);
    close(fd);
}

/* A head that takes them has the parts of a one-shot step; one that does not, and a persistent step, has not a byte of them. */
static void test_one_shot_parts(void **state)
{
    (void)state;
    int fd = process_weights();
    for (int told = 0; told < 2; told++) {
        struct process p;
        struct msg_slot slots[2];
        process_start(&p, fd, NULL);
        process_hello_with(&p, told ? WIRE_FEATURE_ONE_SHOT | WIRE_FEATURE_COUNTS : 0);
        slots_ready(&p, slots);
        process_session(&p, 1, MSG_F32, true, 4);
        process_session(&p, 2, MSG_F32, false, 4);
        struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
        struct model_input input = model_input(&words, 2, 2, SEED);
        for (uint64_t session = 1; session <= 2; session++) {
            uint64_t start = clock_now_ns();
            process_step(&p, session, 1, &input);
            process_send(&p);
            struct frame frame = process_expect(&p, WIRE_STEP_DONE);
            uint64_t whole = clock_now_ns() - start;
            struct msg_step_done done;
            assert_int_equal(msg_step_done_decode(&frame, &done, NULL), 0);
            assert_int_equal(done.one_shot, told && session == 1);
            if (!done.one_shot)
                continue;
            const struct msg_one_shot *parts = &done.parts;
            assert_true(parts->spawn_ns && parts->map_ns && parts->team_ns && parts->run_ns && parts->exit_ns);
            assert_int_equal(parts->run_ns, done.duck_time_ns);
            assert_true(parts->spawn_ns + parts->map_ns + parts->team_ns + parts->run_ns + parts->exit_ns <= whole);
        }
        model_input_free(&input);
        assert_int_equal(process_close(&p), 0);
    }
    close(fd);
}

static void ends_with_failure(struct process *p, const char *sentence)
{
    struct err err = process_expect_fail(p);
    if (!strstr(err.message, sentence))
        fail_msg("\"%s\" does not hold \"%s\"", err.message, sentence);
    int status = process_wait(p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

static void test_conversation(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    process_start(&p, fd, NULL);
    struct msg_hello hello = {.major = 7, .minor = 3, .software = "new", .host = "here"};
    assert_int_equal(msg_hello_encode(&p.out.buf, 1, &hello), 0);
    process_send(&p);
    char sentence[128];
    snprintf(sentence, sizeof sentence, "link version 7.3, this duck (fp9-duck " FP9_VERSION ") speaks %d.%d", WIRE_VERSION_MAJOR,
             WIRE_VERSION_MINOR);
    ends_with_failure(&p, sentence);

    process_start(&p, fd, NULL);
    assert_int_equal(msg_empty_encode(&p.out.buf, WIRE_SLOTS_GET, 1), 0);
    process_send(&p);
    ends_with_failure(&p, "SLOTS_GET frame before HELLO");

    process_start(&p, fd, NULL);
    process_hello(&p);
    assert_int_equal(msg_session_encode(&p.out.buf, WIRE_SESSION_OPENED, 1, 1), 0);
    process_send(&p);
    ends_with_failure(&p, "a duck does not take it");

    process_start(&p, fd, NULL);
    assert_int_equal(buf_append(&p.out.buf, "GET / HTTP/1.1\r\nHost: duck\r\n\r\n", 30, 100), 0);
    process_send(&p);
    ends_with_failure(&p, "not an fp9 link");
    close(fd);
}

/* Mutated conversations: the duck may refuse and exit 1 or go on, but never dies by a signal. */
static void test_garbage(void **state)
{
    (void)state;
    uint64_t random = (uint64_t)time(NULL);
    print_message("seed %" PRIu64 "\n", random);
    int fd = process_weights();
    for (int round = 0; round < 25; round++) {
        struct process p;
        process_start(&p, fd, NULL);
        process_hello(&p);
        struct buf *buf = &p.out.buf;
        struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, (uint32_t)round % 4);
        struct model_input input = model_input(&words, 3, 2, random);
        struct msg_session_open open = {.session = 1, .model_key = {0xab, 0xcd}, .max_tokens = 8, .top_k_max = 4};
        open.one_shot = round % 2;
        msg_prepare_begin_encode(buf, 7, &words);
        p.request = 7;
        msg_session_open_encode(buf, 8, &open);
        for (int i = 0; i < 4; i++)
            process_step(&p, 1, (uint32_t)i, &input);
        msg_drop_encode(buf, 20, &(struct msg_drop){.model_key = {0xab, 0xcd}});
        msg_session_encode(buf, WIRE_SESSION_CLOSE, 21, 1);
        model_input_free(&input);
        for (uint64_t n = 1 + model_random(&random) % 6; n > 0; n--)
            buf->data[model_random(&random) % buf->length] = (uint8_t)model_random(&random);
        if (model_random(&random) % 2)
            buf->length -= model_random(&random) % buf->length;
        (void)transport_flush(p.transport, &p.out, NULL); /* it may have hung up already */
        poll(NULL, 0, 5);
        int status = process_close(&p);
        if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
            fail_msg("round %d: wait status 0x%x", round, status);
    }
    struct process p;
    start_ready(&p, fd, NULL);
    process_session(&p, 1, MSG_F32, false, 8);
    step_is_right(&p, 1, 1, 2, 2, MSG_F32);
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    process_start(&p, fd, NULL);
    process_hello(&p);
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    words.slice = (struct msg_slice){7168, 0, 2048, 128};
    words.shared = words.slice;
    words.experts = 256;
    assert_int_equal(msg_prepare_begin_encode(&p.out.buf, 5, &words), 0);
    process_send(&p);
    struct err err = process_expect_fail(&p);
    assert_int_equal(err.name, ERR_NO_MEMORY);
    assert_non_null(strstr(err.message, "needs"));
    assert_non_null(strstr(err.message, "has 15728640"));
    assert_non_null(strstr(err.values, "\"has\":15728640"));
    struct msg_slot slots[2];
    slots_ready(&p, slots);
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

int main(int argc, char **argv)
{
    if (!process_arguments(argc, argv))
        return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),        cmocka_unit_test(test_step_refusals),     cmocka_unit_test(test_killed_and_restarted),
        cmocka_unit_test(test_conversation), cmocka_unit_test(test_while_kernels_run), cmocka_unit_test(test_killed_kernel_process),
        cmocka_unit_test(test_garbage),      cmocka_unit_test(test_no_memory),         cmocka_unit_test(test_one_shot_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

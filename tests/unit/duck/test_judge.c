/* One-shot steps of the real fp9-duck when their kernel process, its program or the duck itself comes to grief. argv[1] is fp9-duck. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "daemon/duck/judge.h"
#include "proto/base/clock.h"
#include "proto/wire/msg_hello.h"
#include "tests/unit/duck/process.h"

#define SEED 4711
#define LONG_TOKENS 4096

enum { PERSISTENT = 1, ONE_SHOT = 2 }; /* sessions */

static void sessions(struct process *p)
{
    process_session(p, PERSISTENT, MSG_F32, false, 64);
    process_session(p, ONE_SHOT, MSG_F32, true, LONG_TOKENS);
}

static void start_ready(struct process *p, int fd, const char *isa)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    process_start(p, fd, isa);
    process_hello(p);
    process_prepare(p, &words, SEED);
    sessions(p);
}

/* A step of each session against the kernels in this process. */
static void steps_are_right(struct process *p, uint64_t last_session)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    for (uint64_t session = PERSISTENT; session <= last_session; session++) {
        struct model_input input = model_input(&words, 3, 2, SEED + session);
        size_t bytes;
        void *want = model_answer(&words, SEED, &input, MSG_F32, &bytes);
        uint64_t request = process_step(p, session, 1, &input);
        process_send(p);
        struct frame frame = process_expect(p, WIRE_STEP_DONE);
        struct msg_step_done done;
        assert_int_equal(frame.request, request);
        assert_int_equal(msg_step_done_decode(&frame, &done, NULL), 0);
        assert_memory_equal(done.partial, want, bytes);
        model_input_free(&input);
        free(want);
    }
}

static void begin_long(struct process *p)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    struct model_input input = model_input(&words, LONG_TOKENS, 5, SEED);
    process_step(p, ONE_SHOT, 1, &input);
    process_send(p);
    model_input_free(&input);
}

static pid_t wait_child(const struct process *p)
{
    pid_t child = 0;
    for (int i = 0; i < 5000 && child == 0; i++) {
        child = process_child(p);
        if (child == 0)
            poll(NULL, 0, 1);
    }
    assert_true(child > 0);
    return child;
}

/* A kernel process that hangs is killed and named; the duck and its persistent judge go on. */
static void test_hung(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start_ready(&p, fd, "ref");
    begin_long(&p);
    pid_t child = wait_child(&p);
    poll(NULL, 0, 20); /* most likely within its kernels by now; it hangs either way */
    assert_int_equal(kill(child, SIGSTOP), 0);
    uint64_t since = clock_now_ns();
    struct err err = process_expect_fail(&p);
    uint64_t took = clock_now_ns() - since;
    char want[128];
    snprintf(want, sizeof want, "kernel process %d made no progress for 15000 ms and was killed", (int)child);
    if (!strstr(err.message, want))
        fail_msg("\"%s\" does not hold \"%s\"", err.message, want);
    assert_int_equal(err.name, ERR_INTERNAL);
    assert_true(took > 13 * CLOCK_NS_PER_S && took < 20 * CLOCK_NS_PER_S);
    assert_int_equal(kill(child, 0), -1);
    for (int i = 0; i < 20; i++)
        steps_are_right(&p, ONE_SHOT);
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

/* Stopped for a moment, together with its duck or alone, it goes on. */
static void test_paused(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start_ready(&p, fd, "ref");
    for (int both = 0; both < 2; both++) {
        begin_long(&p);
        pid_t child = wait_child(&p);
        kill(child, SIGSTOP);
        if (both)
            kill(p.pid, SIGSTOP);
        poll(NULL, 0, 300);
        kill(child, SIGCONT);
        kill(p.pid, SIGCONT);
        process_expect(&p, WIRE_STEP_DONE);
        steps_are_right(&p, ONE_SHOT);
    }
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

/* kill -9 of a duck while its kernel process computes: that one ends too, and the next duck has the weights to itself. */
static void test_duck_killed(void **state)
{
    (void)state;
    struct process p;
    int fd = process_weights();
    start_ready(&p, fd, "ref");
    for (int round = 0; round < 8; round++) {
        begin_long(&p);
        pid_t child = wait_child(&p);
        poll(NULL, 0, round);
        kill(p.pid, SIGKILL);
        assert_int_equal(process_wait(&p), SIGKILL);
        bool gone = false;
        for (int i = 0; i < 2000 && !gone; i++) {
            gone = kill(child, 0) < 0 && errno == ESRCH;
            poll(NULL, 0, 1);
        }
        assert_true(gone);
        process_start(&p, fd, "ref");
        process_hello(&p);
        sessions(&p);
        steps_are_right(&p, ONE_SHOT);
    }
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

static void copy(const char *from, const char *to)
{
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    assert_true(in >= 0 && out >= 0);
    while (sendfile(out, in, NULL, 1 << 20) > 0)
        ;
    close(in);
    close(out);
}

/* fp9-duck alone in a folder: only one-shot steps miss the program. Beside it, even when its file is taken away later, they work. */
static void test_program(void **state)
{
    (void)state;
    const char *duck = process_duck;
    char folder[] = "test-judge-XXXXXX", own[64], kernel[64], from[PATH_MAX];
    assert_non_null(mkdtemp(folder));
    snprintf(own, sizeof own, "%s/fp9-duck", folder);
    snprintf(kernel, sizeof kernel, "%s/" JUDGE_PROGRAM, folder);
    copy(duck, own);
    assert_true((size_t)snprintf(from, sizeof from, "%.*s" JUDGE_PROGRAM, (int)(strrchr(duck, '/') + 1 - duck), duck) < sizeof from);
    process_duck = realpath(own, NULL);
    assert_non_null(process_duck);
    for (int with = 0; with < 2; with++) {
        struct process p;
        int fd = process_weights();
        if (with)
            copy(from, kernel);
        start_ready(&p, fd, NULL);
        if (with) {
            steps_are_right(&p, ONE_SHOT);
            assert_int_equal(unlink(kernel), 0);
            steps_are_right(&p, ONE_SHOT);
        } else {
            begin_long(&p);
            struct err err = process_expect_fail(&p);
            assert_int_equal(err.name, ERR_NO_SUCH);
            assert_non_null(strstr(err.message, "/fp9-kernel nor "));
            steps_are_right(&p, PERSISTENT);
        }
        assert_int_equal(process_close(&p), 0);
        close(fd);
    }
    free((char *)process_duck);
    process_duck = duck;
    unlink(own);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    if (!process_arguments(argc, argv))
        return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_duck_killed),
        cmocka_unit_test(test_paused),
        cmocka_unit_test(test_hung),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

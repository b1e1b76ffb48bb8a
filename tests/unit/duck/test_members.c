/* The real fp9-duck with 1, 2 and more members than there are CPUs: equal bits, interactive steps before batch work, a member that stalls.
 * argv[1] is its path. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "proto/wire/msg_hello.h"
#include "tests/unit/duck/process.h"

#define SEED 4711
#define TOKENS_MAX 2048

/* Slots and two sessions, binary32 and BF16, and the number of cores that it says it has. */
static uint32_t start(struct process *p, int fd, const char *members, const char *isa)
{
    process_members = members;
    process_start(p, fd, isa);
    uint32_t cores = process_hello(p).cores;
    for (uint32_t kind = 0; kind < 2; kind++) {
        struct msg_prepare_begin words = model_words((enum msg_slot_kind)kind, kind);
        process_prepare(p, &words, SEED);
    }
    process_session(p, 1, MSG_F32, false, TOKENS_MAX);
    process_session(p, 2, MSG_BF16, false, TOKENS_MAX);
    return cores;
}

/* The next answer is that step's, with the bits that the kernels give here. */
static void expect_right(struct process *p, uint64_t request, uint32_t layer, const struct model_input *input, enum msg_dtype dtype)
{
    struct msg_prepare_begin words = model_words((enum msg_slot_kind)layer, layer);
    size_t bytes;
    _cleanup_(freep) void *want = model_answer(&words, SEED, input, dtype, &bytes);
    struct frame frame = process_expect(p, WIRE_STEP_DONE);
    struct msg_step_done done;
    assert_int_equal(frame.request, request);
    assert_int_equal(msg_step_done_decode(&frame, &done, NULL), 0);
    if (bytes)
        assert_memory_equal(done.partial, want, bytes);
}

static void test_bits(void **state)
{
    (void)state;
    static const char *const members[] = {"1", "2", "4", "64", NULL};
    static const uint32_t tokens[] = {0, 1, 2, 3, 4, 5, 33, 600};
    for (size_t i = 0; i < ARRAY_LENGTH(members); i++) {
        struct process p;
        int fd = process_weights();
        uint32_t cores = start(&p, fd, members[i], NULL);
        if (members[i])
            assert_int_equal(cores, atoi(members[i]));
        else
            assert_true(cores >= 1 && cores <= 64);
        for (uint32_t t = 0; t < 2 * ARRAY_LENGTH(tokens); t++) {
            uint32_t layer = t % 2, top_k = layer ? 1 + t % 5 : 0;
            struct msg_prepare_begin words = model_words((enum msg_slot_kind)layer, layer);
            struct model_input input = model_input(&words, tokens[t / 2], top_k, SEED + t);
            for (uint64_t session = 1; session <= 2; session++) {
                uint64_t request = process_step(&p, session, layer, &input);
                process_send(&p);
                expect_right(&p, request, layer, &input, session == 1 ? MSG_F32 : MSG_BF16);
            }
            model_input_free(&input);
        }
        assert_int_equal(process_close(&p), 0);
        close(fd);
    }
}

/* A prefill is under way; single tokens overtake it again and again, one that is batch work itself does not; all bits are right. */
static void test_interactive_first(void **state)
{
    (void)state;
    static const char *const members[] = {"1", "2", "4"};
    for (size_t i = 0; i < ARRAY_LENGTH(members); i++) {
        struct process p;
        int fd = process_weights();
        start(&p, fd, members[i], "ref");
        struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
        struct model_input many = model_input(&words, TOKENS_MAX, 5, SEED), one = model_input(&words, 1, 5, SEED + 1);
        uint64_t prefill = process_step(&p, 1, 1, &many);
        uint64_t patient = process_batch_step(&p, 2, 1, &one);
        for (int step = 0; step < 5; step++) {
            uint64_t request = process_step(&p, 2, 1, &one);
            process_send(&p);
            expect_right(&p, request, 1, &one, MSG_BF16);
        }
        expect_right(&p, prefill, 1, &many, MSG_F32);
        expect_right(&p, patient, 1, &one, MSG_BF16);
        model_input_free(&many);
        model_input_free(&one);
        assert_int_equal(process_close(&p), 0);
        close(fd);
    }
}

/* The thread of that name, 0 when there is none. */
static pid_t thread_named(pid_t pid, const char *want)
{
    char path[300], name[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    pid_t found = 0;
    struct dirent *entry;
    while (found == 0 && (entry = readdir(dir))) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/comm", (int)pid, entry->d_name);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        if (fgets(name, sizeof name, file) && strncmp(name, want, strlen(want)) == 0 && name[strlen(want)] == '\n')
            found = (pid_t)atoi(entry->d_name);
        fclose(file);
    }
    closedir(dir);
    return found;
}

/* One member is held as by a debugger. The step fails and says who; the duck ends, and one started anew has the weights. */
static void stalled(const char *name, const char *says)
{
    struct process p;
    int fd = process_weights();
    start(&p, fd, "3", NULL);
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 1);
    struct model_input input = model_input(&words, 2, 5, SEED);
    uint64_t request = process_step(&p, 1, 1, &input);
    process_send(&p);
    expect_right(&p, request, 1, &input, MSG_F32);
    pid_t member = thread_named(p.pid, name);
    assert_true(member > 0);
    int status;
    if (ptrace(PTRACE_SEIZE, member, NULL, NULL) < 0) {
        print_message("ptrace: %s\n", strerror(errno));
        process_close(&p);
        skip();
    }
    assert_int_equal(ptrace(PTRACE_INTERRUPT, member, NULL, NULL), 0);
    assert_int_equal(waitpid(member, &status, __WALL), member);
    assert_true(WIFSTOPPED(status));
    process_step(&p, 1, 1, &input);
    process_send(&p);
    struct err err = process_expect_fail(&p);
    assert_int_equal(err.name, ERR_INTERNAL);
    if (!strstr(err.message, "layer 1: kernel thread ") || !strstr(err.message, says) || !strstr(err.values, "\"member\":"))
        fail_msg("%s %s", err.message, err.values);
    assert_int_equal(waitpid(member, &status, __WALL), member); /* its end is the tracer's to see, and the process ends after it */
    status = process_wait(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);

    process_members = "2";
    process_start(&p, fd, NULL);
    process_hello(&p);
    process_session(&p, 1, MSG_F32, false, 8);
    request = process_step(&p, 1, 1, &input);
    process_send(&p);
    expect_right(&p, request, 1, &input, MSG_F32);
    model_input_free(&input);
    assert_int_equal(process_close(&p), 0);
    close(fd);
}

static void test_stalled_member(void **state)
{
    (void)state;
    stalled("member-2", ") made no progress for 10000 ms in phase ");
}

/* Nobody of the team watches member 0; the main thread does. */
static void test_stalled_first_member(void **state)
{
    (void)state;
    stalled("member-0", "layer 1: kernel thread 0 of 3 (");
}

int main(int argc, char **argv)
{
    if (!process_arguments(argc, argv))
        return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_interactive_first),
                                       cmocka_unit_test(test_stalled_member), cmocka_unit_test(test_stalled_first_member)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

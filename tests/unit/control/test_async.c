/* Sessions and steps of libfp9 that do not wait, bytes fed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/client/fp9.h"
#include "tests/unit/control/fake.h"

#define HIDDEN 64
#define ARENA 8192
#define OPENED "{\"session\":%d,\"arena_bytes\":8192,\"hidden_size\":64,\"top_k_max\":4}"

/* fp9d's end of the arena of one session. */
static int arena_new(uint8_t **ret_shared)
{
    int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, ARENA) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    *ret_shared = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(*ret_shared != MAP_FAILED);
    return fd;
}

static int open_fds(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* The newest request that is queued, parsed; the output counts as sent. */
static json_t *sent(struct fp9_conn *conn)
{
    size_t length;
    const char *output = fp9_output(conn, &length);
    assert_true(length > 0 && output[length - 1] == '\n');
    const char *from = output + length - 1;
    while (from > output && from[-1] != '\n')
        from--;
    json_t *request = json_loadb(from, (size_t)(output + length - from), 0, NULL);
    assert_non_null(request);
    fp9_output_sent(conn, length);
    return request;
}

/* One byte at a time, the descriptor with the first. */
static void feed(struct fp9_conn *conn, uint64_t id, const char *member, const char *text, int fd)
{
    char line[512];
    int length = snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":%llu,\"%s\":%s}\n", (unsigned long long)id, member, text);
    for (int i = 0; i < length; i++)
        assert_int_equal(fp9_input(conn, line + i, 1, &fd, i == 0 && fd >= 0, NULL), 0);
}

static struct fp9_session *opened(struct fp9_conn *conn, int number, uint8_t **ret_shared)
{
    struct fp9_session_options options = {.max_tokens = 2, .output_dtype = FP9_F32, .batch = true};
    struct fp9_session *session = NULL;
    struct fp9_error error;
    uint64_t id;
    char text[128];
    assert_int_equal(fp9_session_request(conn, "m", &options, &id, &error), 0);
    json_t *request = sent(conn);
    const char *priority = NULL;
    assert_int_equal(json_unpack(request, "{s:{s:s}}", "params", "priority", &priority), 0);
    assert_string_equal(priority, "batch");
    json_decref(request);
    assert_int_equal(fp9_session_answer(conn, id, &session, &error), -EAGAIN);
    assert_null(session);
    snprintf(text, sizeof text, OPENED, number);
    feed(conn, id, "result", text, arena_new(ret_shared));
    assert_int_equal(fp9_next_answer(conn), id);
    assert_int_equal(fp9_session_answer(conn, id, &session, &error), 0);
    assert_int_equal(fp9_session_answer(conn, id, &session, &error), -ENOENT);
    assert_int_equal(fp9_next_answer(conn), 0);
    assert_int_equal(fp9_session_id(session), number);
    return session;
}

struct input {
    uint16_t x[HIDDEN];
    int32_t ids[2];
    float weights[2], y[HIDDEN];
};

static struct fp9_step step_of(struct input *input, uint16_t first)
{
    for (int i = 0; i < HIDDEN; i++)
        input->x[i] = (uint16_t)(first + i);
    input->ids[0] = first;
    input->ids[1] = -1;
    input->weights[0] = (float)first;
    return (struct fp9_step){
        .layer = 1, .tokens = 1, .top_k = 2, .x = input->x, .topk_ids = input->ids, .topk_weights = input->weights, .y = input->y};
}

static void write_y(uint8_t *shared, json_t *request, float value)
{
    json_int_t at = json_integer_value(json_object_get(json_object_get(json_object_get(request, "params"), "y"), "offset"));
    float *y = (float *)(void *)(shared + at);
    for (int i = 0; i < HIDDEN; i++)
        y[i] = value;
}

/* Two sessions with a step each, the answers in the other order; each output goes where its step said. */
static void steps_of_two_sessions(void **state)
{
    (void)state;
    int before = open_fds();
    struct fp9_conn *conn = fp9_new();
    uint8_t *shared[2];
    struct fp9_session *sessions[2] = {opened(conn, 5, &shared[0]), opened(conn, 6, &shared[1])};
    struct input inputs[2];
    uint64_t ids[2];
    json_t *requests[2];
    struct fp9_error error;
    for (int i = 0; i < 2; i++) {
        struct fp9_step step = step_of(&inputs[i], (uint16_t)(100 * i + 7));
        assert_int_equal(fp9_step_request(sessions[i], i ? FP9_PREFILL : FP9_DECODE, &step, &ids[i], &error), 0);
        requests[i] = sent(conn);
        assert_string_equal(json_string_value(json_object_get(requests[i], "method")), i ? "prefill" : "decode");
        assert_memory_equal(shared[i], inputs[i].x, sizeof inputs[i].x);
        /* The places are taken until the answer is: nothing may be written there. */
        struct input other;
        struct fp9_step second = step_of(&other, 9);
        uint64_t none;
        assert_int_equal(fp9_step_request(sessions[i], FP9_DECODE, &second, &none, &error), -EBUSY);
        assert_string_equal(error.name, "BUSY");
        assert_memory_equal(shared[i], inputs[i].x, sizeof inputs[i].x);
    }
    struct fp9_timing timing;
    assert_int_equal(fp9_step_answer(sessions[0], ids[0], &timing, &error), -EAGAIN);
    assert_int_equal(fp9_step_answer(sessions[0], ids[1], &timing, &error), -ENOENT);
    for (int i = 2; i-- > 0;) {
        write_y(shared[i], requests[i], (float)i + 0.5f);
        feed(conn, ids[i], "result", "{\"judge_wait_us\":30,\"duck_max_us\":20}", -1);
    }
    assert_int_equal(fp9_next_answer(conn), ids[1]);
    for (int i = 2; i-- > 0;) {
        assert_int_equal(fp9_step_answer(sessions[i], ids[i], &timing, &error), 0);
        assert_true(inputs[i].y[0] == (float)i + 0.5f && inputs[i].y[HIDDEN - 1] == (float)i + 0.5f);
        assert_true(timing.judge_wait_us == 30.0 && timing.job_time_us > 0.0);
        assert_true(isnan(timing.one_shot.spawn_us) && isnan(timing.one_shot.exit_us));
        json_decref(requests[i]);
    }
    assert_int_equal(fp9_next_answer(conn), 0);
    /* One closes by itself, of the other the connection goes first. */
    uint64_t closing;
    assert_int_equal(fp9_session_close_request(sessions[0], &closing, &error), 0);
    feed(conn, closing, "result", "{}", -1);
    assert_int_equal(fp9_answer(conn, closing, NULL, NULL, &error), 0);
    fp9_close(conn);
    struct fp9_step step = step_of(&inputs[1], 1);
    assert_int_equal(fp9_decode(sessions[1], &step, NULL, &error), -ENOTCONN);
    assert_int_equal(fp9_session_close(sessions[1], &error), 0);
    for (int i = 0; i < 2; i++)
        munmap(shared[i], ARENA);
    assert_int_equal(open_fds(), before);
}

/* Tensors that are in the arena stay where they are, and several such steps may be under way. */
static void steps_in_the_arena(void **state)
{
    (void)state;
    struct fp9_conn *conn = fp9_new();
    uint8_t *shared;
    struct fp9_session *session = opened(conn, 5, &shared);
    uint8_t *arena = fp9_session_arena(session);
    struct fp9_error error;
    uint64_t ids[2];
    for (size_t lane = 0; lane < 2; lane++) {
        uint8_t *at = arena + lane * 1024;
        struct fp9_step step = {.layer = 3, .tokens = 1, .x = (const uint16_t *)(void *)at, .y = at + 512, .deadline_ms = 250};
        assert_int_equal(fp9_step_request(session, FP9_DECODE, &step, &ids[lane], &error), 0);
        json_t *request = sent(conn);
        size_t x_at, y_at, deadline;
        assert_int_equal(json_unpack(request, "{s:{s:{s:I},s:{s:I},s:I}}", "params", "x", "offset", &x_at, "y", "offset", &y_at,
                                     "deadline_ms", &deadline),
                         0);
        assert_true(x_at == lane * 1024 && y_at == lane * 1024 + 512 && deadline == 250);
        assert_null(json_object_get(json_object_get(request, "params"), "topk_ids"));
        json_decref(request);
    }
    uint64_t none;
    struct fp9_step wrong = {.tokens = 1, .x = (const uint16_t *)(void *)(arena + 2), .y = arena + 512};
    assert_int_equal(fp9_step_request(session, FP9_DECODE, &wrong, &none, &error), -EINVAL);
    assert_string_equal(error.name, "BAD_SHAPE");
    assert_non_null(strstr(error.message, "x is at offset 2"));
    wrong.x = (const uint16_t *)(void *)arena;
    wrong.y = arena + ARENA - 64;
    assert_int_equal(fp9_step_request(session, FP9_DECODE, &wrong, &none, &error), -EINVAL);
    assert_non_null(strstr(error.message, "256 bytes at offset 8128 end past the arena of 8192 bytes"));
    size_t queued;
    fp9_output(conn, &queued);
    assert_int_equal(queued, 0);
    /* fp9d refuses one; the other is dropped with its session, and its late answer finds nobody. */
    feed(conn, ids[0], "error", "{\"code\":-32007,\"message\":\"one at a time\",\"data\":{\"name\":\"BUSY\",\"session\":5}}", -1);
    assert_int_equal(fp9_step_answer(session, ids[0], NULL, &error), -EBUSY);
    assert_string_equal(error.values, "{\"session\":5}");
    assert_int_equal(fp9_session_close_request(session, NULL, &error), 0);
    json_t *request = sent(conn);
    assert_string_equal(json_string_value(json_object_get(request, "method")), "session.close");
    feed(conn, ids[1], "result", "{}", -1);
    feed(conn, (uint64_t)json_integer_value(json_object_get(request, "id")), "result", "{}", -1);
    assert_int_equal(fp9_next_answer(conn), 0);
    json_decref(request);
    fp9_close(conn);
    munmap(shared, ARENA);
}

/* Calls that were given up free their place for others, before and after the answer; 64 is a limit and no leak. */
static void forgotten(void **state)
{
    (void)state;
    int before = open_fds();
    struct fp9_conn *conn = fp9_new();
    struct fp9_error error;
    uint64_t id, kept;
    for (int i = 0; i < 200; i++) {
        assert_int_equal(fp9_request(conn, i % 3 ? "job.wait" : "session.open", NULL, &id, &error), 0);
        if (i % 2)
            fp9_forget(conn, id);
        assert_int_equal(fp9_answer(conn, id, NULL, NULL, &error), i % 2 ? -ENOENT : -EAGAIN);
        uint8_t *shared = NULL;
        feed(conn, id, "result", "{}", i % 3 ? -1 : arena_new(&shared));
        if (shared)
            munmap(shared, ARENA);
        fp9_forget(conn, id);
        assert_int_equal(fp9_answer(conn, id, NULL, NULL, &error), -ENOENT);
        size_t length;
        fp9_output(conn, &length);
        fp9_output_sent(conn, length);
    }
    fp9_forget(conn, 0);
    fp9_forget(conn, 12345);
    /* The end of the connection answers what is left, oldest first, after what was answered. */
    assert_int_equal(fp9_request(conn, "status", NULL, &id, &error), 0);
    assert_int_equal(fp9_request(conn, "status", NULL, &kept, &error), 0);
    feed(conn, kept, "result", "{}", -1);
    assert_int_equal(fp9_input(conn, NULL, 0, NULL, 0, &error), -ECONNRESET);
    assert_int_equal(fp9_next_answer(conn), kept);
    assert_int_equal(fp9_answer(conn, kept, NULL, NULL, &error), 0);
    assert_int_equal(fp9_next_answer(conn), id);
    assert_int_equal(fp9_answer(conn, id, NULL, NULL, &error), -ECONNRESET);
    assert_int_equal(fp9_next_answer(conn), 0);
    fp9_close(conn);
    assert_int_equal(open_fds(), before);
}

/* An arena that could shrink under the mapping is refused, and the session that fp9d takes for open is closed. */
static void unsealed(void **state)
{
    (void)state;
    int before = open_fds();
    struct fp9_conn *conn = fp9_new();
    struct fp9_session_options options = {.max_tokens = 2};
    struct fp9_session *session = NULL;
    struct fp9_error error;
    uint64_t id;
    char text[128];
    int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, ARENA) == 0);
    assert_int_equal(fp9_session_request(conn, "m", &options, &id, &error), 0);
    json_decref(sent(conn));
    snprintf(text, sizeof text, OPENED, 5);
    feed(conn, id, "result", text, fd);
    assert_int_equal(fp9_session_answer(conn, id, &session, &error), -EPROTO);
    assert_non_null(strstr(error.message, "not sealed against shrinking"));
    assert_null(session);
    json_t *request = sent(conn);
    assert_string_equal(json_string_value(json_object_get(request, "method")), "session.close");
    json_decref(request);
    /* One that is given up while it waits. */
    assert_int_equal(fp9_session_request(conn, "m", &options, &id, &error), 0);
    fp9_close(conn);
    assert_int_equal(open_fds(), before);
}

static void count_notification(void *count, const char *method, const char *params)
{
    assert_string_equal(method, "job.progress");
    assert_string_equal(params, "{\"job\":1}");
    (*(int *)count)++;
}

/* fp9_process() on a socket: sends, waits as long as it was told, takes what came, and tells the end. */
static void processing(void **state)
{
    (void)state;
    int pair[2], told = 0;
    struct fp9_conn *conn = fp9_new();
    struct fp9_error error;
    uint64_t id;
    char line[256], *result = NULL;
    assert_int_equal(fp9_process(conn, 0, &error), -ENOTCONN);
    fp9_close(conn);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fp9_adopt(pair[0], &conn, &error), 0);
    fp9_on_notification(conn, count_notification, &told);
    assert_int_equal(fp9_request(conn, "status", NULL, &id, &error), 0);
    assert_int_equal(fp9_process(conn, 0, &error), 0);
    assert_int_equal(fp9_next_answer(conn), 0);
    size_t left;
    fp9_output(conn, &left);
    assert_int_equal(left, 0);
    ssize_t n = recv(pair[1], line, sizeof line - 1, MSG_DONTWAIT);
    assert_true(n > 0);
    line[n] = '\0';
    assert_non_null(strstr(line, "\"method\":\"status\""));
    assert_int_equal(fp9_process(conn, 5, &error), 0); /* nothing happens */
    static const char answer[] = "{\"method\":\"job.progress\",\"params\":{\"job\":1}}\n{\"id\":1,\"result\":[3]}\n";
    assert_true(fake_send(pair[1], answer, sizeof answer - 1, NULL, 0) > 0);
    assert_int_equal(fp9_process(conn, -1, &error), 0);
    assert_int_equal(told, 1);
    assert_int_equal(fp9_next_answer(conn), id);
    assert_int_equal(fp9_answer(conn, id, &result, NULL, &error), 0);
    assert_string_equal(result, "[3]");
    free(result);
    close(pair[1]);
    assert_int_equal(fp9_process(conn, -1, &error), -ECONNRESET);
    assert_int_equal(fp9_process(conn, -1, &error), -ECONNRESET);
    assert_int_equal(fp9_request(conn, "status", NULL, &id, &error), -ECONNRESET);
    fp9_close(conn);
}

/* A cancel is a call of its own whose answer nobody takes; the step's comes as ever. */
static void cancelled(void **state)
{
    (void)state;
    struct fp9_conn *conn = fp9_new();
    uint8_t *shared;
    struct fp9_session *session = opened(conn, 5, &shared);
    struct input input;
    struct fp9_step step = step_of(&input, 7);
    struct fp9_error error;
    uint64_t id;
    assert_int_equal(fp9_step_cancel(session, 4711, &error), -ENOENT);
    assert_string_equal(error.name, "NO_SUCH");
    assert_int_equal(fp9_step_request(session, FP9_PREFILL, &step, &id, &error), 0);
    json_decref(sent(conn));
    assert_int_equal(fp9_step_cancel(session, id, &error), 0);
    json_t *request = sent(conn);
    const char *method;
    json_int_t own, number, of;
    assert_int_equal(json_unpack(request, "{s:s, s:I, s:{s:I, s:I!}}", "method", &method, "id", &own, "params", "session", &number,
                                 "request", &of),
                     0);
    assert_string_equal(method, "step.cancel");
    assert_true(number == 5 && of == (json_int_t)id && own != of);
    assert_int_equal(fp9_step_answer(session, id, NULL, &error), -EAGAIN);
    feed(conn, (uint64_t)own, "result", "{\"cancelled\":true}", -1);
    assert_int_equal(fp9_next_answer(conn), 0);
    feed(conn, id, "error", "{\"code\":-32012,\"message\":\"so\",\"data\":{\"name\":\"CANCELLED\"}}", -1);
    assert_int_equal(fp9_next_answer(conn), id);
    assert_int_equal(fp9_step_cancel(session, id, &error), 0); /* the answer is there: nothing to do */
    size_t length;
    fp9_output(conn, &length);
    assert_int_equal(length, 0);
    assert_int_equal(fp9_step_answer(session, id, NULL, &error), -ECANCELED);
    assert_string_equal(error.name, "CANCELLED");
    assert_int_equal(fp9_step_cancel(session, id, &error), -ENOENT);
    json_decref(request);
    fp9_session_close_request(session, NULL, NULL);
    fp9_close(conn);
    munmap(shared, ARENA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_two_sessions),
        cmocka_unit_test(steps_in_the_arena),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(forgotten),
        cmocka_unit_test(unsealed),
        cmocka_unit_test(processing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

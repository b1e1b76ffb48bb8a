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
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/client/fp9.h"
#include "tests/unit/control/fake.h"

#define ANSWER(id, result) "{\"jsonrpc\":\"2.0\",\"id\":" #id ",\"result\":" result "}\n"
#define OPENED ANSWER(1, "{\"session\":5,\"arena_bytes\":8192,\"hidden_size\":64,\"top_k_max\":4}")

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

static int arena_new(size_t size)
{
    int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return fd;
}

/* A thread that plays fp9d: reads lines, answers each by the next of its answers. */
struct answer {
    const char *line;
    int fds[8]; /* sent with the first byte, closed here afterwards */
    size_t fd_count;
    bool in_bytes; /* a byte at a time */
    void (*look)(const char *request);
};

struct server {
    int fd;
    const struct answer *answers;
    size_t count;
    pthread_t thread;
};

static void *server_main(void *server_)
{
    struct server *server = server_;
    char line[65536];
    for (size_t i = 0; i < server->count; i++) {
        const struct answer *answer = &server->answers[i];
        size_t length = 0;
        while (length == 0 || line[length - 1] != '\n') {
            ssize_t n = recv(server->fd, line + length, 1, 0);
            if (n <= 0)
                goto out;
            length += (size_t)n;
        }
        line[length] = '\0';
        if (answer->look)
            answer->look(line);
        size_t total = strlen(answer->line), first = answer->in_bytes ? 1 : total;
        fake_send(server->fd, answer->line, first, answer->fds, answer->fd_count);
        for (size_t at = first; at < total; at++)
            fake_send(server->fd, answer->line + at, 1, NULL, 0);
        for (size_t f = 0; f < answer->fd_count; f++)
            close(answer->fds[f]);
    }
out:
    close(server->fd);
    return NULL;
}

static struct fp9_conn *serve(struct server *server, const struct answer *answers, size_t count)
{
    int pair[2];
    struct fp9_conn *conn = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *server = (struct server){.fd = pair[1], .answers = answers, .count = count};
    assert_int_equal(fp9_adopt(pair[0], &conn, NULL), 0);
    assert_int_equal(pthread_create(&server->thread, NULL, server_main, server), 0);
    return conn;
}

static void served(struct server *server, struct fp9_conn *conn)
{
    fp9_close(conn);
    pthread_join(server->thread, NULL);
}

static void connecting(void **state)
{
    (void)state;
    struct fp9_conn *conn = NULL;
    struct fp9_error error;
    assert_int_equal(fp9_connect("/nonexistent/socket", &conn, &error), -ENOENT);
    assert_string_equal(error.name, "NOT_READY");
    assert_non_null(strstr(error.message, "no fp9d at /nonexistent/socket"));
    char path[300];
    memset(path, 'a', sizeof path);
    path[sizeof path - 1] = '\0';
    assert_int_equal(fp9_connect(path, &conn, &error), -ENAMETOOLONG);
    assert_int_equal(setenv("FP9_SOCKET", "/nonexistent/other", 1), 0);
    assert_int_equal(fp9_connect(NULL, &conn, &error), -ENOENT);
    assert_non_null(strstr(error.message, "/nonexistent/other"));
    assert_int_equal(fp9_connect("/nonexistent/socket", &conn, NULL), -ENOENT);
    assert_null(conn);
}

struct told {
    int count;
    char method[64], params[64];
};

static void on_notification(void *told_, const char *method, const char *params)
{
    struct told *told = told_;
    told->count++;
    snprintf(told->method, sizeof told->method, "%s", method);
    snprintf(told->params, sizeof told->params, "%s", params);
}

static void look_status(const char *request)
{
    assert_string_equal(request, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\",\"params\":{}}\n");
}

static void calls(void **state)
{
    (void)state;
    const struct answer answers[] = {
        {.line = "{\"jsonrpc\":\"2.0\",\"method\":\"job.progress\",\"params\":{\"job\":3}}\n" ANSWER(1, "{\"a\":1}"), .look = look_status},
        {.line = "{\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{\"code\":-32005,\"message\":\"no "
                 "model\",\"data\":{\"name\":\"NO_SUCH\",\"model\":\"m\"}}}\n"},
        {.line = ANSWER(3, "[1,2]"), .in_bytes = true},
        {.line = "{\"jsonrpc\":\"2.0\",\"id\":4,\"error\":{\"code\":-32006,\"message\":\"later\",\"data\":{\"name\":\"NOT_READY\"}}}\n"},
    };
    struct server server;
    struct fp9_conn *conn = serve(&server, answers, 4);
    struct told told = {0};
    struct fp9_error error;
    char *result = NULL;
    fp9_on_notification(conn, on_notification, &told);
    assert_int_equal(fp9_call(conn, "status", NULL, &result, &error), 0);
    assert_string_equal(result, "{\"a\":1}");
    free(result);
    assert_int_equal(told.count, 1);
    assert_string_equal(told.method, "job.progress");
    assert_string_equal(told.params, "{\"job\":3}");
    assert_int_equal(fp9_call(conn, "model.unload", "{\"model\":\"m\"}", &result, &error), -ENOENT);
    assert_string_equal(error.name, "NO_SUCH");
    assert_string_equal(error.message, "no model");
    assert_string_equal(error.values, "{\"model\":\"m\"}");
    assert_int_equal(fp9_call(conn, "status", "{}", &result, &error), 0);
    assert_string_equal(result, "[1,2]");
    free(result);
    assert_int_equal(fp9_call(conn, "status", "{}", &result, &error), -ENODATA);
    assert_string_equal(error.name, "NOT_READY");
    /* Bad params never leave; the connection stays good. */
    assert_int_equal(fp9_call(conn, "status", "[]", &result, &error), -EINVAL);
    assert_int_equal(fp9_call(conn, "status", "{\"a\":1,\"a\":2}", &result, &error), -EINVAL);
    assert_int_equal(fp9_call(conn, "\xff", "{}", &result, &error), -EINVAL);
    /* The server is gone: an error, no SIGPIPE, and it stays one. */
    assert_int_equal(fp9_call(conn, "status", NULL, &result, &error), -ECONNRESET);
    assert_non_null(strstr(error.message, "closed the connection"));
    assert_int_equal(fp9_call(conn, "status", NULL, NULL, &error), -ECONNRESET);
    served(&server, conn);
}

static void broken_answers(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "garbage\n",
        "{}\n",
        "[]\n",
        "\n",
        "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n",
        "{\"id\":1,\"result\":{},\"error\":{}}\n",
        "{\"id\":1,\"error\":3}\n",
        "{\"id\":1}\n",
        "{\"id\":\"1\",\"result\":{}}\n",
        "{\"id\":1,\"id\":1,\"result\":{}}\n",
        "{\"id\":1,\"result\":{}",
        "",
        "{\"id\":1e999,\"result\":{}}\n",
        "{\"id\":null,\"error\":{\"code\":-32700,\"message\":\"no JSON\",\"data\":{\"name\":\"BAD_REQUEST\"}}}\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const struct answer answers[] = {{.line = lines[i]}};
        struct server server;
        struct fp9_conn *conn = serve(&server, answers, 1);
        struct fp9_error error = {0};
        char *result = NULL;
        if (fp9_call(conn, "status", NULL, &result, &error) == 0)
            fail_msg("taken: %s", lines[i]);
        assert_null(result);
        assert_string_equal(error.name, "INTERNAL");
        assert_true(error.code < 0 && error.message[0]);
        assert_int_equal(fp9_call(conn, "status", NULL, &result, NULL), error.code);
        served(&server, conn);
    }
}

static void endless_line(void **state)
{
    (void)state;
    struct fp9_conn *conn = fp9_new();
    uint64_t id = 0;
    char *part = malloc(65536);
    assert_true(conn && part);
    memset(part, ' ', 65536);
    assert_int_equal(fp9_request(conn, "status", NULL, &id, NULL), 0);
    int r = 0, rounds = 0;
    struct fp9_error error = {0};
    for (; r == 0 && rounds < 100; rounds++)
        r = fp9_input(conn, part, 65536, NULL, 0, &error);
    assert_int_equal(r, -EPROTO);
    assert_int_equal(rounds, 16);
    assert_int_equal(fp9_answer(conn, id, NULL, NULL, &error), -EPROTO);
    free(part);
    fp9_close(conn);
}

static void without_io(void **state)
{
    (void)state;
    struct fp9_conn *conn = fp9_new();
    struct fp9_error error;
    uint64_t ids[65];
    assert_non_null(conn);
    assert_int_equal(fp9_fd(conn), -1);
    assert_int_equal(fp9_call(conn, "status", NULL, NULL, &error), -ENOTCONN);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(fp9_request(conn, "status", NULL, &ids[i], NULL), 0);
    assert_int_equal(fp9_request(conn, "status", NULL, &ids[64], &error), -EBUSY);
    assert_string_equal(error.name, "BUSY");
    size_t length = 0, lines = 0;
    const char *output = fp9_output(conn, &length);
    for (size_t i = 0; i < length; i++)
        lines += output[i] == '\n';
    assert_int_equal(lines, 64);
    fp9_output_sent(conn, 10);
    size_t left = 0;
    fp9_output(conn, &left);
    assert_int_equal(left, length - 10);
    assert_int_equal(fp9_answer(conn, ids[0], NULL, NULL, &error), -EAGAIN);
    /* Answers in any order, cut anywhere. */
    char text[8192];
    size_t at = 0;
    for (size_t i = 64; i-- > 0;)
        at += (size_t)snprintf(text + at, sizeof text - at, "{\"id\":%llu,\"result\":%zu}\n", (unsigned long long)ids[i], i);
    for (size_t i = 0; i < at; i += 7)
        assert_int_equal(fp9_input(conn, text + i, at - i < 7 ? at - i : 7, NULL, 0, &error), 0);
    for (size_t i = 0; i < 64; i++) {
        char *result = NULL, expected[8];
        snprintf(expected, sizeof expected, "%zu", i);
        assert_int_equal(fp9_answer(conn, ids[i], &result, NULL, &error), 0);
        assert_string_equal(result, expected);
        free(result);
    }
    assert_int_equal(fp9_answer(conn, ids[0], NULL, NULL, &error), -ENOENT);
    assert_int_equal(fp9_answer(conn, 0, NULL, NULL, &error), -ENOENT);
    fp9_close(conn);
}

/* Two session.open in flight, answers and descriptors in one burst: each takes its own. E09 from the client's side. */
static void descriptors_in_order(void **state)
{
    (void)state;
    int before = open_fds();
    struct fp9_conn *conn = fp9_new();
    assert_non_null(conn);
    uint64_t a, b, other;
    assert_int_equal(fp9_request(conn, "status", NULL, &other, NULL), 0);
    int stray = arena_new(1);
    assert_int_equal(fp9_input(conn, "", 0, &stray, 1, NULL), -ECONNRESET); /* nobody waits for it: closed */
    fp9_close(conn);
    assert_int_equal(open_fds(), before);
    conn = fp9_new();
    assert_non_null(conn);
    assert_int_equal(fp9_request(conn, "session.open", NULL, &a, NULL), 0);
    assert_int_equal(fp9_request(conn, "session.open", NULL, &b, NULL), 0);
    int fds[12];
    for (size_t i = 0; i < 12; i++)
        fds[i] = arena_new(100 + i); /* the first two belong to a and b, the rest to nobody */
    static const char text[] = "{\"id\":1,\"result\":{}}\n{\"id\":2,\"result\":{}}\n";
    assert_int_equal(fp9_input(conn, text, 1, fds, 1, NULL), 0);
    assert_int_equal(fp9_input(conn, text + 1, sizeof text - 2, fds + 1, 11, NULL), 0);
    int fd = -1;
    struct stat stat;
    assert_int_equal(fp9_answer(conn, b, NULL, &fd, NULL), 0);
    assert_int_equal(fstat(fd, &stat), 0);
    assert_int_equal(stat.st_size, 101);
    close(fd);
    assert_int_equal(fp9_answer(conn, a, NULL, &fd, NULL), 0);
    assert_int_equal(fstat(fd, &stat), 0);
    assert_int_equal(stat.st_size, 100);
    close(fd);
    fp9_close(conn);
    assert_int_equal(open_fds(), before);
}

static void look_open(const char *request)
{
    json_t *object = json_loads(request, 0, NULL), *params = json_object_get(object, "params");
    assert_string_equal(json_string_value(json_object_get(params, "model")), "m");
    assert_int_equal(json_integer_value(json_object_get(params, "max_tokens")), 4);
    assert_string_equal(json_string_value(json_object_get(params, "output_dtype")), "f32");
    assert_null(json_object_get(params, "partials"));
    assert_true(json_is_true(json_object_get(params, "one_shot")));
    json_decref(object);
}

static uint8_t *shared; /* the arena as the daemon sees it */

static void look_step(const char *request)
{
    json_t *object = json_loads(request, 0, NULL), *params = json_object_get(object, "params");
    size_t x_at, ids_at, weights_at, y_at, top_k, tokens;
    assert_int_equal(json_unpack(params, "{s:{s:I},s:{s:I},s:{s:I},s:{s:I},s:I,s:I}", "x", "offset", &x_at, "topk_ids", "offset", &ids_at,
                                 "topk_weights", "offset", &weights_at, "y", "offset", &y_at, "top_k", &top_k, "tokens", &tokens),
                     0);
    assert_int_equal(tokens, 2);
    assert_int_equal(top_k, 3);
    assert_int_equal((x_at | ids_at | weights_at | y_at) % 64, 0);
    const uint16_t *x = (const uint16_t *)(const void *)(shared + x_at);
    const int32_t *ids = (const int32_t *)(const void *)(shared + ids_at);
    const float *weights = (const float *)(const void *)(shared + weights_at);
    for (size_t i = 0; i < 2 * 64; i++)
        assert_int_equal(x[i], 1000 + i);
    for (size_t i = 0; i < 2 * 3; i++)
        assert_true(ids[i] == (int32_t)i - 1 && weights[i] == (float)i);
    float *y = (float *)(void *)(shared + y_at);
    for (size_t i = 0; i < 2 * 64; i++)
        y[i] = (float)i / 2;
    json_decref(object);
}

static void sessions(void **state)
{
    (void)state;
    int before = open_fds(), arena = arena_new(8192), mine = fcntl(arena, F_DUPFD_CLOEXEC, 0);
    shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, mine, 0);
    assert_true(shared != MAP_FAILED);
    close(mine);
    const struct answer answers[] = {
        {.line = OPENED, .fds = {arena}, .fd_count = 1, .in_bytes = true, .look = look_open},
        {.line = ANSWER(2, "{\"judge_wait_us\":30,\"duck_max_us\":20.5,\"judge_gap_us\":9.5,\"judge_ratio\":null,\"params\":7,"
                        "\"one_shot_us\":{\"spawn\":1,\"map\":2,\"team\":3,\"run\":4,\"exit\":5.5},\"straggler\":3,\"straggler_us\":7.25}"),
         .look = look_step},
        {.line = ANSWER(3, "{}")},
    };
    struct server server;
    struct fp9_conn *conn = serve(&server, answers, 3);
    struct fp9_session *session = NULL;
    struct fp9_error error;
    struct fp9_session_options options = {.max_tokens = 4, .output_dtype = FP9_F32, .one_shot = true};
    assert_int_equal(fp9_session_open(conn, "m", &options, &session, &error), 0);
    assert_int_equal(fp9_session_arena_size(session), 8192);
    assert_int_equal(fp9_session_hidden_size(session), 64);
    assert_int_equal(fp9_session_top_k_max(session), 4);
    assert_int_equal(fp9_session_output_dtype(session), FP9_F32);
    uint16_t x[2 * 64];
    int32_t ids[2 * 3];
    float weights[2 * 3], y[2 * 64];
    for (size_t i = 0; i < 2 * 64; i++)
        x[i] = (uint16_t)(1000 + i);
    for (size_t i = 0; i < 2 * 3; i++) {
        ids[i] = (int32_t)i - 1;
        weights[i] = (float)i;
    }
    struct fp9_step step = {.layer = 1, .tokens = 2, .top_k = 3, .x = x, .topk_ids = ids, .topk_weights = weights, .y = y};
    struct fp9_timing timing;
    assert_int_equal(fp9_decode(session, &step, &timing, &error), 0);
    for (size_t i = 0; i < 2 * 64; i++)
        assert_true(y[i] == (float)i / 2);
    assert_true(timing.judge_wait_us == 30.0 && timing.duck_max_us == 20.5 && timing.job_time_us > 0.0 && timing.params == 7);
    assert_true(isnan(timing.judge_ratio) && timing.weight_bytes == 0);
    const struct fp9_one_shot *one_shot = &timing.one_shot;
    assert_true(one_shot->spawn_us == 1.0 && one_shot->map_us == 2.0 && one_shot->team_us == 3.0 && one_shot->run_us == 4.0);
    assert_true(one_shot->exit_us == 5.5);
    assert_int_equal(timing.straggler, 3);
    assert_true(timing.straggler_us == 7.25);
    /* What cannot be right is refused without a call. */
    step.tokens = 5;
    assert_int_equal(fp9_decode(session, &step, NULL, &error), -EINVAL);
    assert_string_equal(error.name, "BAD_SHAPE");
    step.tokens = 2;
    step.top_k = 5;
    assert_int_equal(fp9_decode(session, &step, NULL, &error), -EINVAL);
    step.top_k = 3;
    step.topk_weights = NULL;
    assert_int_equal(fp9_decode(session, &step, NULL, &error), -EINVAL);
    assert_non_null(strstr(error.message, "topk_weights is missing"));
    assert_int_equal(fp9_session_close(session, &error), 0);
    served(&server, conn);
    munmap(shared, 8192);
    assert_int_equal(open_fds(), before);
}

static void places_do_not_overlap(void **state)
{
    (void)state;
    int arena = arena_new(8192);
    const struct answer answers[] = {{.line = OPENED, .fds = {arena}, .fd_count = 1}};
    struct server server;
    struct fp9_conn *conn = serve(&server, answers, 1);
    struct fp9_session *session = NULL;
    struct fp9_session_options options = {.max_tokens = 3, .output_dtype = FP9_F32};
    assert_int_equal(fp9_session_open(conn, "m", &options, &session, NULL), 0);
    struct fp9_places places;
    fp9_session_places(session, &places);
    char *base = fp9_session_arena(session), *x = (char *)places.x, *ids = (char *)places.topk_ids, *weights = (char *)places.topk_weights,
         *y = places.y;
    assert_ptr_equal(x, base);
    assert_true(ids - x >= 3 * 64 * 2 && weights - ids >= 3 * 4 * 4 && y - weights >= 3 * 4 * 4 && y + 3 * 64 * 4 <= base + 8192);
    assert_true((ids - base) % 64 == 0 && (weights - base) % 64 == 0 && (y - base) % 64 == 0);
    pthread_join(server.thread, NULL);
    assert_true(fp9_session_close(session, NULL) < 0); /* the daemon is gone; the memory is freed all the same */
    fp9_close(conn);
}

/* An arena that is missing, too short for its announcement, or announced too small: refused, nothing is leaked. */
static void bad_arenas(void **state)
{
    (void)state;
    int before = open_fds();
    const struct {
        const char *line;
        size_t size; /* 0: no descriptor */
    } cases[] = {
        {OPENED, 0},
        {OPENED, 4096},
        {ANSWER(1, "{\"session\":5,\"arena_bytes\":512,\"hidden_size\":64,\"top_k_max\":4}"), 8192},
        {ANSWER(1, "{\"session\":5,\"arena_bytes\":-1,\"hidden_size\":64,\"top_k_max\":4}"), 8192},
        {ANSWER(1, "{\"session\":5,\"arena_bytes\":8192,\"hidden_size\":4294967296,\"top_k_max\":4}"), 8192},
        {ANSWER(1, "{\"session\":5,\"arena_bytes\":8192,\"hidden_size\":64}"), 8192},
        {ANSWER(1, "{\"session\":\"5\",\"arena_bytes\":8192,\"hidden_size\":64,\"top_k_max\":4}"), 8192},
        {"{\"id\":1,\"error\":{\"code\":-1,\"message\":\"no\",\"data\":{\"name\":\"BUSY\"}}}\n", 8192},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct answer answers[] = {{.line = cases[i].line}, {.line = ANSWER(2, "{}")}};
        if (cases[i].size) {
            answers[0].fds[0] = arena_new(cases[i].size);
            answers[0].fd_count = 1;
        }
        struct server server;
        struct fp9_conn *conn = serve(&server, answers, 2);
        struct fp9_session *session = NULL;
        struct fp9_session_options options = {.max_tokens = 4};
        struct fp9_error error;
        if (fp9_session_open(conn, "m", &options, &session, &error) == 0)
            fail_msg("case %zu was taken", i);
        assert_null(session);
        served(&server, conn);
        assert_int_equal(open_fds(), before);
    }
}

/* What is said of a tensor that is not there: what may have been meant, a few names at most. */
static void tensor_not_there(void **state)
{
    (void)state;
    char folder[] = "/tmp/fp9-tensors-XXXXXX", path[64], names[6][32], long_name[600];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/t", folder);
    const float value = 1;
    struct fp9_tensor tensors[6];
    for (unsigned i = 0; i < 6; i++) {
        snprintf(names[i], sizeof names[i], i < 5 ? "layers.%u.mlp.input" : "input_%u", i);
        tensors[i] = (struct fp9_tensor){.name = names[i], .dtype = FP9_F32, .dims = 1, .shape = {1}, .data = &value};
    }
    struct fp9_error error;
    struct fp9_tensors *file = NULL;
    assert_int_equal(fp9_tensors_write(path, tensors, 6, &error), 0);
    assert_int_equal(fp9_tensors_open(path, &file, &error), 0);
    memset(long_name, 'x', sizeof long_name - 1);
    memcpy(long_name + sizeof long_name - 6, "input", 6);
#define LIST "; there are layers.0.mlp.input, layers.1.mlp.input, layers.2.mlp.input, layers.3.mlp.input and 1 more"
    const struct {
        const char *name, *said;
    } cases[] = {
        {"input", LIST},
        {"x.input", LIST},
        {"layers.9.mlpinput", LIST},
        {"layers.4.mlpinput", "; a prefix ends with a dot: layers.4.mlp." LIST},
        {"layers.4mlp.input", LIST}, /* that is another dot */
        {"put", ""},
        {".", ""},
        {"", ""},
    };
    struct fp9_tensor tensor;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[sizeof error.message];
        snprintf(message, sizeof message, "%s: no tensor %s in it%s", path, cases[i].name, cases[i].said);
        assert_int_equal(fp9_tensors_read(file, cases[i].name, FP9_F32, 1, &tensor, &error), -ENOENT);
        assert_string_equal(error.message, message);
    }
    assert_int_equal(fp9_tensors_read(file, long_name, FP9_F32, 1, &tensor, &error), -ENOENT);
    assert_non_null(strstr(error.message, LIST));
#undef LIST
    fp9_tensors_free(file);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void tensor_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/fp9-tensors-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/t", folder);
    const float values[6] = {0, 1, 2, 3, 4, 5};
    const int32_t ids[2] = {-1, 7};
    const struct fp9_tensor tensors[] = {
        {.name = "output", .dtype = FP9_F32, .dims = 2, .shape = {2, 3}, .data = values},
        {.name = "ids", .dtype = FP9_I32, .dims = 1, .shape = {2}, .data = ids},
    };
    struct fp9_error error;
    assert_int_equal(fp9_tensors_write(path, tensors, 2, &error), 0);
    struct fp9_tensors *file = NULL;
    assert_int_equal(fp9_tensors_open(path, &file, &error), 0);
    struct fp9_tensor tensor;
    assert_int_equal(fp9_tensors_read(file, "output", FP9_F32, 2, &tensor, &error), 0);
    assert_true(tensor.shape[0] == 2 && tensor.shape[1] == 3);
    assert_memory_equal(tensor.data, values, sizeof values);
    assert_int_equal(fp9_tensors_read(file, "ids", FP9_I32, 1, &tensor, &error), 0);
    assert_memory_equal(tensor.data, ids, sizeof ids);
    assert_true(fp9_tensors_has(file, "ids") && !fp9_tensors_has(file, "id"));
    assert_int_equal(fp9_tensors_read(file, "none", FP9_F32, 2, &tensor, &error), -ENOENT);
    assert_string_equal(error.name, "NO_SUCH");
    assert_int_equal(fp9_tensors_read(file, "ids", FP9_F32, 1, &tensor, &error), -EINVAL);
    assert_string_equal(error.name, "BAD_DTYPE");
    assert_non_null(strstr(error.message, "ids is I32, F32 is needed"));
    assert_int_equal(fp9_tensors_read(file, "output", FP9_F32, 1, &tensor, &error), -EINVAL);
    assert_string_equal(error.name, "BAD_SHAPE");
    assert_non_null(strstr(error.message, "[2, 3]"));
    fp9_tensors_free(file);
    fp9_tensors_free(NULL);
    assert_int_equal(unlink(path), 0);
    assert_true(fp9_tensors_open(path, &file, &error) < 0);
    assert_string_equal(error.name, "NO_SUCH");
    assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
    snprintf(path, sizeof path, "%s/none/t", folder);
    assert_true(fp9_tensors_write(path, tensors, 1, &error) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connecting),   cmocka_unit_test(calls),      cmocka_unit_test(broken_answers),
        cmocka_unit_test(endless_line), cmocka_unit_test(without_io), cmocka_unit_test(descriptors_in_order),
        cmocka_unit_test(sessions),     cmocka_unit_test(bad_arenas), cmocka_unit_test(places_do_not_overlap),
        cmocka_unit_test(tensor_files),
        cmocka_unit_test(tensor_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

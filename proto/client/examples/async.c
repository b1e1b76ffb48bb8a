/* Two streams of tokens at once: each has a session of its own and keeps a step under way while the other's runs. One thread, one
 * connection, one poll() loop. With PATH, MODEL is loaded from there first, and the progress is shown as it is told. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fp9.h>

#define STREAMS 2

struct stream {
    struct fp9_session *session;
    struct fp9_places places;
    uint64_t id; /* of the step under way */
    unsigned steps;
};

struct options {
    const char *model, *path;
    unsigned layer, top_k, steps;
};

static void show(void *userdata, const char *method, const char *params)
{
    (void)userdata;
    fprintf(stderr, "%s %s\n", method, params);
}

/* Until something was answered; gives its id. A real program has more descriptors in its poll(). */
static int next(struct fp9_conn *conn, uint64_t *ret_id, struct fp9_error *error)
{
    while ((*ret_id = fp9_next_answer(conn)) == 0) {
        size_t unsent;
        fp9_output(conn, &unsent);
        struct pollfd wait = {.fd = fp9_fd(conn), .events = unsent ? POLLIN | POLLOUT : POLLIN};
        if (poll(&wait, 1, -1) < 0 && errno != EINTR) {
            *error = (struct fp9_error){.code = -errno, .name = "INTERNAL", .message = "poll failed"};
            return error->code;
        }
        int r = fp9_process(conn, 0, error);
        if (r < 0)
            return r;
    }
    return 0;
}

/* model.load gives {"job":N}, which is what job.wait takes. PATH holds no character that JSON escapes. */
static int load(struct fp9_conn *conn, const struct options *options, struct fp9_error *error)
{
    char params[4500], *result = NULL;
    uint64_t id;
    snprintf(params, sizeof params, "{\"path\":\"%s\",\"name\":\"%s\"}", options->path, options->model);
    int r = fp9_request(conn, "model.load", params, &id, error);
    if (r == 0)
        r = next(conn, &id, error);
    if (r == 0)
        r = fp9_answer(conn, id, &result, NULL, error);
    if (r == 0)
        r = fp9_request(conn, "job.wait", result, &id, error);
    free(result);
    if (r == 0)
        r = next(conn, &id, error);
    return r == 0 ? fp9_answer(conn, id, NULL, NULL, error) : r;
}

/* Both session.open are under way at the same time. */
static int open_streams(struct fp9_conn *conn, const struct options *options, struct stream *streams, struct fp9_error *error)
{
    struct fp9_session_options session = {.max_tokens = 1, .output_dtype = FP9_F32};
    uint64_t id;
    for (int i = 0; i < STREAMS; i++) {
        int r = fp9_session_request(conn, options->model, &session, &streams[i].id, error);
        if (r < 0)
            return r;
    }
    for (int opened = 0; opened < STREAMS; opened++) {
        int r = next(conn, &id, error);
        if (r < 0)
            return r;
        for (int i = 0; i < STREAMS; i++) {
            if (streams[i].id != id)
                continue;
            r = fp9_session_answer(conn, id, &streams[i].session, error);
            if (r < 0)
                return r;
            fp9_session_places(streams[i].session, &streams[i].places);
        }
    }
    return 0;
}

static int begin_step(struct stream *stream, unsigned number, const struct options *options, struct fp9_error *error)
{
    const struct fp9_places *places = &stream->places;
    uint32_t hidden = fp9_session_hidden_size(stream->session);
    for (uint32_t i = 0; i < hidden; i++)
        places->x[i] = (uint16_t)(0x3f00 + (i + number + stream->steps) % 128); /* BF16 from 0.5 up */
    for (uint32_t k = 0; k < options->top_k && k < fp9_session_top_k_max(stream->session); k++) {
        places->topk_ids[k] = (int32_t)k;
        places->topk_weights[k] = 1.0f / (float)options->top_k;
    }
    struct fp9_step step = {
        .layer = options->layer,
        .tokens = 1,
        .top_k = options->top_k,
        .x = places->x,
        .topk_ids = places->topk_ids,
        .topk_weights = places->topk_weights,
    };
    return fp9_step_request(stream->session, FP9_DECODE, &step, &stream->id, error);
}

static int run(struct fp9_conn *conn, const struct options *options, struct stream *streams, struct fp9_error *error)
{
    int r = options->path ? load(conn, options, error) : 0;
    if (r == 0)
        r = open_streams(conn, options, streams, error);
    unsigned left = STREAMS * options->steps;
    for (unsigned i = 0; r == 0 && left && i < STREAMS; i++)
        r = begin_step(&streams[i], i, options, error);
    while (r == 0 && left) {
        uint64_t id;
        r = next(conn, &id, error);
        for (unsigned i = 0; r == 0 && i < STREAMS; i++) {
            if (streams[i].id != id)
                continue;
            r = fp9_step_answer(streams[i].session, id, NULL, error);
            left--;
            if (r == 0 && ++streams[i].steps < options->steps)
                r = begin_step(&streams[i], i, options, error);
        }
    }
    for (unsigned i = 0; r == 0 && i < STREAMS; i++)
        printf("stream %u: %u steps, y[0] = %g\n", i, streams[i].steps, (double)*(const float *)streams[i].places.y);
    return r;
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: %s MODEL LAYER TOP_K STEPS [PATH]\n", argv[0]);
        return 2;
    }
    struct options options = {
        .model = argv[1],
        .path = argc == 6 ? argv[5] : NULL,
        .layer = (unsigned)strtoul(argv[2], NULL, 10),
        .top_k = (unsigned)strtoul(argv[3], NULL, 10),
        .steps = (unsigned)strtoul(argv[4], NULL, 10),
    };
    struct stream streams[STREAMS] = {0};
    struct fp9_error error;
    struct fp9_conn *conn;
    if (fp9_connect(NULL, &conn, &error) < 0) {
        fprintf(stderr, "%s\n", error.message);
        return 3;
    }
    fp9_on_notification(conn, show, NULL);
    int r = run(conn, &options, streams, &error);
    if (r < 0)
        fprintf(stderr, "%s: %s\n", error.name, error.message);
    for (int i = 0; i < STREAMS; i++)
        fp9_session_close(streams[i].session, NULL);
    fp9_close(conn);
    return r < 0;
}

/* One session, several streams of tokens: each has the places of a lane, and keeps a step under way while the others' run. How the steps
 * travel (a ring in shared memory, or JSON) is the library's business; "json" or "ring" as the last argument chooses. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fp9.h>

#define LANES 4

struct lane {
    struct fp9_places places;
    uint64_t id; /* of the step under way */
    unsigned steps;
};

static int begin_step(struct fp9_session *session, struct lane *lane, unsigned number, unsigned layer, unsigned top_k,
                      struct fp9_error *error)
{
    const struct fp9_places *places = &lane->places;
    uint32_t hidden = fp9_session_hidden_size(session);
    for (uint32_t i = 0; i < hidden; i++)
        places->x[i] = (uint16_t)(0x3f00 + (i + number + lane->steps) % 128); /* BF16 from 0.5 up */
    for (uint32_t k = 0; k < top_k && k < fp9_session_top_k_max(session); k++) {
        places->topk_ids[k] = (int32_t)k;
        places->topk_weights[k] = 1.0f / (float)top_k;
    }
    struct fp9_step step = {
        .layer = layer,
        .tokens = 1,
        .top_k = top_k,
        .x = places->x,
        .topk_ids = places->topk_ids,
        .topk_weights = places->topk_weights,
    };
    return fp9_step_request(session, FP9_DECODE, &step, &lane->id, error);
}

/* Until something was answered. A real program has more descriptors in its poll(). */
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

static int run(struct fp9_conn *conn, struct fp9_session *session, unsigned layer, unsigned top_k, unsigned steps, struct fp9_error *error)
{
    struct lane lanes[LANES] = {0};
    unsigned left = LANES * steps;
    int r = 0;
    for (unsigned i = 0; r == 0 && left && i < LANES; i++) {
        fp9_session_lane_places(session, i, &lanes[i].places);
        r = begin_step(session, &lanes[i], i, layer, top_k, error);
    }
    while (r == 0 && left) {
        uint64_t id;
        r = next(conn, &id, error);
        for (unsigned i = 0; r == 0 && i < LANES; i++) {
            if (lanes[i].id != id)
                continue;
            r = fp9_step_answer(session, id, NULL, error);
            left--;
            if (r == 0 && ++lanes[i].steps < steps)
                r = begin_step(session, &lanes[i], i, layer, top_k, error);
        }
    }
    for (unsigned i = 0; r == 0 && i < LANES; i++)
        printf("lane %u: %u steps, y[0] = %g\n", i, lanes[i].steps, (double)*(const float *)lanes[i].places.y);
    return r;
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: %s MODEL LAYER TOP_K STEPS [json|ring]\n", argv[0]);
        return 2;
    }
    unsigned layer = (unsigned)strtoul(argv[2], NULL, 10), top_k = (unsigned)strtoul(argv[3], NULL, 10),
             steps = (unsigned)strtoul(argv[4], NULL, 10);
    struct fp9_session_options options = {.max_tokens = 1, .output_dtype = FP9_F32, .lanes = LANES};
    if (argc == 6)
        options.path = strcmp(argv[5], "json") == 0 ? FP9_PATH_JSON : FP9_PATH_RING;
    struct fp9_error error;
    struct fp9_conn *conn;
    struct fp9_session *session = NULL;
    if (fp9_connect(NULL, &conn, &error) < 0) {
        fprintf(stderr, "%s\n", error.message);
        return 3;
    }
    int r = fp9_session_open(conn, argv[1], &options, &session, &error);
    if (r == 0)
        r = run(conn, session, layer, top_k, steps, &error);
    if (r < 0)
        fprintf(stderr, "%s: %s\n", error.name, error.message);
    fp9_session_close(session, NULL);
    fp9_close(conn);
    return r < 0;
}

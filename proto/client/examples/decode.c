/* One token of random-looking input through layer LAYER of MODEL, which has TOP_K experts a token there (0: a dense layer). */
#include <stdio.h>
#include <stdlib.h>

#include <fp9.h>

static int run(struct fp9_conn *conn, const char *model, unsigned layer, unsigned top_k, struct fp9_error *error)
{
    struct fp9_session *session;
    struct fp9_session_options options = {.max_tokens = 1, .output_dtype = FP9_F32};
    int r = fp9_session_open(conn, model, &options, &session, error);
    if (r < 0)
        return r;
    /* Filled in place: nothing is copied. */
    struct fp9_places places;
    fp9_session_places(session, &places);
    uint32_t hidden = fp9_session_hidden_size(session);
    for (uint32_t i = 0; i < hidden; i++)
        places.x[i] = (uint16_t)(0x3f00 + i % 128); /* BF16 from 0.5 up */
    for (uint32_t k = 0; k < top_k && k < fp9_session_top_k_max(session); k++) {
        places.topk_ids[k] = (int32_t)k;
        places.topk_weights[k] = 1.0f / (float)top_k;
    }

    struct fp9_step step = {
        .layer = layer,
        .tokens = 1,
        .top_k = top_k,
        .x = places.x,
        .topk_ids = places.topk_ids,
        .topk_weights = places.topk_weights,
    };
    struct fp9_timing timing;
    r = fp9_decode(session, &step, &timing, error);
    if (r == 0) {
        const float *y = places.y;
        printf("y[0] = %g, y[%u] = %g, %.1f us\n", (double)y[0], hidden - 1, (double)y[hidden - 1], timing.job_time_us);
    }
    fp9_session_close(session, NULL);
    return r;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL LAYER TOP_K\n", argv[0]);
        return 2;
    }
    struct fp9_error error;
    struct fp9_conn *conn;
    if (fp9_connect(NULL, &conn, &error) < 0) {
        fprintf(stderr, "%s\n", error.message);
        return 3;
    }
    int r = run(conn, argv[1], (unsigned)strtoul(argv[2], NULL, 10), (unsigned)strtoul(argv[3], NULL, 10), &error);
    if (r < 0)
        fprintf(stderr, "%s: %s\n", error.name, error.message);
    fp9_close(conn);
    return r < 0;
}

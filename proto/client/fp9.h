/* libfp9: talking to fp9d. This header is the manual; the protocol underneath is fp9-control(7).
 *
 * A complete call, one token through layer 1 of a model whose layer 1 is MoE:
 *
 *     struct fp9_error error;
 *     struct fp9_conn *conn;
 *     struct fp9_session *session;
 *     if (fp9_connect(NULL, &conn, &error) < 0)
 *         return fail(error.message);
 *     struct fp9_session_options options = {.max_tokens = 4, .output_dtype = FP9_F32};
 *     if (fp9_session_open(conn, "mymodel", &options, &session, &error) < 0)
 *         return fail(error.message);
 *     struct fp9_step step = {.layer = 1, .tokens = 1, .top_k = 2, .x = x, .topk_ids = ids, .topk_weights = weights, .y = y};
 *     struct fp9_timing timing;
 *     for (;;) {
 *         ... fill x [tokens][hidden_size] BF16, ids [tokens][top_k], weights [tokens][top_k] ...
 *         if (fp9_decode(session, &step, &timing, &error) < 0)
 *             break;
 *         ... y [tokens][hidden_size] is there ...
 *     }
 *     fp9_session_close(session, NULL);
 *     fp9_close(conn);
 *
 * proto/client/examples/decode.c is that as a program, async.c beside it keeps several steps under way in an event loop. The same calls in
 * Python are the module fp9 (proto/client/python).
 *
 * A step's tensors are in the arena; the step itself goes through a ring in memory shared with fp9d when fp9d offers one (it does), else as
 * a JSON line. Calls, results and errors are the same; only the time differs.
 *
 * Two ways to call, which may be mixed on a connection:
 *   waiting      fp9_call(), fp9_session_open(), fp9_decode(), fp9_prefill(), fp9_session_close() return with the answer.
 *   not waiting  fp9_request(), fp9_session_request(), fp9_step_request() queue a call and give its id; bytes go out and come in when the
 *                program says so, by fp9_process() on the connection's socket or by fp9_output() and fp9_input() on anything;
 *                fp9_next_answer() tells which call was answered, fp9_answer(), fp9_session_answer() or fp9_step_answer() takes the answer.
 *
 * Results: functions that can fail give 0 or a negative errno and fill *error when they fail; `error` may be NULL. Outputs called ret_x
 * are written on success only. An error of one call (BAD_SHAPE, BUSY, DUCK_LOST, ...) leaves connection and sessions as they were. An error
 * of the connection (name INTERNAL: closed by fp9d, or bytes that are no protocol) is final: all its calls fail with it, now and later.
 *
 * Ownership: texts given to the caller are freed with free(), everything else with the function that is named for it. What is passed in is
 * not kept after the function returns, but for `y` of a step under way, and `userdata`.
 *
 * Threads: a connection with all its sessions belongs to one thread at a time; different connections are independent.
 * Signals: the library raises no SIGPIPE, installs no handler and continues calls that a signal interrupts.
 * I/O: functions that wait, fp9_process(), fp9_connect(), fp9_close() and the tensor files' do I/O; no other function does. */
#ifndef FP9_H
#define FP9_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define FP9_SOCKET_DEFAULT "/run/fp9d/control.sock"

struct fp9_error {
    int code;           /* negative errno. -ENOENT and -ECONNREFUSED from fp9_connect: no fp9d there */
    char name[32];      /* "BAD_SHAPE"; the names are listed in fp9-control(7) */
    char message[1024]; /* one sentence */
    char values[1032];  /* the numbers and names of the sentence, the text of a JSON object, "{}" when there are none */
};

/* ---- Connection ---- */

struct fp9_conn;

/* Connects to the socket at `path`; NULL: the environment's FP9_SOCKET, else FP9_SOCKET_DEFAULT. */
int fp9_connect(const char *path, struct fp9_conn **ret_conn, struct fp9_error *error);
/* Takes over a connected stream socket (also on failure it is closed). */
int fp9_adopt(int fd, struct fp9_conn **ret_conn, struct fp9_error *error);
/* Closes; sessions still open end with it, and their struct fp9_session must not be used afterwards, but with fp9_session_close().
 * NULL is allowed. */
void fp9_close(struct fp9_conn *conn);
int fp9_fd(const struct fp9_conn *conn); /* for poll(); -1 for fp9_new() */

/* Calls a method (fp9-control(7) has them all) and waits for its answer. `params` is the text of a JSON object or NULL for {}.
 * *ret_result is the text of the result, free() it; ret_result may be NULL. Memory files that come with the answer are closed: use
 * fp9_session_open() for session.open. */
int fp9_call(struct fp9_conn *conn, const char *method, const char *params, char **ret_result, struct fp9_error *error);

/* The same with a descriptor beside the request: prepare takes the weights of layers from a memfd so, which holds them in the form of a
 * safetensors file and is sealed with F_SEAL_SHRINK and F_SEAL_WRITE. `fd` stays the caller's; it may be closed afterwards. -EBUSY while
 * requests of fp9_request() and the like have not been sent whole. */
int fp9_call_fd(struct fp9_conn *conn, const char *method, const char *params, int fd, char **ret_result, struct fp9_error *error);

/* Called for each notification (job.progress, event) that arrives while any function of this library reads from the connection or takes
 * its bytes. `params`, the text of a JSON object, lives until it returns. It must not call anything on this connection. */
typedef void (*fp9_notification)(void *userdata, const char *method, const char *params);
void fp9_on_notification(struct fp9_conn *conn, fp9_notification function, void *userdata);

/* ---- Sessions ---- */

enum fp9_dtype {
    FP9_DEFAULT, /* let fp9d choose; no type of a tensor */
    FP9_BF16,
    FP9_F32,
    FP9_I32,
};

struct fp9_session;

enum fp9_path {
    FP9_PATH_DEFAULT, /* the step ring when fp9d offers one, else JSON */
    FP9_PATH_JSON,
    FP9_PATH_RING, /* NOT_READY when fp9d offers none */
};

#define FP9_SPIN_NEVER UINT32_MAX

struct fp9_session_options {
    uint32_t max_tokens;         /* largest step, 1 to 4096 */
    enum fp9_dtype partials;     /* FP9_BF16, FP9_F32 or FP9_DEFAULT: what ranks send back */
    enum fp9_dtype output_dtype; /* FP9_BF16, FP9_F32 or FP9_DEFAULT (= FP9_BF16): type of y */
    bool one_shot;               /* a fresh kernel run for each step; slower, the fallback of the persistent judge */
    bool batch;                  /* priority "batch": its steps let those of other sessions overtake them; else "interactive" */
    /* The session's steps are one batch, which fp9d lists as a job: it tells how far it is, and job.cancel ends it (its steps fail with
     * CANCELLED). job_tokens 0: no job. */
    bool job_prefill; /* its kind; else decode */
    uint32_t job_layer;
    uint64_t job_tokens;
    uint32_t lanes;              /* steps under way at once, 1 to 8; 0: fp9d's default, 2 */
    enum fp9_path path;          /* how steps travel */
    uint32_t spin_us;            /* with a ring: how long fp9_decode() and fp9_prefill() look for the answer before they sleep, at most
                                  * (waits that last longer make it shorter); 0: 50, or never for a process with one CPU; FP9_SPIN_NEVER */
};

/* Opens a session and maps its arena, memory that fp9d shares with this process. `options` is not kept. */
int fp9_session_open(struct fp9_conn *conn, const char *model, const struct fp9_session_options *options, struct fp9_session **ret_session,
                     struct fp9_error *error);
/* Unmaps, frees and tells fp9d. The memory is freed whatever is returned; the answers of its steps under way are dropped, fp9d stops them.
 * NULL is allowed. */
int fp9_session_close(struct fp9_session *session, struct fp9_error *error);

uint64_t fp9_session_id(const struct fp9_session *session);  /* fp9d's number of it, "session" in params */
uint64_t fp9_session_job(const struct fp9_session *session); /* of its batch; 0: it is none */
/* Memory shared with fp9d, which writes y there and copies the inputs from there when it takes the step; until the step's answer the
 * inputs belong to fp9d, afterwards everything is the caller's again. */
void *fp9_session_arena(struct fp9_session *session);
size_t fp9_session_arena_size(const struct fp9_session *session); /* bytes */
uint32_t fp9_session_hidden_size(const struct fp9_session *session);
uint32_t fp9_session_lanes(const struct fp9_session *session);    /* steps that may be under way at once */
bool fp9_session_has_ring(const struct fp9_session *session); /* its steps go through a ring, and not as JSON */
uint32_t fp9_session_top_k_max(const struct fp9_session *session); /* most columns of topk_ids; 0: no layer is MoE */
enum fp9_dtype fp9_session_output_dtype(const struct fp9_session *session);

/* Places in the arena that never overlap, for steps of up to max_tokens. A caller that fills them in place saves a copy. */
struct fp9_places {
    uint16_t *x;         /* [max_tokens][hidden_size] BF16 */
    int32_t *topk_ids;   /* room for [max_tokens][top_k_max]; a step's [tokens][top_k] stand at its beginning, packed */
    float *topk_weights; /* likewise */
    void *y;             /* [max_tokens][hidden_size], output_dtype */
};
void fp9_session_places(struct fp9_session *session, struct fp9_places *ret_places); /* of lane 0 */
/* Each lane has places of its own, so that as many steps may be under way. They are only places: which of fp9d's lanes works on a step has
 * nothing to do with it, and steps may have their tensors anywhere else in the arena. `lane` from 0; too high a one is 0. */
void fp9_session_lane_places(struct fp9_session *session, uint32_t lane, struct fp9_places *ret_places);

/* One layer call. A tensor in the arena is used where it is: its offset must be a multiple of 64, it must end in the arena, and y may not
 * overlap an input, its own or one of another step under way, or another y. Any other tensor is copied to or from its place in the lane
 * that x is in, or, when x is copied too, in the first lane whose places no step uses whose answer was not taken; BUSY when there is none.
 */
struct fp9_step {
    uint32_t layer;            /* index from 0 */
    uint32_t tokens;           /* at most max_tokens */
    uint32_t top_k;            /* columns of topk_ids and topk_weights, at most top_k_max; 0: a dense layer */
    const uint16_t *x;         /* [tokens][hidden_size], BF16 bit patterns */
    const int32_t *topk_ids;   /* [tokens][top_k]; -1: empty slot */
    const float *topk_weights; /* [tokens][top_k] */
    void *y;                   /* [tokens][hidden_size] in output_dtype; NULL: leave the output in its place in the arena, that of the
                                * lane that x is in, of lane 0 when x is not in the arena */
    uint32_t deadline_ms;      /* fail with DEADLINE when it takes longer; 0: fp9d's setting, which is none as shipped */
};

/* A one-shot step on the duck whose kernel process took longest: the start of the process, its mapping of the weights, the start of its
 * threads, the kernels, its end. NaN, all of them, when not given: the step was not one-shot, or empty, or the duck is too old to tell. */
struct fp9_one_shot {
    double spawn_us, map_us, team_us, run_us, exit_us;
};

struct fp9_timing {
    double job_time_us;    /* from the request to the taking of its answer, as the caller sees it */
    double judge_wait_us;  /* fp9d: first byte out to last result in */
    double duck_max_us;    /* longest kernel time over the ranks */
    double judge_gap_us;   /* judge_wait - duck_max */
    double judge_ratio;    /* judge_wait / duck_max; NaN when that is not defined */
    uint64_t params;       /* weights applied, without padding */
    uint64_t weight_bytes; /* bytes of weights the ducks read for them */
    uint64_t tiles;        /* prefill: weight tiles run through; 0 when not given */
    double avg_tile_batch; /* prefill: tokens per tile; NaN when not given */
    int mode;              /* how the ducks ran it, see fp9_mode_name(); -1 when not given (an empty step) */
    struct fp9_one_shot one_shot;
    int straggler;       /* of several ranks, the duck that answered last, its id in duck.list; -1 when not given */
    double straggler_us; /* how long fp9d waited for it alone; NaN when not given */
};

/* 0 dense forward, 1 MoE forward (one core), 4 MoE forward SMP, 5 dense prefill, 6 MoE prefill; "unknown" for others. Up to 4 tokens run
 * as a forward whichever call they came by. */
const char *fp9_mode_name(int mode);

/* Few tokens (decode) or many (prefill) through one layer; the same bits either way. `timing` may be NULL. */
int fp9_decode(struct fp9_session *session, const struct fp9_step *step, struct fp9_timing *ret_timing, struct fp9_error *error);
int fp9_prefill(struct fp9_session *session, const struct fp9_step *step, struct fp9_timing *ret_timing, struct fp9_error *error);

/* ---- Tensor files (safetensors) ---- */

#define FP9_TENSOR_DIMS 8

struct fp9_tensor {
    const char *name;
    enum fp9_dtype dtype;
    uint32_t dims;
    uint64_t shape[FP9_TENSOR_DIMS];
    const void *data; /* row-major, little-endian */
};

struct fp9_tensors;

/* Opens a file and reads its table of contents. */
int fp9_tensors_open(const char *path, struct fp9_tensors **ret_tensors, struct fp9_error *error);
void fp9_tensors_free(struct fp9_tensors *tensors); /* with all data read from it; NULL is allowed */
bool fp9_tensors_has(const struct fp9_tensors *tensors, const char *name);
/* Reads a tensor, which must have this type and number of dimensions; name and data live as long as `tensors`. */
int fp9_tensors_read(struct fp9_tensors *tensors, const char *name, enum fp9_dtype dtype, uint32_t dims, struct fp9_tensor *ret_tensor,
                     struct fp9_error *error);
/* Writes a file whole or not at all: into a temporary name beside it, then renamed. Tensors of FP9_BF16, FP9_F32, FP9_I32. */
int fp9_tensors_write(const char *path, const struct fp9_tensor *tensors, size_t count, struct fp9_error *error);

/* ---- Not waiting ----
 *
 * Up to 64 calls of a connection may be under way, in any mixture; of one session as many steps as it has lanes, more are refused with
 * BUSY. A program with several streams of tokens gives each a lane (proto/client/examples/lanes.c) or a session (async.c); the answers of
 * its steps come in any order.
 * A step's answer is taken by fp9_step_answer(), a session's by fp9_session_answer(), any other by fp9_answer(). The loop is
 *
 *     fp9_step_request(a, FP9_DECODE, &step_a, &id_a, &error);
 *     fp9_step_request(b, FP9_DECODE, &step_b, &id_b, &error);
 *     for (;;) {
 *         ... poll() fp9_fd(conn) for POLLIN, and for POLLOUT while fp9_output() has bytes, with whatever else the program waits for ...
 *         if (fp9_process(conn, 0, &error) < 0)
 *             return fail(error.message);
 *         while ((id = fp9_next_answer(conn)) != 0)
 *             if (id == id_a && fp9_step_answer(a, id, &timing, &error) == 0)
 *                 ... the output of step_a is there: fill the next one, fp9_step_request() ...
 *     }
 *
 * A program whose bytes go another way (a proxy, io_uring, a test) uses fp9_new(), fp9_output(), fp9_output_sent() and fp9_input() in
 * place of fp9_connect() and fp9_process(). */

enum fp9_kind {
    FP9_DECODE,
    FP9_PREFILL,
};

/* Queues a call. *ret_id is for fp9_answer(). -EBUSY while 64 calls are unanswered or their answers were not taken. */
int fp9_request(struct fp9_conn *conn, const char *method, const char *params, uint64_t *ret_id, struct fp9_error *error);
/* -EAGAIN (error untouched) while there is no answer; otherwise the call is over: result, or its error. *ret_fd: the descriptor that came
 * with the answer to a session.open, -1 for others; with ret_fd NULL it is closed. */
int fp9_answer(struct fp9_conn *conn, uint64_t id, char **ret_result, int *ret_fd, struct fp9_error *error);

/* fp9_session_open() in two halves. -EAGAIN (error untouched) while there is no answer. */
int fp9_session_request(struct fp9_conn *conn, const char *model, const struct fp9_session_options *options, uint64_t *ret_id,
                        struct fp9_error *error);
int fp9_session_answer(struct fp9_conn *conn, uint64_t id, struct fp9_session **ret_session, struct fp9_error *error);
/* fp9_session_close() that does not wait: frees and queues. With ret_id the answer (an empty object) is to be taken by fp9_answer(), with
 * NULL it is dropped; *ret_id is 0 when the connection is closed already. */
int fp9_session_close_request(struct fp9_session *session, uint64_t *ret_id, struct fp9_error *error);

/* fp9_decode() and fp9_prefill() in two halves. The inputs are copied, or used where they are in the arena, `step` is not kept; an output
 * outside the arena is written by fp9_step_answer(). -EAGAIN (error untouched) while there is no answer. */
int fp9_step_request(struct fp9_session *session, enum fp9_kind kind, const struct fp9_step *step, uint64_t *ret_id,
                     struct fp9_error *error);
int fp9_step_answer(struct fp9_session *session, uint64_t id, struct fp9_timing *ret_timing, struct fp9_error *error);
/* The step of fp9_step_request() is not wanted any more. Does not wait: its answer comes as ever, soon, and is CANCELLED, unless the step
 * was through before; a prefill leaves its ducks within a tile, for the next step. Nothing happens when the answer is there already. Until
 * the answer was taken the step's memory is not the caller's. As JSON it is one more of the 64 calls under way (-EBUSY). */
int fp9_step_cancel(struct fp9_session *session, uint64_t id, struct fp9_error *error);

/* The call that was answered first among those whose answers were not taken; 0: none. On a broken connection every call is answered. */
uint64_t fp9_next_answer(const struct fp9_conn *conn);
/* Drops a call's answer, now or when it comes. Nothing is cancelled at fp9d: see job.cancel, and fp9_step_cancel() for steps. Of a
 * session.open only the arena is dropped; the session lives as long as the connection. An id that is not known is ignored. */
void fp9_forget(struct fp9_conn *conn, uint64_t id);

/* Sends what is queued as far as the socket takes it, waits up to timeout_ms (0: not at all, -1: without limit; less when a signal comes)
 * for something to happen, and takes what has arrived. 0 also when nothing happened. A failure is final for the connection. */
int fp9_process(struct fp9_conn *conn, int timeout_ms, struct fp9_error *error);

/* A connection without a socket. NULL when out of memory. */
struct fp9_conn *fp9_new(void);
/* Bytes to be sent, valid until the next call on `conn`; *ret_length 0: none. */
const void *fp9_output(const struct fp9_conn *conn, size_t *ret_length);
void fp9_output_sent(struct fp9_conn *conn, size_t length);
/* Takes bytes that arrived, cut anywhere, with the descriptors that arrived with them (theirs from now on). length 0 means end of file.
 * A failure is final for the connection: every call not answered yet fails with it. */
int fp9_input(struct fp9_conn *conn, const void *data, size_t length, const int *fds, size_t fd_count, struct fp9_error *error);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif

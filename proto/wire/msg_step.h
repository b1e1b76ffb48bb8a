/* SESSION_OPEN .. SESSION_CLOSED, STEP, STEP_DONE. */
#ifndef FP9_WIRE_MSG_STEP_H
#define FP9_WIRE_MSG_STEP_H

#include "proto/base/digest.h"
#include "proto/wire/frame.h"

enum msg_dtype {
    MSG_BF16 = 0,
    MSG_F32 = 1,
};

struct msg_session_open {
    uint64_t session; /* fp9d's id, unique for the life of the link */
    uint8_t model_key[DIGEST_SIZE];
    uint32_t max_tokens; /* of one step, 1 .. WIRE_STEP_TOKENS_MAX */
    uint32_t top_k_max;  /* 0 for a model of dense layers only */
    enum msg_dtype partials;
    bool one_shot; /* a fresh kernel process for every step */
};

struct msg_step {
    uint64_t session;
    uint32_t layer;
    uint32_t tokens; /* 0 allowed: the answer is empty */
    uint32_t top_k;  /* 0 for a dense layer */
    uint32_t hidden;
    bool prefill;           /* which words of statistics the caller wants; the bits are the same */
    bool batch;             /* may wait for other sessions' steps; only sent to a duck with WIRE_FEATURE_BATCH */
    const uint8_t *x;       /* tokens * hidden BF16 */
    const uint8_t *ids;     /* tokens * top_k i32 */
    const uint8_t *weights; /* tokens * top_k binary32 */
};

/* Where the time of a one-shot step went on a duck: its kernel process started, up to main; weights mapped, kernels chosen; its team
 * started; the kernels; its end, until the duck has its result and it is gone. All of them are all of the step but its waiting. */
struct msg_one_shot {
    uint64_t spawn_ns, map_ns, team_ns, run_ns, exit_ns;
};

struct msg_step_done {
    uint64_t duck_time_ns; /* kernel time */
    uint64_t params;       /* weights applied, padding not counted */
    uint64_t weight_bytes; /* streamed from the weight buffer: an expert's bytes for each of its tiles */
    enum msg_dtype dtype;
    uint32_t tokens, hidden;
    const uint8_t *partial; /* tokens * hidden of dtype, view */
    bool counted;           /* what follows is there; only to a peer with WIRE_FEATURE_COUNTS */
    uint8_t mode;           /* 0 dense forward, 1 MoE forward, 4 the same SMP, 5 dense prefill, 6 MoE prefill */
    uint64_t tiles;         /* passes of one expert's weights with a tile of tokens */
    uint64_t tile_tokens;   /* tokens in all of them */
    bool one_shot;          /* what follows is there; only to a peer with WIRE_FEATURE_ONE_SHOT */
    struct msg_one_shot parts;
};

int msg_session_open_encode(struct buf *buf, uint64_t request, const struct msg_session_open *msg);
int msg_session_open_decode(const struct frame *frame, struct msg_session_open *ret_msg, struct err *err);
/* SESSION_OPENED, SESSION_CLOSE, SESSION_CLOSED carry the session id only. */
int msg_session_encode(struct buf *buf, enum wire_type type, uint64_t request, uint64_t session);
int msg_session_decode(const struct frame *frame, uint64_t *ret_session, struct err *err);
/* Reserves room for the tensors, 8-byte aligned within the payload; the caller fills *ret_x, *ret_ids, *ret_weights. */
int msg_step_encode(struct buf *buf, uint64_t request, const struct msg_step *msg, uint8_t **ret_x, uint8_t **ret_ids,
                    uint8_t **ret_weights);
int msg_step_decode(const struct frame *frame, struct msg_step *ret_msg, struct err *err);
/* The frame up to its partial, for who has the bytes of that in another place. *ret_bytes: of the head alone. */
#define MSG_STEP_DONE_HEAD_MAX 128
int msg_step_done_head(uint8_t ret_head[MSG_STEP_DONE_HEAD_MAX], uint64_t request, const struct msg_step_done *msg, size_t *ret_bytes);
/* Reserves room for the partial: *ret_partial. */
int msg_step_done_encode(struct buf *buf, uint64_t request, const struct msg_step_done *msg, uint8_t **ret_partial);
int msg_step_done_decode(const struct frame *frame, struct msg_step_done *ret_msg, struct err *err);

#endif

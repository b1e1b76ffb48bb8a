/* What fp9d holds for a session beside the core's decisions: the arena, and for each lane the buffers of a step and the request that waits
 * for its answer.
 *
 * All memory of steps is taken when the session is opened. */
#ifndef FP9_HEAD_SESSION_H
#define FP9_HEAD_SESSION_H

#include <jansson.h>

#include "daemon/head/head.h"
#include "daemon/head/trace.h"
#include "proto/control/b64.h"

#define SESSION_ALIGN 64 /* of offsets in the arena */

/* Part of the arena, [begin, end); empty for a tensor that is not there. */
struct session_range {
    uint64_t begin, end;
};

enum session_tensor {
    SESSION_X,
    SESSION_IDS,
    SESSION_WEIGHTS,
    SESSION_Y,
    SESSION_TENSORS,
};

/* A step's buffers, and the step that is in flight in them. */
struct session_lane {
    struct outgoing *frame; /* the chunk on its way, encoded once for all ranks */
    uint8_t *partials;      /* [tp][chunk_max * hidden] of partial_size */
    float *sum;             /* [chunk_max * hidden] */
    uint32_t summed;         /* ranks whose partials are in it, or which were not asked: 0 to this, less one */
    int32_t *ids;           /* [max_tokens * top_k_max], copied and validated */
    float *weights;         /* likewise */
    /* the step */
    bool busy;          /* from its submission to its answer */
    json_t *step_id;    /* owned; of the request to answer; NULL: it came through the ring */
    uint32_t ring_slot; /* then */
    bool in_ring;
    struct trace *trace; /* owned; NULL: nobody has asked for it */
    struct session_range tensors[SESSION_TENSORS]; /* the client's, while it is busy */
    const uint8_t *x;                              /* in the arena or x_copy */
    uint8_t *y;                                    /* in the arena or y_copy */
    enum msg_dtype y_dtype;
    bool y_b64;
    uint8_t *x_copy, *y_copy; /* owned, B64_BYTES_MAX each, made when first needed */
};

struct ring_host;

struct session {
    struct session *next;
    uint64_t id, client;
    uint32_t hidden, tp, top_k_max, max_tokens, chunk_max;
    size_t partial_size;    /* bytes of one element of a partial: 2 or 4 */
    enum msg_dtype output;  /* of y, unless the step says otherwise */
    uint64_t job;           /* its steps are a batch; 0: they are not */
    json_t *open_id;        /* owned; set while session.open waits */
    int arena_fd;           /* memfd, sealed against shrinking and growing */
    uint8_t *arena;         /* mapped, mapped_bytes; the client may write to it at any time */
    uint64_t arena_bytes;   /* for tensors */
    uint64_t mapped_bytes;  /* with the ring */
    struct ring_host *ring; /* owned; NULL: none. Its memory is behind the arena */
    uint32_t lane_count;
    struct session_lane lanes[CORE_LANES_MAX];
};

struct session *session_find(const struct head *head, uint64_t id);
/* Memory and arena for a session that the core has just opened. Added to the head's list. */
int session_new(struct head *head, const struct core_session *core_session, const json_t *open_id, bool ring, struct err *err);
/* CORE_ACT_SESSION_GONE */
void session_forget(struct head *head, uint64_t id);
void session_free_all(struct head *head);

/* Actions. */
void session_send_open(struct head *head, uint32_t duck, uint64_t id);
void session_send_close(struct head *head, uint32_t duck, uint64_t id);
void session_send_chunk(struct head *head, uint64_t id, uint32_t lane);
void session_send_step_cancel(struct head *head, uint32_t duck, uint64_t step);
void session_sum_chunk(struct head *head, uint64_t id, uint32_t lane);
/* A STEP_DONE frame: keeps the partial, tells the core. */
void session_take_result(struct head *head, uint32_t duck, const struct frame *frame);

#endif

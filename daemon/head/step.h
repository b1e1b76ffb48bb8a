/* A client's step on its way in: checked, its tensors copied or located, handed to the core.
 *
 * Requests come as JSON lines (rpc_step.c) or through a step ring (ring.c). Both fill a struct step_call, and step_take alone decides
 * whether it is right, so a request is refused in the same words whichever way it came. */
#ifndef FP9_HEAD_STEP_H
#define FP9_HEAD_STEP_H

#include "daemon/head/session.h"

struct step_tensor {
    bool given;
    bool b64;         /* its bytes stand in the request as text, those of y go into the answer */
    uint64_t offset;  /* in the arena */
    const char *text; /* borrowed; NULL: none was given */
};

struct step_call {
    bool prefill;
    uint32_t layer, tokens;
    uint32_t top_k;       /* 0: by the length of topk_ids' text, or the session's top_k_max */
    uint32_t deadline_ms; /* 0: as long as it takes */
    bool y_dtype_given;
    enum msg_dtype y_dtype; /* else the session's */
    struct step_tensor tensors[SESSION_TENSORS];
};

/* On success the step is in flight in *ret_lane, whose `busy` is set: the caller notes there whom to answer. Everything that is checked is
 * checked on copies: a client may write to the arena at any time. */
int step_take(struct head *head, struct session *session, const struct step_call *call, uint32_t *ret_lane, struct err *err);

/* At its client's wish. Its answer, CANCELLED, follows as a failure does. */
void step_cancel(struct head *head, const struct session *session, uint32_t lane);

/* CORE_ACT_STEP_DONE and CORE_ACT_STEP_FAILED: the answer, the way the request came. */
void step_done(struct head *head, uint64_t session, uint32_t lane);
void step_failed(struct head *head, uint64_t session, uint32_t lane);

#endif

/* PURE. Sessions of one link: what was agreed at open, and whether a step keeps to it. */
#ifndef FP9_DUCK_SESSION_H
#define FP9_DUCK_SESSION_H

#include "daemon/duck/wbuf.h"
#include "proto/wire/msg_step.h"

#define SESSIONS_MAX WIRE_SESSIONS_MAX

struct session {
    bool used;
    struct msg_session_open open;
    uint32_t hidden; /* of the model's slots here */
    bool closing;    /* SESSION_CLOSE came while a step of it ran; answered after that step */
    uint64_t close_request;
};

struct sessions {
    struct session sessions[SESSIONS_MAX];
};

/* Room that steps of a session need beforehand: the largest over the model's slots. */
struct session_needs {
    size_t scratch_bytes; /* compute_scratch_bytes of the largest step */
};

/* CACHE_STALE when no finished slot of the model is here, BUSY when the table is full, BAD_SHAPE when an answer would not fit a frame. */
int session_open(struct sessions *sessions, const struct wbuf *wbuf, const struct msg_session_open *open, uint32_t members,
                 struct session_needs *ret_needs, struct err *err);
struct session *session_find(struct sessions *sessions, uint64_t id); /* NULL: none */
void session_close(struct session *session);

/* All that the head should have checked. ids may be unaligned. BAD_EXPERT names token and slot. */
int session_check_step(const struct session *session, const struct geometry *geometry, const struct msg_step *step, struct err *err);

#endif

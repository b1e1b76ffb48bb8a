/* What fp9d counts about itself: timing.h of its steps, and what else happened since the start. Told by the edges as it happens, read by
 * the method metrics and the metrics listener. Loop thread only. */
#ifndef FP9_HEAD_METRICS_H
#define FP9_HEAD_METRICS_H

#include "daemon/head/head.h"
#include "daemon/head/timing.h"

enum metrics_cache {
    METRICS_HIT,
    METRICS_PARTIAL,
    METRICS_MISS,
    METRICS_CACHES,
};

struct metrics {
    struct timing *timing;                 /* owned */
    uint64_t errors[ERR_NAME_COUNT_];      /* error answers to clients */
    uint64_t jobs[CORE_JOB_CANCELLED + 1]; /* that ended, by their last state */
    uint64_t caches[METRICS_CACHES];       /* what loads that were done had found */
    uint64_t read_bytes, sent_bytes;       /* of checkpoints, and to ducks, by jobs that are over */
    uint64_t ups[CORE_DUCKS_MAX], losses[CORE_DUCKS_MAX];
};

struct metrics *metrics_new(void); /* NULL: out of memory */
void metrics_free(struct metrics *metrics);

void metrics_error(struct head *head, const struct err *err);
void metrics_duck_up(struct head *head, uint32_t duck);
/* Before the core is told. */
void metrics_duck_lost(struct head *head, uint32_t duck);
void metrics_job_over(struct head *head, const struct core_job *job);
void metrics_model_gone(struct head *head, uint32_t model);
void metrics_session_ready(struct head *head, uint64_t session);
void metrics_session_gone(struct head *head, uint64_t session);
/* A rank has answered a chunk of the step. */
void metrics_answer(struct head *head, uint64_t now, uint32_t duck, const struct core_step *step, const struct msg_step_done *done);
/* What is to be counted of a step that is done. */
struct metrics_step {
    uint64_t now;
    uint32_t place, last_layer; /* of its session in struct core; of its model */
    struct timing_step timing;
};
/* False: nothing, it had no tokens. */
bool metrics_step_take(const struct head *head, uint64_t session, uint32_t lane, struct metrics_step *ret_step);
/* Logs the forwards that end with it, at level debug. */
void metrics_step_add(struct head *head, const struct metrics_step *step);

/* With what running jobs have read and sent so far. */
void metrics_bytes(const struct head *head, uint64_t *ret_read, uint64_t *ret_sent);
uint64_t metrics_reconnects(const struct metrics *metrics, uint32_t duck);
uint64_t metrics_resident_bytes(void); /* of this process; 0: unknown */

/* "decode", "prefill" */
const char *metrics_kind_name(enum timing_kind kind);
/* "judge_wait", ... */
const char *metrics_word_name(enum timing_word word);

#endif

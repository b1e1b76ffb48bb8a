/* PURE. What finished steps took, per session, layer and duck: the timing words of fp9ctl(1), rolling over the last 30 to 60 seconds.
 *
 * All memory is taken when a duck comes up or a session is opened, none on the step path. Time is passed in. Loop thread only. */
#ifndef FP9_HEAD_TIMING_H
#define FP9_HEAD_TIMING_H

#include "daemon/head/core.h"
#include "daemon/head/histogram.h"

#define TIMING_LAYERS_MAX 2048 /* of all models together that are kept apart: about 30 KB for each that runs */

enum timing_kind {
    TIMING_DECODE,
    TIMING_PREFILL,
    TIMING_KINDS,
};

enum timing_word {
    TIMING_JUDGE_WAIT,  /* ns */
    TIMING_DUCK_MAX,    /* ns */
    TIMING_JUDGE_GAP,   /* ns; judge_wait - duck_max */
    TIMING_JUDGE_RATIO, /* thousandths; not of steps with a duck_max of 0 */
    TIMING_WORDS,
};

/* A finished step, sums over its chunks. */
struct timing_step {
    uint32_t lane;
    enum timing_kind kind;
    uint32_t layer, tokens;
    uint64_t judge_wait_ns, duck_max_ns;
    uint64_t params, weight_bytes;
    uint64_t tiles, tile_tokens;
    uint32_t straggler;    /* duck that was waited for alone, CORE_NONE: the step has one rank */
    uint64_t straggler_ns; /* for so long */
};

/* What adds up to rates. */
struct timing_sums {
    uint64_t steps, tokens, params, weight_bytes, judge_wait_ns, duck_max_ns, tiles, tile_tokens;
};

/* Which of two is the running period's, as in histogram.h. */
struct timing_turn {
    uint64_t period;
    uint32_t current;
};

struct timing_rolling {
    struct timing_sums total; /* since the start */
    struct timing_turn turn;
    struct timing_sums periods[2];
};

/* One kind of step of a session, a layer, or all. */
struct timing_set {
    struct timing_rolling sums;
    struct histogram words[TIMING_WORDS];
};

/* Who was last, and by how much. */
struct timing_late {
    uint64_t steps, ns; /* since the start */
    struct timing_turn turn;
    struct {
        uint64_t steps, ns;
    } periods[2];
};

/* Steps of one lane and kind whose layer numbers rise: a token (or a prompt) on its way through a model. It is over when a layer comes
 * that is not above the last one, with the model's last layer, and when the session ends. */
struct timing_forward {
    uint32_t steps; /* 0: none is under way */
    enum timing_kind kind;
    uint32_t tokens, first_layer, last_layer;
    struct timing_sums sums;
    uint32_t straggler; /* that cost most in one step */
    uint64_t straggler_ns;
};

struct timing_session {
    uint64_t id;
    uint32_t model;
    struct timing_forward forwards[CORE_LANES_MAX]; /* by lane */
    struct timing_set kinds[TIMING_KINDS];
    struct timing_late late[CORE_DUCKS_MAX]; /* by duck */
};

struct timing_duck {
    struct histogram time[TIMING_KINDS]; /* duck_time, ns: one value a chunk */
    struct timing_late late;
};

struct timing_layers {
    struct timing_set (*layers)[TIMING_KINDS]; /* owned, [count]; NULL: none are kept of this model */
    uint32_t count;
    uint8_t key[DIGEST_SIZE];
};

struct timing {
    struct timing_set kinds[TIMING_KINDS];
    struct timing_session *sessions[CORE_SESSIONS_MAX]; /* owned; by place in struct core, NULL: none */
    struct timing_duck *ducks[CORE_DUCKS_MAX];          /* owned; NULL: was never up */
    struct timing_layers models[CORE_MODELS_MAX];       /* by place in struct core */
    uint32_t layers;                                    /* of all models */
};

struct timing *timing_new(void); /* NULL: out of memory */
void timing_free(struct timing *timing);
CLEANUP_DEFINE(struct timing *, timing_free);

/* Room for a duck. What there is no memory for is not counted. */
void timing_duck_up(struct timing *timing, uint32_t duck);
/* A session is there, at `place` of struct core: room for it and its model's layers. False: these would pass TIMING_LAYERS_MAX, or there is
 * no memory; it works, and they are not counted. */
bool timing_session_open(struct timing *timing, const struct core *core, uint32_t place);
struct timing_session *timing_session_find(const struct timing *timing, uint64_t id); /* NULL: unknown */
void timing_session_gone(struct timing *timing, uint64_t id);                         /* an unknown one is ignored */
void timing_model_gone(struct timing *timing, uint32_t model);

/* A duck has answered a chunk. */
void timing_answer(struct timing *timing, uint64_t now, uint32_t duck, enum timing_kind kind, uint64_t duck_time_ns);
/* A step of the session at `place` is done; last_layer is the model's. Gives how many forwards it ended (0 to 2): the one before it, the
 * one that it is the end of; they are in ret_forwards. */
uint32_t timing_step(struct timing *timing, uint64_t now, uint32_t place, uint32_t last_layer, const struct timing_step *step,
                     struct timing_forward ret_forwards[2]);

/* Of the last 30 to 60 seconds. */
struct timing_sums timing_recent(const struct timing_rolling *rolling, uint64_t now);
/* Steps in which it was last, and the time it was waited for alone in them. */
uint64_t timing_late_recent(const struct timing_late *late, uint64_t now, uint64_t *ret_ns);
/* Who was last most often lately; CORE_NONE: nobody. Of a session, or with NULL of all. */
struct timing_straggler {
    uint32_t duck;
    double share;   /* of the steps with more than one rank */
    double late_us; /* mean over those in which it was last: how long it was waited for alone */
};
struct timing_straggler timing_straggler(const struct timing *timing, const struct timing_session *session, uint64_t now);

#endif

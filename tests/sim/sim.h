/* The shipped core of fp9d among ducks that are a few lines of memory, in virtual time.
 *
 * A test says what happens; sim_run lets time pass and carries out the core's actions as the edges of fp9d would. Loads read the real
 * trained checkpoint's headers. Every action leaves a line in the trace. */
#ifndef FP9_TESTS_SIM_H
#define FP9_TESTS_SIM_H

#include "daemon/head/core.h"
#include "proto/base/clock.h"

#define SIM_DUCKS_MAX 8
#define SIM_SLOTS_MAX 64
#define SIM_SHARDS_MAX 16
#define SIM_LATENCY (1 * CLOCK_NS_PER_MS) /* between an action and the duck's answer */
#define SIM_TICK (100 * CLOCK_NS_PER_MS)

struct sim_duck {
    bool running;       /* its process is there */
    bool mute;          /* takes everything, answers nothing (SIGSTOP) */
    bool idle;          /* answers everything but steps */
    bool lagging;       /* keeps the answers to steps until it is no more, and obeys no STEP_CANCEL */
    unsigned cancels, stray_cancels; /* STEP_CANCELs of steps that it worked on, and others */
    bool old;           /* knows no strategy but tp */
    bool refuses_start; /* dies as soon as it is started */
    unsigned starts;
    unsigned boots;                       /* its buffer was lost so often */
    struct msg_slot slots[SIM_SLOTS_MAX]; /* its weight buffer: outlives the process */
    size_t slot_count;
    uint64_t capacity;
};

struct sim {
    struct core *core;
    uint64_t now;
    uint64_t ticked;
    struct sim_duck ducks[SIM_DUCKS_MAX];
    uint32_t duck_count;
    struct buf records[SIM_SHARDS_MAX]; /* what fp9d's database holds of its shards */
    uint32_t salt;                      /* weights of another version digest to something else in layers >= salted_from */
    uint32_t salted_from;
    bool touched;             /* the shards' records are of other files: nothing of them is trusted */
    unsigned digests, rekeys; /* DIGEST actions, slots rekeyed */
    bool hold_streams;        /* STREAM is noted and not carried out until sim_stream_slots */
    uint64_t streaming;       /* job of the noted STREAM, 0: none */
    /* answers on their way */
    struct sim_answer {
        uint64_t at;
        struct core_action action;
        uint64_t step; /* of a STEP_CHUNK */
    } answers[512];
    size_t answer_count;
    /* what clients saw */
    unsigned sessions_ready, sessions_failed, steps_done, steps_failed, drops_done, revocations;
    uint64_t last_freed;
    unsigned last_unreached;
    struct err last_step_err;
    uint32_t last_done_lane;
    unsigned saved, forgotten, errands_stopped;
};

void sim_start(struct sim *sim, uint32_t ducks, uint64_t capacity);
void sim_stop(struct sim *sim);
/* fp9d is started anew, with nothing remembered; the ducks keep what they hold. */
void sim_restart(struct sim *sim, uint64_t grace_ns);
/* Lets time pass, in ticks and in the order of the answers. */
void sim_run(struct sim *sim, uint64_t duration);
void sim_kill(struct sim *sim, uint32_t duck, const char *how);
/* Of a held stream: sends the next `count` missing slots. */
void sim_stream_slots(struct sim *sim, size_t count);
void sim_stream_end(struct sim *sim);

/* A load of the trained checkpoint under `name`, run to its end. Returns the job. */
const struct core_job *sim_load(struct sim *sim, const char *name, uint32_t tp, uint32_t multiple_of);
uint64_t sim_load_begin(struct sim *sim, const char *name, uint32_t tp, uint32_t multiple_of);
uint64_t sim_load_begin_as(struct sim *sim, const char *name, struct plan_strategy strategy, uint32_t tp, uint32_t multiple_of);
uint64_t sim_session(struct sim *sim, const char *model);

#endif

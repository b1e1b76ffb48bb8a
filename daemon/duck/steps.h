/* Steps that wait for the kernel thread, with memory that is used again: a step copies its frame's tensors, because the frame's bytes go
 * when the next one is read. Those of a kind take turns by session: of each session one, then of each the next. One thread. */
#ifndef FP9_DUCK_STEPS_H
#define FP9_DUCK_STEPS_H

#include "proto/base/cleanup.h"
#include "proto/wire/msg_step.h"

#define STEPS_MAX 256                       /* waiting or running on one link */
#define STEPS_BYTES_MAX (UINT64_C(1) << 30) /* of tensors and partials of all of them, idle ones too */

#define STEPS_INTERACTIVE_TOKENS 4 /* a step of more is batch work, whatever its session says */

struct step {
    uint64_t request;
    bool batch;            /* may wait for and be paused by those that are not */
    struct msg_step words; /* x, ids, weights point into `memory`, 64-byte aligned */
    uint8_t *ids;          /* words.ids, to be written to by whoever starts the step */
    uint8_t *partial;      /* tokens * hidden * 4 bytes, 64-byte aligned, in `memory` */
    uint8_t *memory;       /* owned */
    size_t room;
    uint64_t round; /* no session has two steps in the same one */
    struct step *next;
};

/* Zero-initialised is empty. */
struct steps {
    struct step_queue {
        struct step *first;                 /* by round, then by age */
        uint64_t round;                     /* of the step that was popped last */
        uint64_t served[WIRE_SESSIONS_MAX]; /* sessions that have had their turn in it */
        uint32_t served_count;
    } waiting[2]; /* [batch] */
    struct step *idle;             /* memory to use again */
    uint32_t count;                /* waiting or given out by steps_pop */
    uint64_t bytes;                /* of memory in all of them */
};

/* An idle step large enough for a session's steps, so that they allocate nothing. */
int steps_reserve(struct steps *steps, uint32_t tokens, uint32_t hidden, uint32_t top_k, struct err *err);
/* Copies; BUSY when too many wait. */
int steps_push(struct steps *steps, uint64_t request, const struct msg_step *words, struct err *err);
/* The next one that is batch work or not, NULL when none waits; goes back by steps_done. */
struct step *steps_pop(struct steps *steps, bool batch);
void steps_done(struct steps *steps, struct step *step);
/* A step that waits, by its request, or with request 0 any of the session; NULL: there is none. Goes back by steps_done. */
struct step *steps_withdraw(struct steps *steps, uint64_t request, uint64_t session);
void steps_release(struct steps *steps);

#endif

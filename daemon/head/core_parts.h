/* PURE. What the parts of the core (core*.c) call of one another; nobody else includes this. */
#ifndef FP9_HEAD_CORE_PARTS_H
#define FP9_HEAD_CORE_PARTS_H

#include "daemon/head/core.h"

/* What a load wants to find on the ducks (core_wants.c). The model is a copy that holds arch, plan, key, provisional. */
struct core_wants {
    const struct core_model *model;  /* the one in the table, whose own keys are free to take from */
    const struct core_model *next;   /* as it would be */
    uint8_t (*sources)[DIGEST_SIZE]; /* owned, [layers] of the plan's slots: plan_slot_sources */
    bool *known;                     /* owned, [layers] */
    bool force;                      /* nothing there is good enough */
};

int core_wants_init(struct core_wants *wants, const struct core_model *model, const struct core_model *next,
                    const struct checkpoint *checkpoint, bool force, struct err *err);
void core_wants_release(struct core_wants *wants);
/* A finished slot of the layer and rank that can stay, under whatever key; the model's own is preferred. NULL: none. */
const struct msg_slot *core_wants_usable(const struct core *core, const struct core_wants *wants, uint32_t duck, uint32_t layer,
                                         uint32_t rank);
/* There is a slot that can stay if the layer's weights turn out to be its sources, which is not known yet. */
bool core_wants_candidate(const struct core *core, const struct core_wants *wants, uint32_t duck, uint32_t layer, uint32_t rank);
/* core_loss.c: notes why slots of a key are gone; duck, layer CORE_NONE: all. The same place noted again gets the new text. */
void core_lost(struct core *core, const uint8_t key[DIGEST_SIZE], uint32_t duck, uint32_t layer, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void core_loss_forget(struct core *core, const uint8_t key[DIGEST_SIZE]); /* all of a key */
void core_loss_forget_whole(struct core *core, const uint8_t key[DIGEST_SIZE]); /* that of no certain duck and layer */
const struct core_loss *core_loss_find(const struct core *core, const uint8_t key[DIGEST_SIZE], uint32_t duck, uint32_t layer);
/* "2026-01-02T03:04:05Z" */
#define CORE_TIME_MAX 24
const char *core_time_text(const struct core *core, uint64_t now, char text[CORE_TIME_MAX]);
/* Before the header that a duck has come up with is taken over: what has gone of what was known, and why. */
void core_mirror_compare(struct core *core, uint32_t duck, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t count);
void core_mirror_tick(struct core *core, uint64_t now, uint32_t duck);
/* Why a load has to prepare what it does, in words (core_reason.c). */
void core_reason(const struct core *core, const struct core_model *model, const struct core_model *next, const struct core_job *job,
                 const struct checkpoint *checkpoint, size_t total, char text[CORE_REASON_MAX]);
/* Notes in the job what the weights are. */
int core_seal_learn(struct core *core, struct core_job *job, const struct checkpoint *checkpoint, struct err *err);
/* All slots are there: those under other keys are put under the model's. Ends the job, now or when the ducks have answered. */
void core_seal(struct core *core, uint64_t now, struct core_job *job);
void core_seal_slot_done(struct core *core, uint64_t now, struct core_job *job, uint32_t duck, const struct msg_slot *slot);
void core_load_finish(struct core *core, uint64_t now, struct core_job *job);
void core_push(struct core *core, enum core_action_type type, uint32_t duck, uint64_t id);
void core_push_step(struct core *core, enum core_action_type type, const struct core_session *session, const struct core_step *step);
void core_session_free(struct core_session *session); /* what it owns; its place is unused then */
/* The step ends with err, if it runs. */
void core_step_end(struct core *core, struct core_session *session, struct core_step *step, const struct err *err);
void core_model_duck_lost(struct core *core, uint64_t now, uint32_t duck);
void core_model_reconcile(struct core *core, uint64_t now, uint32_t model);
void core_session_duck_lost(struct core *core, uint64_t now, uint32_t duck);
void core_session_model_ready(struct core *core, uint32_t model);
void core_job_free(struct core_job *job); /* what it owns */
void core_job_changed(struct core *core, uint64_t id);
void core_job_start_queued(struct core *core, uint64_t now);
void core_job_end(struct core *core, uint64_t now, struct core_job *job, enum core_job_state state, const struct err *err);
/* Whether there is room for one more (core_admit.c). */
int core_admit_session(const struct core *core, uint64_t client, const struct core_model *model, struct err *err);
int core_admit_job(const struct core *core, struct err *err);
/* core_errand.c: why is the job's end and what its client hears. */
void core_errand_cancel(struct core *core, uint64_t now, struct core_job *job, const struct err *why);
/* Of a session's batch so many tokens are through; a step failed or was refused, which is why, if its client gives up now; its session
 * ends, by err or because its client closes it (NULL). */
void core_batch_progress(struct core *core, uint64_t now, const struct core_session *session, uint32_t tokens);
void core_batch_over(struct core *core, uint64_t now, const struct core_session *session, const struct err *err);
/* The session stays until its client closes it; err is the answer to whatever that tries next. */
void core_session_end(struct core *core, uint64_t now, struct core_session *session, const struct err *err);
int core_job_new(struct core *core, uint64_t now, const char *kind, uint32_t model, struct core_job **ret_job, struct err *err);
const struct msg_slot *core_duck_slot(const struct core_duck *duck, const uint8_t key[DIGEST_SIZE], uint32_t layer);
void core_duck_forget_slot(struct core_duck *duck, const uint8_t key[DIGEST_SIZE], uint32_t layer);
/* BAD_SHAPE: the model has no such layer. */
int core_model_no_layer(const struct core_model *model, uint32_t layer, struct err *err);
bool core_model_has_slot(const struct core *core, const struct core_model *model, uint32_t layer, uint32_t rank);
static inline uint32_t core_model_index(const struct core *core, const struct core_model *model)
{
    return (uint32_t)(model - core->models);
}
void core_placement_free(struct core_placement *placement);
/* Out of the model, which is left without. */
struct core_placement core_placement_take(struct core_model *model);
/* Every slot of its plan is finished on its duck. */
bool core_model_complete(const struct core *core, const struct core_model *model);
void core_model_set_ready(struct core *core, uint32_t model);
/* Everything is worked out on a copy of the model and taken over only when all of it holds, so that a refused load leaves a loaded
 * model as it was. Positive: nothing was taken over, and it is to be called again. */
enum {
    CORE_PLAN_WAIT = 1,   /* when job->waits_for is over */
    CORE_PLAN_DIGEST = 2, /* when the layers of job->digest are digested */
    CORE_PLAN_WHOLE = 3,  /* with the checkpoint opened whole */
};
/* What `invalidate-cache --model` could free on a duck, in words: by name, or by the key of slots that no loaded model uses. Not `own`. */
void core_list_droppable(const struct core *core, const uint8_t own[DIGEST_SIZE], const struct core_duck *duck, char *text, size_t size);
int core_load_plan(struct core *core, struct core_job *job, struct arch *arch, const struct checkpoint *checkpoint, struct err *err);
/* The job ends, and the model is what that makes of it. */
/* A load that did not come to its end: its model wants again what it wanted before. */
void core_load_unwant(struct core_model *model, const struct core_job *job);
/* A job that fills the shape that is there; only a load may change it. */
bool core_job_again(const struct core_job *job, const struct core_model *model);
/* "load it again", and with which options it comes back as it was, where that is known. */
#define CORE_AGAIN_MAX 128
const char *core_load_again_text(const struct core_model *model, char text[CORE_AGAIN_MAX]);
void core_load_fail(struct core *core, uint64_t now, struct core_job *job, const struct err *err);
void core_model_free_placements(struct core_model *model);
/* Ends the sessions of a model that are not of its present key. */
void core_session_key_gone(struct core *core, uint32_t model, const struct err *err);
/* A load ended without success: a model that was READY before it is so again, by its old plan. False: there is none to return to. */
bool core_model_return(struct core *core, struct core_model *model);
/* Another model of the same key, whose slots are the same ones; NULL: none. */
const struct core_model *core_model_sharing(const struct core *core, const struct core_model *model, const uint8_t key[DIGEST_SIZE]);
int core_assign(const struct core *core, const struct core_wants *wants, uint32_t *ret_duck_of_rank, struct err *err);
void core_session_model_gone(struct core *core, uint64_t now, uint32_t model, const struct err *err);
/* Applies what it was absent for, before anything counts on its slots. */
/* A load ends early: its finished slots stay for the next one, if that begins under the same key. Those that an earlier one has left under
 * another key go. */
void core_drop_leave(struct core *core, struct core_model *model, const struct core_job *job);
/* What loads have left goes, unless it is under `key`. */
void core_drop_left(struct core *core, struct core_model *model, const uint8_t key[DIGEST_SIZE]);
void core_drop_duck_up(struct core *core, uint32_t duck);
void core_drop_duck_lost(struct core *core, uint32_t duck);
void core_err_duck_lost(const struct core *core, uint32_t duck, const char *phase, uint32_t layer, struct err *err);
/* NOT_READY: no duck that is not a spare is up. Names the first few that should be, with what is wrong with each. */
int core_err_no_duck(const struct core *core, struct err *err);

#endif

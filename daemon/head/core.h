/* PURE. What fp9d decides: the fleet, the models on it, sessions, steps, jobs.
 *
 * Events go in as function calls that carry the time; decisions come out as actions (core_next_action), which the edges carry out
 * (act.c). Nothing here does I/O, reads a clock or starts a thread, so the whole runs in virtual time in tests/sim. The structs are
 * open for reading (status, lists); only core*.c writes them.
 *
 * One thread (the loop's).
 */
#ifndef FP9_HEAD_CORE_H
#define FP9_HEAD_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/checkpoint.h"
#include "daemon/model/plan.h"
#include "proto/base/err.h"
#include "proto/wire/msg_hello.h"
#include "proto/wire/msg_prepare.h"
#include "proto/wire/msg_step.h"

#define CORE_DUCKS_MAX 256
#define CORE_MODELS_MAX 64
#define CORE_SESSIONS_MAX 1024
#define CORE_SESSIONS_CLIENT_MAX 32 /* of one connection: half of what a duck holds, so that nobody has a duck alone */
#define CORE_JOBS_MAX 256           /* finished ones are forgotten, oldest first */
#define CORE_JOBS_LIVE_MAX 128      /* queued or running; the rest of the table is history */
#define CORE_NAME_MAX 64
#define CORE_PATH_MAX 4096
#define CORE_CHUNK_BYTES (256u * 1024 * 1024) /* partials of a chunk a lane, over all ranks and lanes: bounds memory of long prefills */
#define CORE_CHUNK_TOKENS_MAX 512             /* ducks take no more at once either; frames of more would keep a step waiting */
#define CORE_LANES_MAX 8                      /* steps of one session in flight; proto/control/rpc.h has the same number */
#define CORE_LANES_DEFAULT 2                  /* room to send one while another runs */
#define CORE_NONE UINT32_MAX
#define CORE_REASON_MAX 512
#define CORE_KEY_PREFIX_MIN 6
#define CORE_LOSSES_MAX 256 /* then the oldest are forgotten */

/* ---- fleet ---- */

enum core_duck_state {
    CORE_DUCK_CONNECTING, /* being started, not yet up since the last loss */
    CORE_DUCK_UP,
    CORE_DUCK_LOST, /* waits for its next start */
};

struct core_duck {
    char name[CORE_NAME_MAX];
    bool spare;
    enum core_duck_state state;
    bool ever_up;
    bool fresh;                       /* its weight buffer was made by this fp9d: that of before, if any, ended with that fp9d */
    struct msg_hello_duck hello;      /* valid once ever_up */
    bool mirrored;                    /* slots were known before it came up: from an earlier life, or from the database */
    uint32_t mirror_gone, mirror_new; /* slots in which its header differed from what was known, when it came up last */
    bool mirror_dirty;                /* the database has not been told of slots yet */
    uint64_t mirror_ns;               /* when it was told last */
    uint64_t used_bytes;              /* of its weight buffer: sum of slots */
    struct msg_slot *slots;           /* owned; the duck's header as last told, kept current by SLOT_DONE and DROPPED */
    size_t slot_count, slot_capacity;
    bool room_known;
    uint64_t *ranges; /* owned, [range_count]; bytes of the buffer's free ranges, in the order in which it tries them; when room_known */
    size_t range_count;
    uint64_t heard_ns;       /* last frame from it */
    uint64_t pinged_ns;      /* last PING to it */
    uint64_t state_since_ns; /* since when connecting or lost */
    uint32_t failures;       /* starts since it was up last, that came to nothing */
    uint64_t backoff_ns;     /* wait before the next start; 0 after it was up for a while */
    uint64_t start_at_ns;    /* when LOST: next start */
    uint64_t up_since_ns;
    uint64_t rtt_ns; /* of the last PING; 0 unknown */
    char lost_reason[256];
};

/* ---- models ---- */

#define CORE_WHY_MAX 192

/* How a model was when it was ready last; to say what has changed. */
struct core_was {
    bool known;
    uint32_t layout, tp, multiple_of;
    bool mtp;
    struct plan_strategy strategy;
    uint8_t key[DIGEST_SIZE];
};

/* Where a model's slots are. */
struct core_placement {
    struct arch *arch; /* owned; NULL until opened once */
    struct plan *plan; /* owned; NULL until planned */
    uint8_t key[DIGEST_SIZE];
    uint32_t *duck_of_rank; /* owned, [plan->tp] */
};

/* What a load asks for. */
struct core_want {
    uint32_t tp, multiple_of; /* 0: the planner chooses */
    struct plan_strategy strategy;
    bool mtp; /* layers for multi-token prediction too */
};

enum core_model_state {
    CORE_MODEL_LOADING, /* its first load runs */
    CORE_MODEL_READY,
    CORE_MODEL_DEGRADED,   /* a rank's duck is lost */
    CORE_MODEL_RECOVERING, /* ducks are up, missing slots are being prepared again */
    CORE_MODEL_FAILED,     /* the last load failed, see error */
    CORE_MODEL_UNLOADED,   /* its cache was invalidated: until it is loaded again, also by a later fp9d */
};

struct core_model {
    bool used;
    char name[CORE_NAME_MAX];
    char path[CORE_PATH_MAX];
    enum core_model_state state;
    struct arch *arch; /* owned; NULL until opened once */
    struct plan *plan; /* owned; NULL until planned */
    uint8_t key[DIGEST_SIZE];
    bool provisional;             /* key stands for files whose weights are not all digested yet: no slot is used under it */
    uint32_t *duck_of_rank;       /* owned, [plan->tp] */
    uint64_t job;                 /* running load, 0: none */
    bool registered;              /* a load of it has succeeded: it comes back by itself */
    char cache[16];               /* hit, partial, miss: of the last load */
    char reason[CORE_REASON_MAX]; /* of the last load */
    struct core_was was;
    /* Finished slots of a load that ended early, under a key that stands for files: of no use once these have changed. */
    bool left;
    uint8_t left_key[DIGEST_SIZE];
    struct err error; /* why it is not ready; code 0: nothing */
    char unloaded[CORE_WHY_MAX]; /* "its cache was invalidated by uid 0 at ...": it does not come back by itself; "": it does */
    struct core_want want; /* what was asked for, for reloads */
    /* While a READY model is loaded again by another plan: the old one, on which its sessions go on and to which it returns if the
     * load fails. plan NULL: none. */
    struct core_placement old;
};

/* ---- jobs ---- */

enum core_job_state {
    CORE_JOB_QUEUED,
    CORE_JOB_RUNNING,
    CORE_JOB_DONE,
    CORE_JOB_FAILED,
    CORE_JOB_CANCELLED,
};

enum core_job_phase {
    CORE_PHASE_OPEN,    /* headers and scales are being read and checked */
    CORE_PHASE_DIGEST,  /* weights are being read to tell which slots can be kept */
    CORE_PHASE_PREPARE, /* slots are being sent */
    CORE_PHASE_SEAL,    /* slots that are there go under the model's key */
    CORE_PHASE_END,
};

struct core_missing {
    uint32_t layer, rank;
    bool done;
};

/* A finished slot that goes under the model's key. */
struct core_rekey {
    uint32_t layer, rank;
    uint8_t from[DIGEST_SIZE], sources[DIGEST_SIZE];
    bool done;
};

struct core_job {
    bool used;
    uint64_t id;
    const char *kind; /* "load", "prepare", "recover"; "verify", "decode", "prefill" are errands (core_errand.c) */
    uint32_t model;   /* while it runs; afterwards the place may hold another; CORE_NONE: of an errand, or of an earlier life */
    char model_name[CORE_NAME_MAX];
    uint32_t layer; /* CORE_NONE: all */
    bool memory;    /* its weights come from a client's memory: of the layers that are there it prepares what is missing */
    bool force;
    bool whole; /* a glance at its checkpoint was not enough */
    bool wanted; /* of a load: its model was loaded, or on its way back, and `before` is what it goes on with when this fails */
    struct core_want before;
    enum core_job_state state;
    enum core_job_phase phase;
    uint64_t waits_for;           /* while QUEUED: another job that prepares the same slots under another name; 0: none */
    struct core_missing *missing; /* owned; slots to prepare, by layer then rank */
    size_t missing_count, missing_done;
    bool digested;                  /* the weights were read once for it already */
    bool *digest;                   /* owned, [layers]: layers whose weights are to be read in CORE_PHASE_DIGEST */
    struct arch *arch;              /* owned, during CORE_PHASE_DIGEST */
    uint8_t begun_key[DIGEST_SIZE]; /* under which it sends slots */
    bool begun_provisional;
    /* What the weights turned out to be: from the stream's end on. */
    bool key_known;
    uint8_t key[DIGEST_SIZE];
    uint8_t (*sources)[DIGEST_SIZE]; /* owned, [layers] */
    bool *known;                     /* owned, [layers] */
    struct core_rekey *rekeys;       /* owned; in CORE_PHASE_SEAL */
    size_t rekey_count, rekey_done;
    bool streaming; /* the loader works for it: it may end only when the loader has let go */
    uint64_t queued_ns, started_ns, ended_ns;
    uint64_t opened_ns; /* of a load: its checkpoint was opened, so that bytes can come from then on; 0: not yet */
    uint64_t total_bytes, read_bytes, sent_bytes; /* checkpoint bytes to read; read; sent to ducks */
    uint64_t session;                             /* of a batch: the one it lives with */
    uint64_t total_tokens, done_tokens;           /* of a batch */
    int64_t uid, pid;                             /* who has asked for it; -1: fp9d itself */
    char *result;                                 /* owned; what job.wait answers, as JSON; NULL: nothing yet */
    struct err err;
};

struct core_load_request {
    const char *path;         /* absolute */
    const char *name;         /* NULL: last component of path */
    uint32_t tp, multiple_of; /* 0: the planner chooses */
    struct plan_strategy strategy;
    bool force;
    bool mtp;                   /* layers for multi-token prediction too */
    const struct core_was *was; /* core_restore: as it was remembered; NULL: unknown */
    const char *unloaded;       /* core_restore: as in struct core_model; NULL or "": it is loaded */
};

/* ---- sessions and steps ---- */

enum core_rank_session {
    CORE_RANK_CLOSED,
    CORE_RANK_OPENING,
    CORE_RANK_OPEN,
};

/* One decode or prefill call: what runs, or ran last, in one of a session's lanes. */
struct core_step {
    bool running;
    uint64_t id; /* request id on the links; a late answer to an older one is dropped */
    uint32_t layer, tokens, top_k;
    bool prefill;
    uint32_t chunk_first, chunk_tokens; /* the tokens now with the ducks */
    uint32_t waiting;                   /* ranks that have not answered this chunk */
    uint32_t asked_count;               /* ranks that it went to */
    uint32_t deadline_ms;               /* as it was asked for */
    uint64_t deadline_ns;               /* fails when it is not whole by then; 0: none */
    const int32_t *ids;                 /* [tokens][top_k], borrowed until it ends: whom it concerns; NULL: every rank */
    bool *asked;                        /* owned by the session, [tp]; ranks that this chunk concerns */
    bool *answered;                     /* likewise; of the others true from the start */
    uint64_t chunk_started_ns, chunk_duck_max_ns;
    struct msg_one_shot chunk_parts; /* of the rank whose kernel process took longest */
    uint64_t answered_ns;            /* the latest answer of this chunk; 0: none yet */
    /* sums over chunks */
    uint64_t judge_wait_ns, duck_max_ns, params, weight_bytes;
    uint64_t tiles, tile_tokens; /* of all ranks; 0 from ducks that do not count them */
    bool counted;                /* a duck that counts has answered */
    uint8_t mode;                /* then: the highest over ranks and chunks, as proto/wire/msg_step.h numbers them */
    bool one_shot;               /* a duck has told where the time of its kernel process went */
    struct msg_one_shot parts;   /* then: of the slowest rank of each chunk */
    uint32_t chunks;
    /* The duck that was waited for alone, and how long; of several chunks the longest wait. CORE_NONE: there is one rank only. */
    uint32_t straggler;
    uint64_t straggler_ns;
    struct err err;
};

struct core_session {
    bool used;
    uint64_t id;
    uint64_t client;
    uint32_t model;
    uint8_t key[DIGEST_SIZE]; /* of the model when it was opened */
    uint32_t tp;
    struct plan_owners owners; /* of the plan then, as tp and duck_of_rank are */
    uint32_t max_tokens, top_k_max, chunk_max;
    enum msg_dtype partials, output;
    bool one_shot;
    bool batch;                    /* its steps may wait for those of others */
    bool announced;                /* the client has had its answer to session.open */
    enum core_rank_session *ranks; /* owned, [tp] */
    uint32_t *duck_of_rank;        /* owned, [tp] */
    uint64_t job;                  /* the batch that its steps belong to; 0: none */
    struct err err;
    uint32_t lanes;          /* steps that may be in flight, 1 to CORE_LANES_MAX */
    struct core_step *steps; /* owned, [lanes]; each is on its own: they may end in any order */
    uint64_t steps_done;
};

/* ---- drops (unload --drop-cache, invalidate-cache) ---- */

#define CORE_DROPS_MAX 16

struct core_drop {
    bool used;
    uint64_t id;
    bool all; /* every key */
    uint8_t key[DIGEST_SIZE];
    char why[128]; /* of the losses */
    uint32_t only; /* it is about this duck alone; CORE_NONE: about all */
    bool late;     /* remembered for a duck that is back; nobody waits for it */
    bool waiting[CORE_DUCKS_MAX];
    bool unreached[CORE_DUCKS_MAX];
    uint64_t freed_bytes;
};

/* A drop that a duck has not heard of yet. */
#define CORE_REVOKED_MAX 256 /* then a duck loses all its slots in place of some */
struct core_revoked {
    bool used;
    uint32_t duck;
    bool all;
    uint8_t key[DIGEST_SIZE];
    char why[128];
};

/* ---- why slots are gone ---- */

struct core_loss {
    uint64_t number; /* 0: no loss; later ones are greater */
    uint8_t key[DIGEST_SIZE];
    uint32_t duck, layer; /* CORE_NONE: every one */
    char text[192];       /* "invalidated by uid 0 at 2026-01-02T03:04:05Z" */
};

/* ---- actions ---- */

enum core_action_type {
    CORE_ACT_START_DUCK,     /* duck */
    CORE_ACT_STOP_DUCK,      /* duck: kill it, its link is given up */
    CORE_ACT_PING,           /* duck */
    CORE_ACT_OPEN,           /* id = job: read and check the checkpoint, then core_load_opened */
    CORE_ACT_DIGEST,         /* id = job: digest the weights of job->digest's layers, then core_load_digested */
    CORE_ACT_REKEY,          /* duck, id = job: send it job->rekeys of its ranks; to the model's key, replacing when job->force */
    CORE_ACT_STREAM,         /* id = job: send the missing slots, then core_stream_ended */
    CORE_ACT_STREAM_CANCEL,  /* id = job: stop soon; core_stream_ended still follows */
    CORE_ACT_JOB_CHANGED,    /* id = job: tell waiters and watchers */
    CORE_ACT_JOB_SAVE,       /* id = job: remember it as it is now */
    CORE_ACT_ERRAND_STOP,    /* id = job: it was cancelled; whoever carries it out is to stop */
    CORE_ACT_SAVE_MODEL,     /* id = model index */
    CORE_ACT_FORGET_MODEL,   /* id = model index; the name is still readable while the action is carried out */
    CORE_ACT_SAVE_REVOKED,   /* the whole list is to be remembered */
    CORE_ACT_SAVE_LOSSES,    /* the whole list is to be remembered */
    CORE_ACT_MIRROR,         /* duck: its slots, boot id and shape are to be remembered */
    CORE_ACT_DROP,           /* duck, id = drop: send DROP */
    CORE_ACT_REVOKE,         /* id = drop: its key is dead from now on, wherever it may be */
    CORE_ACT_DROP_DONE,      /* id = drop: answer the client; core_drop_release */
    CORE_ACT_SESSION_OPEN,   /* duck, id = session */
    CORE_ACT_SESSION_READY,  /* id = session: first time open on all ranks, answer the client */
    CORE_ACT_SESSION_FAILED, /* id = session: err says why; answer the client, then core_session_close */
    CORE_ACT_SESSION_CLOSE,  /* duck, id = session */
    CORE_ACT_SESSION_GONE,   /* id = session: free what the edges hold for it */
    CORE_ACT_STEP_CHUNK,     /* id = session, lane: encode the step's current chunk and send it to the ranks that are asked */
    CORE_ACT_STEP_SUM,       /* id = session, lane: every rank that was asked has answered this chunk: add up, write y */
    CORE_ACT_STEP_DONE,      /* id = session, lane: answer the client */
    CORE_ACT_STEP_FAILED,    /* id = session, lane: its step's err says why */
    CORE_ACT_STEP_CANCEL,    /* duck, id = step: its answer is not wanted any more */
};

struct core_action {
    enum core_action_type type;
    uint32_t duck;
    uint32_t lane; /* of steps */
    uint64_t id;
};

struct core_conf {
    uint64_t heartbeat_ns;
    uint64_t start_timeout_ns; /* a duck that says nothing for so long after its start is started again */
    uint64_t grace_ns;         /* after the start registered models wait so long for ducks that are not there yet */
    enum msg_dtype partials;   /* default of sessions */
    bool persistent_judge;     /* no: every session is one-shot */
    int64_t wall_ns;           /* wall clock less the clock of `now`, for texts */
};

struct core {
    struct core_conf conf;
    struct core_duck ducks[CORE_DUCKS_MAX];
    uint32_t duck_count;
    struct core_model models[CORE_MODELS_MAX];
    struct core_job jobs[CORE_JOBS_MAX];
    struct core_session sessions[CORE_SESSIONS_MAX];
    struct core_drop drops[CORE_DROPS_MAX];
    uint64_t next_id; /* of sessions, steps and drops: one number line, so that FAIL's request id is unambiguous */
    uint64_t next_job;
    struct core_loss losses[CORE_LOSSES_MAX];
    uint64_t next_loss;
    struct core_revoked revoked[CORE_REVOKED_MAX];
    bool losses_dirty;
    uint64_t started_ns;
    uint64_t ticked_ns;
    uint64_t deadline_ns; /* no running step's is earlier; 0: there is none */
    bool stopping;
    struct core_action *actions; /* owned ring */
    size_t action_first, action_count, action_capacity;
};

struct core *core_new(const struct core_conf *conf); /* NULL: out of memory */
void core_free(struct core *core);
CLEANUP_DEFINE(struct core *, core_free);

/* The oldest action not yet taken; false when there is none. */
bool core_next_action(struct core *core, struct core_action *ret_action);

/* ---- events: fleet ---- */

int core_duck_add(struct core *core, const char *name, bool spare, struct err *err);
/* Before core_start: what the database remembers of a duck and of lost slots. The duck's header has the last word. */
void core_duck_was(struct core *core, uint32_t duck, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t slot_count);
/* It is not up yet, and what it held ended with the fp9d of before: no news of its machine. */
bool core_duck_ended(const struct core_duck *duck);
void core_loss_was(struct core *core, const struct core_loss *loss);
void core_revoked_was(struct core *core, const struct core_revoked *revoked);
void core_start(struct core *core, uint64_t now);
void core_tick(struct core *core, uint64_t now); /* a few times a second */
void core_stop(struct core *core, uint64_t now); /* running loads are cancelled, sessions fail, nothing is started any more */
/* Link is up, versions agree, slots is what its header holds (copied). */
void core_duck_up(struct core *core, uint64_t now, uint32_t duck, const struct msg_hello_duck *hello, const struct msg_slot *slots,
                  size_t slot_count);
void core_duck_lost(struct core *core, uint64_t now, uint32_t duck, const char *reason);
/* Its link is up and what comes over it makes no sense: it is killed and started again. */
void core_duck_broken(struct core *core, uint64_t now, uint32_t duck, const char *reason);
/* The free ranges of its weight buffer. Takes ranges (malloced). */
void core_duck_room(struct core *core, uint32_t duck, uint64_t *ranges, size_t count);
void core_duck_heard(struct core *core, uint64_t now, uint32_t duck);
void core_duck_pong(struct core *core, uint64_t now, uint32_t duck, uint64_t rtt_ns);

/* ---- events: models and jobs ---- */

int core_load(struct core *core, uint64_t now, const struct core_load_request *request, uint64_t *ret_job, struct err *err);
/* A model that was registered before fp9d started: loads when ducks are there, unless it was unloaded. After core_start. */
int core_restore(struct core *core, uint64_t now, const struct core_load_request *request, struct err *err);
/* Whether the checkpoint is to be opened with its layers for multi-token prediction. */
bool core_job_mtp(const struct core_job *job, const struct core_model *model);
int core_prepare(struct core *core, uint64_t now, const char *name, uint32_t layer, uint64_t *ret_job, struct err *err);
/* The same with weights from a client's memory. A model that is not there yet is made of request->path and the rest of it, of one that is
 * path may be NULL and nothing else may be asked for. request->name is never NULL. The job waits for its weights in load_memory. */
int core_prepare_memory(struct core *core, uint64_t now, const struct core_load_request *request, uint32_t layer, uint64_t *ret_job,
                        struct err *err);
/* Takes arch. The checkpoint is only read during the call. */
void core_load_opened(struct core *core, uint64_t now, uint64_t job, struct arch *arch, const struct checkpoint *checkpoint);
void core_load_open_failed(struct core *core, uint64_t now, uint64_t job, const struct err *err);
/* err NULL: all digests that were asked for are in the checkpoint. */
void core_load_digested(struct core *core, uint64_t now, uint64_t job, const struct checkpoint *checkpoint, const struct err *err);
void core_stream_progress(struct core *core, uint64_t job, uint64_t read_bytes, uint64_t sent_bytes);
/* All slots were sent (err NULL), or not. Slots still unanswered may follow. The checkpoint is only read during the call; by now it has
 * the digests of all that was streamed. */
void core_stream_ended(struct core *core, uint64_t now, uint64_t job, const struct checkpoint *checkpoint, const struct err *err);
void core_slot_done(struct core *core, uint64_t now, uint32_t duck, const struct msg_slot *slot);
void core_slot_failed(struct core *core, uint64_t now, uint32_t duck, uint64_t job, const struct err *err);
/* A finished slot turned out not to hold what was finished: its duck has given it up. */
void core_slot_bad(struct core *core, uint64_t now, uint32_t duck, const uint8_t key[DIGEST_SIZE], uint32_t layer, const char *why);
/* A duck says that it has no such finished slot, or none of the key. False when that is no news: it was dropped, or is being written. */
#define CORE_SLOT_GONE "the duck has lost the slot"
bool core_slot_gone(struct core *core, uint64_t now, uint32_t duck, const uint8_t key[DIGEST_SIZE], uint32_t layer, const char *seen_by);
void core_slots_gone(struct core *core, uint64_t now, uint32_t duck, const uint8_t key[DIGEST_SIZE], const char *seen_by);
/* The key of a model by name, or of slots by the first CORE_KEY_PREFIX_MIN or more hex digits. NO_SUCH for none, BAD_REQUEST for
 * several. */
int core_key_find(struct core *core, const char *name, uint8_t ret_key[DIGEST_SIZE], struct err *err);
/* why: "by uid 0", "since ...", for the sentence of its end; NULL: nothing to say. */
int core_job_cancel(struct core *core, uint64_t now, uint64_t job, const char *why, struct err *err);
/* An errand: a job that runs from now on, carried out by the edges. `kind` is kept by pointer. */
int core_errand_begin(struct core *core, uint64_t now, const char *kind, const char *model, uint32_t layer, uint64_t *ret_job,
                      struct err *err);
void core_errand_progress(struct core *core, uint64_t job, uint64_t done_bytes, uint64_t total_bytes);
void core_errand_end(struct core *core, uint64_t now, uint64_t job, const struct err *err); /* NULL: done */
/* An errand of the steps that the session will run: done with so many tokens, ends with the session, which ends with it. */
int core_batch_begin(struct core *core, uint64_t now, uint64_t session, bool prefill, uint32_t layer, uint64_t tokens, uint64_t *ret_job,
                     struct err *err);
/* A step of the session was refused or has failed: why its batch, if it has one, fails when its client leaves without another step. */
void core_batch_trouble(struct core *core, const struct core_session *session, const struct err *err);
/* Before core_start, in any order: a job of an earlier life; `was` is copied, its result taken. One that was not over failed with that
 * life. */
bool core_job_was(struct core *core, uint64_t now, const struct core_job *was, const char *kind);
/* Who has asked for the job, said once after it was made. */
void core_job_asked(struct core *core, uint64_t job, int64_t uid, int64_t pid);
void core_job_result(struct core *core, uint64_t job, char *result); /* takes result (malloced) */
/* *ret_drop is 0 when nothing has to be dropped. */
int core_unload(struct core *core, uint64_t now, const char *who, const char *name, bool drop_cache, uint64_t *ret_drop, struct err *err);
/* model or duck may be NULL; both NULL: all. A model is a name, or the first CORE_KEY_PREFIX_MIN or more hex digits of a model key of which
 * slots are there. `who` asks for it, as it is to be remembered ("uid 0"). */
int core_invalidate(struct core *core, uint64_t now, const char *who, const char *model, const char *duck, uint64_t *ret_drop,
                    struct err *err);
void core_dropped(struct core *core, uint64_t now, uint32_t duck, uint64_t drop, uint64_t freed_bytes);
/* The duck could not do it now: it is asked again when it comes up the next time. */
void core_drop_refused(struct core *core, uint32_t duck, uint64_t drop);
void core_drop_release(struct core *core, uint64_t drop);

struct core_job *core_job_find(struct core *core, uint64_t id);
struct core_model *core_model_find(struct core *core, const char *name);
struct core_drop *core_drop_find(struct core *core, uint64_t id);
uint32_t core_duck_find(const struct core *core, const char *name); /* CORE_NONE */
bool core_job_over(const struct core_job *job);
/* "open", "digest", "prepare", "seal" while it runs, else its state. Static text: equal phases are equal pointers. */
const char *core_job_phase_text(const struct core_job *job);

/* ---- events: sessions and steps ---- */

struct core_session_request {
    uint64_t client;
    const char *model;
    uint32_t max_tokens;
    bool partials_given;
    enum msg_dtype partials;
    enum msg_dtype output;
    bool one_shot;
    bool batch;
    uint32_t lanes; /* 0: CORE_LANES_DEFAULT */
};
int core_session_open(struct core *core, uint64_t now, const struct core_session_request *request, uint64_t *ret_session, struct err *err);
void core_session_opened(struct core *core, uint64_t now, uint32_t duck, uint64_t session);
void core_session_failed(struct core *core, uint64_t now, uint32_t duck, uint64_t session, const struct err *err);
void core_session_close(struct core *core, uint64_t session);
/* Its steps fail with err, and whatever its client asks of it from now on; it stays until the client closes it. */
void core_session_break(struct core *core, uint64_t now, uint64_t session, const struct err *err);
struct core_session *core_session_find(struct core *core, uint64_t id);
/* The lane that the next step takes; CORE_NONE: as many are in flight as may be. */
uint32_t core_session_lane(const struct core_session *session);
uint32_t core_session_in_flight(const struct core_session *session); /* steps */
/* What can be said before the tensors are looked at: the session lives and has a lane free, layer and tokens are in range. */
int core_step_check(struct core *core, uint64_t session, uint32_t layer, uint32_t tokens, struct err *err);
/* That and the rest: routing fits the layer, every rank is there that the first chunk concerns. It goes into core_session_lane.
 * ids: [tokens][top_k], checked by the caller, borrowed until the step has ended: of a plan with several groups of experts only the
 * ranks are asked that hold one of a chunk's (plan_owners_asked). A duck that is lost ends the steps whose chunk it was asked for, and
 * those that come to need it. */
int core_step_submit_routed(struct core *core, uint64_t now, uint64_t session, uint32_t layer, uint32_t tokens, uint32_t top_k,
                            const int32_t *ids, bool prefill, struct err *err);
/* The same, asking every rank. */
int core_step_submit(struct core *core, uint64_t now, uint64_t session, uint32_t layer, uint32_t tokens, uint32_t top_k, bool prefill,
                     struct err *err);
/* The current chunk's first byte goes out now: judge_wait begins. */
void core_step_out(struct core *core, uint64_t now, uint64_t session, uint32_t lane);
void core_step_result(struct core *core, uint64_t now, uint32_t duck, uint64_t session, uint64_t step, const struct msg_step_done *done);
void core_step_failed(struct core *core, uint64_t now, uint32_t duck, uint64_t session, uint64_t step, const struct err *err);
/* The edges have added up a chunk and written y. */
void core_step_summed(struct core *core, uint64_t now, uint64_t session, uint32_t lane);
/* The step that was just submitted has `ms` for itself; 0: as long as it takes. */
void core_step_deadline(struct core *core, uint64_t now, uint64_t session, uint32_t lane, uint32_t ms);
/* Steps whose deadlines have passed fail. To be called at core->deadline_ns; earlier it does nothing. */
void core_deadlines(struct core *core, uint64_t now);
/* Ends the step that runs in a lane, if one does, with CANCELLED: its lane is free, its ducks are told to stop (as with every step that
 * fails), what they still say of it is dropped. */
void core_step_cancel(struct core *core, uint64_t session, uint32_t lane, const char *why);
/* rank of a duck in a session, CORE_NONE when it has none. */
uint32_t core_session_rank(const struct core_session *session, uint32_t duck);

/* ---- reading ---- */

const char *core_state_text(const struct core *core); /* starting ready degraded recovering */
const char *core_duck_state_text(enum core_duck_state state);
const char *core_model_state_text(enum core_model_state state);
const char *core_job_state_text(enum core_job_state state);
double core_job_progress(const struct core_job *job); /* 0 .. 1 */

#endif

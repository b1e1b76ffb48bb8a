/* The methods of the control socket, one file a subject. A handler answers at once, fails, or keeps the request's id and answers later. */
#ifndef FP9_HEAD_RPC_H
#define FP9_HEAD_RPC_H

#include "daemon/head/control.h"
#include "proto/control/rpc.h"

struct call {
    struct head *head;
    uint64_t client;
    const json_t *id;     /* borrowed; json_incref to keep */
    const json_t *params; /* borrowed; checked against the schema */
    uint64_t received_ns; /* when its line was taken */
};

enum { RPC_LATER = 1 };

/* 0 and *ret_result (owned by the caller), RPC_LATER, or a negative errno with err. */
typedef int (*rpc_handler)(const struct call *call, json_t **ret_result, struct err *err);

/* One line of a client. Always leads to exactly one reply, now or later. */
void rpc_dispatch(struct head *head, uint64_t client, const char *line, size_t length);
/* What the client still waits for is forgotten, its sessions are closed. */
void rpc_client_gone(struct head *head, uint64_t client);

int rpc_status(const struct call *call, json_t **ret_result, struct err *err);
int rpc_duck_list(const struct call *call, json_t **ret_result, struct err *err);
int rpc_cache_list(const struct call *call, json_t **ret_result, struct err *err);
int rpc_cache_invalidate(const struct call *call, json_t **ret_result, struct err *err);
int rpc_metrics(const struct call *call, json_t **ret_result, struct err *err);
int rpc_model_list(const struct call *call, json_t **ret_result, struct err *err);
int rpc_model_load(const struct call *call, json_t **ret_result, struct err *err);
int rpc_model_unload(const struct call *call, json_t **ret_result, struct err *err);
int rpc_prepare(const struct call *call, json_t **ret_result, struct err *err);
int rpc_plan(const struct call *call, json_t **ret_result, struct err *err);
int rpc_job_list(const struct call *call, json_t **ret_result, struct err *err);
int rpc_job_wait(const struct call *call, json_t **ret_result, struct err *err);
int rpc_job_cancel(const struct call *call, json_t **ret_result, struct err *err);
int rpc_session_open(const struct call *call, json_t **ret_result, struct err *err);
int rpc_session_close(const struct call *call, json_t **ret_result, struct err *err);
int rpc_session_list(const struct call *call, json_t **ret_result, struct err *err);
int rpc_decode(const struct call *call, json_t **ret_result, struct err *err);
int rpc_prefill(const struct call *call, json_t **ret_result, struct err *err);
int rpc_step_cancel(const struct call *call, json_t **ret_result, struct err *err);

/* The session that the params name. It belongs to the connection that opened it: others get NO_SUCH (NULL) and do not learn whether it
 * exists. */
struct session *rpc_own_session(const struct call *call, struct err *err);
/* The answer to a decode or prefill that was in flight in a lane. */
void rpc_step_done(struct head *head, struct session *session, uint32_t lane, const struct core_step *step);
void rpc_step_failed(struct head *head, struct session *session, uint32_t lane, const struct err *err);
/* CORE_ACT_SESSION_READY and CORE_ACT_SESSION_FAILED: the answer to session.open. */
void rpc_session_ready(struct head *head, uint64_t session);
void rpc_session_failed(struct head *head, uint64_t session);

/* An error as a value in a list: {name, message, ...}, as fp9ctl prints errors too. */
json_t *rpc_error_flat(const struct err *err);
json_t *rpc_models_json(const struct head *head);
/* The experts of a rank that has some: `experts` ("0-5"), `expert_first`, `expert_count`. */
void rpc_experts_add(const struct plan_rank *share, json_t *json);
/* Of a model whose experts are divided: by group [{experts, expert_first, expert_count, ducks}]; NULL for one whose are not. */
json_t *rpc_owners_json(const struct core *core, const struct core_model *model);

#endif

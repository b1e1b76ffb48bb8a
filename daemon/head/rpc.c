/* From a line to a handler, and back to a reply. */
#include "daemon/head/rpc.h"
#include "daemon/head/cache_check.h"
#include "daemon/head/events.h"
#include "daemon/head/session.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"

#include <errno.h>
#include <string.h>

static const struct {
    const char *method;
    rpc_handler handler;
} handlers[] = {
    {"cache.invalidate", rpc_cache_invalidate},
    {"cache.list", rpc_cache_list},
    {"cache.verify", cache_check_start},
    {"decode", rpc_decode},
    {"duck.list", rpc_duck_list},
    {"events.subscribe", events_subscribe},
    {"job.cancel", rpc_job_cancel},
    {"job.list", rpc_job_list},
    {"job.wait", rpc_job_wait},
    {"metrics", rpc_metrics},
    {"model.list", rpc_model_list},
    {"model.load", rpc_model_load},
    {"model.unload", rpc_model_unload},
    {"plan", rpc_plan},
    {"prefill", rpc_prefill},
    {"prepare", rpc_prepare},
    {"session.close", rpc_session_close},
    {"session.list", rpc_session_list},
    {"session.open", rpc_session_open},
    {"status", rpc_status},
    {"step.cancel", rpc_step_cancel},
};

static int handle(const struct call *call, const struct schema_method *method, json_t **ret_result, struct err *err)
{
    if (json_is_null(call->id))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "method %s: a request needs an id, nothing here is answered by silence",
                       method->name);
    if (method->admin && !control_client_is_admin(call->head->control, call->client)) {
        err_set(err, -EPERM, ERR_DENIED, "method %s: is for root, fp9d's own user and members of admin_group", method->name);
        err_value_str(err, "method", method->name);
        return -EPERM;
    }
    if (call->head->stopping)
        return err_set(err, -ESHUTDOWN, ERR_CANCELLED, "fp9d is stopping");
    uint32_t unanswered = control_unanswered(call->head->control, call->client);
    if (unanswered > RPC_INFLIGHT_MAX) {
        err_set(err, -EBUSY, ERR_BUSY, "%u requests of this connection wait for their answers, the limit is %d", unanswered - 1,
                RPC_INFLIGHT_MAX);
        err_value_str(err, "what", "requests of a connection");
        err_value_int(err, "limit", RPC_INFLIGHT_MAX);
        err_value_int(err, "in_use", unanswered - 1);
        return -EBUSY;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(handlers); i++)
        if (strcmp(handlers[i].method, method->name) == 0)
            return handlers[i].handler(call, ret_result, err);
    return err_set(err, -ENOSYS, ERR_INTERNAL, "method %s: is in the schema and not in fp9d", method->name);
}

void rpc_dispatch(struct head *head, uint64_t client, const char *line, size_t length)
{
    uint64_t received_ns = clock_now_ns();
    struct rpc_request request = {0};
    json_t *id = NULL, *result = NULL;
    struct err err = {0};
    int r = rpc_request_parse(line, length, &request, &id, &err);
    if (r == 0) {
        struct call call = {.head = head, .client = client, .id = request.id, .params = request.params, .received_ns = received_ns};
        r = handle(&call, request.method, &result, &err);
        if (r == 0)
            control_reply(head->control, client, request.id, result, -1);
        else if (r < 0)
            control_reply_error(head->control, client, request.id, &err);
        rpc_request_release(&request);
    } else {
        control_reply_error(head->control, client, id, &err);
    }
    json_decref(id);
    act_run(head);
}

void rpc_client_gone(struct head *head, uint64_t client)
{
    waiters_client_gone(head->waiters, client);
    events_client_gone(head, client);
    cache_check_client_gone(head, client);
    for (struct session *session = head->sessions; session;) {
        struct session *next = session->next;
        if (session->client == client)
            core_session_close(head->core, session->id);
        session = next;
    }
    act_run(head);
}

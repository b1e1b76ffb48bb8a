/* model.*, prepare, cache.invalidate. */
#include <errno.h>
#include <string.h>

#include "daemon/head/load.h"
#include "daemon/head/rpc.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"
#include "proto/base/safetensors.h"

static json_t *model_json(const struct core *core, const struct core_model *model)
{
    char key[DIGEST_HEX_SIZE] = "", strategy[PLAN_STRATEGY_TEXT] = "";
    if (model->plan) {
        digest_hex(model->key, key);
        plan_strategy_name(model->plan->strategy, strategy);
    } else if (model->was.known) {
        plan_strategy_name(model->was.strategy, strategy);
    }
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "name", model->name, "path", model->path, "family",
                             model->arch ? arch_family_name(model->arch) : "", "state", core_model_state_text(model->state), "model_key",
                             key, "cache", model->cache);
    json_object_set_new(json, "tp", json_integer(model->plan ? model->plan->tp : model->want.tp));
    json_object_set_new(json, "multiple_of", json_integer(model->plan ? model->plan->multiple_of : model->want.multiple_of));
    json_object_set_new(json, "strategy", json_string(strategy));
    json_object_set_new(json, "layers", json_integer(model->arch ? model->arch->layers : 0));
    json_object_set_new(json, "hidden_size", json_integer(model->arch ? model->arch->hidden : 0));
    json_object_set_new(json, "experts", json_integer(model->arch ? model->arch->experts : 0));
    json_object_set_new(json, "top_k", json_integer(model->arch ? model->arch->top_k : 0));
    json_object_set_new(json, "mtp_layers", json_integer(model->arch && model->arch->mtp ? model->arch->mtp_layers : 0));
    json_object_set_new(json, "reason", json_string(model->reason));
    if (model->arch) {
        char kinds[ARCH_LAYERS_MAX + 1];
        for (uint32_t i = 0; i < model->arch->layers; i++)
            kinds[i] = model->arch->layer_is_moe[i] ? 'm' : 'd';
        kinds[model->arch->layers] = '\0';
        json_object_set_new(json, "layer_kinds", json_string(kinds));
    }
    json_t *owners = rpc_owners_json(core, model);
    if (owners)
        json_object_set_new(json, "owners", owners);
    if (model->error.code)
        json_object_set_new(json, "error", rpc_error_flat(&model->error));
    return json;
}

json_t *rpc_models_json(const struct head *head)
{
    json_t *models = json_array();
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        if (head->core->models[i].used)
            json_array_append_new(models, model_json(head->core, &head->core->models[i]));
    return models;
}

int rpc_model_list(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)err;
    *ret_result = json_pack("{s:o}", "models", rpc_models_json(call->head));
    return 0;
}

/* A string from a client may hold any UTF-8; jansson allows no NUL inside, so it is a C string. */
static int strategy_param(const json_t *params, struct plan_strategy *ret_strategy, struct err *err)
{
    const char *text = rpc_param_string(params, "strategy", NULL);
    *ret_strategy = (struct plan_strategy){0};
    return text ? plan_strategy_parse(text, ret_strategy, err) : 0;
}

/* The answer is the job's number; its progress follows. */
static int started(const struct call *call, uint64_t job, json_t **ret_result)
{
    control_client_asks(call->head->control, call->client, job);
    waiters_watch(call->head->waiters, call->client, call->id, job);
    *ret_result = json_pack("{s:I}", "job", (json_int_t)job);
    return 0;
}

int rpc_model_load(const struct call *call, json_t **ret_result, struct err *err)
{
    struct core_load_request request = {
        .path = rpc_param_string(call->params, "path", ""),
        .name = rpc_param_string(call->params, "name", NULL),
        .tp = (uint32_t)rpc_param_int(call->params, "tp", 0),
        .multiple_of = (uint32_t)rpc_param_int(call->params, "multiple_of", 0),
        .force = rpc_param_bool(call->params, "force", false),
        .mtp = rpc_param_bool(call->params, "mtp", false),
    };
    int r = strategy_param(call->params, &request.strategy, err);
    if (r < 0)
        return r;
    uint64_t job;
    r = core_load(call->head->core, clock_now_ns(), &request, &job, err);
    if (r < 0)
        return r;
    return started(call, job, ret_result);
}

/* Weights that came along in a memfd. */
static int prepare_memory(const struct call *call, uint32_t layer, uint64_t *ret_job, struct err *err)
{
    struct core_load_request request = {
        .name = rpc_param_string(call->params, "model", ""),
        .path = rpc_param_string(call->params, "path", NULL),
        .tp = (uint32_t)rpc_param_int(call->params, "tp", 0),
        .multiple_of = (uint32_t)rpc_param_int(call->params, "multiple_of", 0),
    };
    _cleanup_(closep) int fd = control_take_fd(call->head->control, call->client);
    if (fd < 0)
        return err_set(err, -EBADF, ERR_BAD_REQUEST, "memory: no descriptor came with the line's first byte");
    int r = strategy_param(call->params, &request.strategy, err);
    if (r == 0)
        r = safetensors_check_sealed(fd, CHECKPOINT_MEMORY_NAME, err); /* now, and not when the job is reached */
    if (r == 0)
        r = core_prepare_memory(call->head->core, clock_now_ns(), &request, layer, ret_job, err);
    if (r == 0)
        load_memory(call->head, *ret_job, STEAL_FD(fd));
    return r;
}

static int refuse_without_memory(const json_t *params, struct err *err)
{
    static const char *const keys[] = {"path", "tp", "multiple_of", "strategy"};
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++)
        if (json_object_get(params, keys[i]))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: goes only with memory", keys[i]);
    return 0;
}

int rpc_prepare(const struct call *call, json_t **ret_result, struct err *err)
{
    uint64_t job;
    long long given = rpc_param_int(call->params, "layer", -1);
    uint32_t layer = given < 0 ? CORE_NONE : (uint32_t)given;
    int r;
    if (rpc_param_bool(call->params, "memory", false)) {
        r = prepare_memory(call, layer, &job, err);
    } else {
        r = refuse_without_memory(call->params, err);
        if (r == 0)
            r = core_prepare(call->head->core, clock_now_ns(), rpc_param_string(call->params, "model", ""), layer, &job, err);
    }
    if (r < 0)
        return r;
    return started(call, job, ret_result);
}

static int after_drop(const struct call *call, int r, uint64_t drop)
{
    if (r < 0)
        return r;
    if (drop) {
        waiters_add(call->head->waiters, call->client, call->id, WAITERS_DROP, drop);
        return RPC_LATER;
    }
    act_run(call->head);
    waiters_reply_written(call->head, call->client, call->id, json_pack("{s:i, s:[]}", "freed_bytes", 0, "pending"));
    return RPC_LATER;
}

int rpc_model_unload(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)ret_result;
    uint64_t drop = 0;
    char who[CONTROL_WHO_MAX];
    int r = core_unload(call->head->core, clock_now_ns(), control_client_who(call->head->control, call->client, who),
                        rpc_param_string(call->params, "model", ""), rpc_param_bool(call->params, "drop_cache", false), &drop, err);
    return after_drop(call, r, drop);
}

int rpc_cache_invalidate(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)ret_result;
    const char *model = rpc_param_string(call->params, "model", NULL), *duck = rpc_param_string(call->params, "duck", NULL);
    bool all = rpc_param_bool(call->params, "all", false);
    if (all && (model || duck))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "all: goes with neither model nor duck");
    if (!all && !model && !duck)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "give model, duck, both, or all");
    uint64_t drop = 0;
    char who[CONTROL_WHO_MAX];
    int r = core_invalidate(call->head->core, clock_now_ns(), control_client_who(call->head->control, call->client, who), model, duck,
                            &drop, err);
    return after_drop(call, r, drop);
}

/* plan: answered from config.json alone, read on the disk worker (the directory may be on a slow file system). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/core_plan_room.h"
#include "daemon/head/rpc.h"

struct planning {
    struct head *head;
    uint64_t client;
    json_t *id; /* owned */
    char path[CORE_PATH_MAX];
    struct plan_request request;
    bool mtp;
    bool of_fleet;            /* about the ducks that are there, and so about what they hold */
    uint32_t ducks;           /* planned for: those asked for, else the fleet's; 0: none */
    uint32_t fleet;           /* ducks that can take a rank today */
    struct plan_request load; /* what a load of the same would ask for; ducks 0: the plan is not about the fleet's memory, or has been
                               * made for it */
    struct arch *arch;
    struct plan *plan;
    struct err err;
    struct err misfit; /* why the fleet does not take it; code 0: it does */
};

static json_t *legal_json(const struct plan *plan, uint32_t fleet)
{
    json_t *legal = json_array();
    for (size_t i = 0; i < PLAN_MULTIPLES; i++)
        json_array_append_new(legal,
                              json_pack("{s:I, s:I, s:I}", "multiple_of", (json_int_t)plan->legal[i].multiple_of, "tp_max",
                                        (json_int_t)plan->legal[i].tp_max, "tp_max_fleet",
                                        (json_int_t)(fleet && fleet < plan->legal[i].tp_max_fleet ? fleet : plan->legal[i].tp_max_fleet)));
    return legal;
}

/* A rank's neurons: of the routed experts where there are any, else of the dense MLPs. */
static json_t *ranks_json(const struct plan *plan)
{
    json_t *ranks = json_array();
    for (uint32_t rank = 0; rank < plan->tp; rank++) {
        const struct plan_rank *share = &plan->ranks[rank];
        uint32_t neurons = share->routed.neurons ? share->routed.neurons : share->dense.neurons;
        json_t *json = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rank", (json_int_t)rank, "neurons", (json_int_t)neurons, "bytes",
                                 (json_int_t)share->bytes, "dense_neurons", (json_int_t)share->dense.neurons, "shared_neurons",
                                 (json_int_t)share->shared.neurons, "send_bytes", (json_int_t)share->send_bytes, "read_bytes",
                                 (json_int_t)share->read_bytes);
        json_object_set_new(json, "group", json_integer(share->group));
        if (share->expert_count)
            rpc_experts_add(share, json);
        json_array_append_new(ranks, json);
    }
    return ranks;
}

/* Why the checkpoint cannot be loaded as planned, or NULL. */
static const char *obstacle(const struct arch *arch, const struct plan *plan, uint32_t fleet, const struct err *misfit)
{
    if (!arch->quantized)
        return "config.json has no quantization_config: this is the plan of its 128x128-block FP8 conversion; the checkpoint as it is "
               "cannot be loaded";
    if (plan->tp > fleet)
        return "today's fleet has fewer ducks than the plan has ranks";
    return misfit->code ? misfit->message : NULL;
}

static void predicted_json(const struct plan *plan, json_t *json)
{
    const struct plan_prediction *p = &plan->predicted;
    const struct plan_rates *rates = &plan->rates;
    char assumes[256], compute[64] = "", host[64] = "attention not counted";
    if (rates->params_per_s > 0)
        snprintf(compute, sizeof compute, ", %.2f Gparam/s of its kernels", rates->params_per_s / 1e9);
    if (rates->host_s > 0)
        snprintf(host, sizeof host, "%.1f ms a token on the host", rates->host_s * 1e3);
    snprintf(assumes, sizeof assumes, "%.3g GB/s of memory for each duck%s, %.3g GB/s of link at the head, %.0f us a step besides; %s",
             rates->read_bytes_per_s / 1e9, compute, rates->link_bytes_per_s / 1e9, rates->step_s * 1e6, host);
    json_object_set_new(json, "predicted_tokens_per_second", rpc_real(p->tokens_per_second));
    json_object_set_new(json, "bottleneck", json_string(plan_term_name(p->bottleneck)));
    json_t *terms = json_object();
    json_object_set_new(terms, "duck_memory", rpc_real(p->read_s * 1e6));
    json_object_set_new(terms, "duck_compute", rpc_real(p->compute_s * 1e6));
    json_object_set_new(terms, "link", rpc_real(p->link_s * 1e6));
    json_object_set_new(terms, "steps", rpc_real(p->step_s * 1e6));
    json_object_set_new(terms, "host", rpc_real(p->host_s * 1e6));
    json_object_set_new(json, "predicted_us", terms);
    json_object_set_new(json, "prediction_assumes", json_string(assumes));
}

/* `ducks` are those planned for, `fleet` those that are there; misfit as in struct planning. */
static json_t *plan_json(const struct arch *arch, const struct plan *plan, uint32_t ducks, uint32_t fleet, const struct err *misfit)
{
    char strategy[PLAN_STRATEGY_TEXT];
    json_t *json = json_pack("{s:s, s:I, s:I, s:s, s:o, s:o}", "family", arch_family_name(arch), "tp", (json_int_t)plan->tp, "multiple_of",
                             (json_int_t)plan->multiple_of, "strategy", plan_strategy_name(plan->strategy, strategy), "legal",
                             legal_json(plan, ducks), "ranks", ranks_json(plan));
    json_object_set_new(json, "bytes_total", json_integer((json_int_t)plan->bytes_total));
    json_object_set_new(json, "padding", json_integer((json_int_t)plan->padding_bytes));
    json_object_set_new(json, "bytes_per_param", rpc_real(plan->bytes_per_param));
    json_object_set_new(json, "send_bytes", json_integer((json_int_t)plan->send_bytes));
    json_object_set_new(json, "rebuild_read_bytes", json_integer((json_int_t)plan->rebuild_read_bytes));
    json_object_set_new(json, "rebuild_send_bytes", json_integer((json_int_t)plan->rebuild_send_bytes));
    json_object_set_new(json, "rebuild_seconds", rpc_real(plan->rebuild_seconds));
    json_object_set_new(json, "link_bytes_per_token", json_integer((json_int_t)plan->link_bytes));
    json_object_set_new(json, "head_link_bytes_per_token", json_integer((json_int_t)plan->head_link_bytes));
    json_object_set_new(json, "explanation", json_string(plan->explanation));
    predicted_json(plan, json);
    const char *note = obstacle(arch, plan, fleet, misfit);
    json_object_set_new(json, "loadable", json_boolean(!note));
    if (note)
        json_object_set_new(json, "note", json_string(note));
    return json;
}

/* Disk worker. */
static void planning_run(void *user)
{
    struct planning *planning = user;
    int r = arch_read_for_plan(planning->path, &planning->arch, &planning->err);
    if (r == 0 && planning->mtp)
        r = arch_add_mtp(planning->arch, planning->path, &planning->err);
    if (r == 0)
        r = plan_make(planning->arch, &planning->request, &planning->plan, &planning->err);
    _cleanup_(plan_freep) struct plan *loaded = NULL;
    if (r == 0 && planning->load.ducks)
        plan_make(planning->arch, &planning->load, &loaded, &planning->misfit);
}

static void planning_done(void *user)
{
    struct planning *planning = user;
    struct control *control = planning->head->control;
    uint64_t held = 0;
    if (planning->plan && planning->of_fleet)
        core_plan_room(planning->head->core, planning->arch, planning->plan, &held, planning->misfit.code ? NULL : &planning->misfit);
    json_t *json = planning->plan ? plan_json(planning->arch, planning->plan, planning->ducks, planning->fleet, &planning->misfit) : NULL;
    if (json && planning->of_fleet)
        json_object_set_new(json, "held_bytes", json_integer((json_int_t)held));
    if (json)
        control_reply(control, planning->client, planning->id, json, -1);
    else
        control_reply_error(control, planning->client, planning->id, &planning->err);
    arch_free(planning->arch);
    plan_free(planning->plan);
    json_decref(planning->id);
    free(planning);
}

/* Ducks that can take a rank, and the smallest weight buffer among them. */
static uint32_t fleet_of(const struct core *core, uint64_t *ret_memory)
{
    uint32_t ducks = 0;
    *ret_memory = 0;
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct core_duck *duck = &core->ducks[i];
        if (duck->spare || !duck->ever_up)
            continue;
        ducks++;
        if (!*ret_memory || duck->hello.capacity_bytes < *ret_memory)
            *ret_memory = duck->hello.capacity_bytes;
    }
    return ducks;
}

int rpc_plan(const struct call *call, json_t **ret_result, struct err *err)
{
    (void)ret_result;
    const char *path = rpc_param_string(call->params, "path", "");
    if (path[0] != '/' || strlen(path) >= CORE_PATH_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "path: \"%.200s\" is not an absolute path", path);
    struct plan_request request = {
        .tp = (uint32_t)rpc_param_int(call->params, "tp", 0),
        .multiple_of = (uint32_t)rpc_param_int(call->params, "multiple_of", 0),
        .ducks = (uint32_t)rpc_param_int(call->params, "ducks", 0),
        .memory_bytes = (uint64_t)rpc_param_int(call->params, "memory", 0),
        .rates = {.read_bytes_per_s = (double)rpc_param_int(call->params, "read_rate", 0),
                  .params_per_s = (double)rpc_param_int(call->params, "mparam_rate", 0) * 1e6,
                  .link_bytes_per_s = (double)rpc_param_int(call->params, "link_rate", 0),
                  .step_s = (double)rpc_param_int(call->params, "step_us", 0) * 1e-6,
                  .host_s = (double)rpc_param_int(call->params, "host_us", 0) * 1e-6},
    };
    const char *strategy = rpc_param_string(call->params, "strategy", NULL);
    int r = strategy ? plan_strategy_parse(strategy, &request.strategy, err) : 0;
    if (r < 0)
        return r;
    uint64_t memory;
    uint32_t fleet = fleet_of(call->head->core, &memory), ducks = request.ducks ? request.ducks : fleet;
    struct plan_request load = request;
    load.ducks = request.ducks || request.memory_bytes ? 0 : fleet;
    load.memory_bytes = memory;
    /* A tp that is asked for may go beyond today's fleet: plan is how one finds out what to buy. The answer says so. */
    if (!request.tp && !plan_strategy_ranks(request.strategy) && !request.ducks) {
        request.ducks = fleet;
        request.memory_bytes = request.memory_bytes ? request.memory_bytes : memory;
        load.ducks = 0;
    }
    struct planning *planning = calloc(1, sizeof *planning);
    if (!planning)
        return err_no_memory(err, "plan", sizeof *planning);
    *planning = (struct planning){.head = call->head,
                                  .client = call->client,
                                  .id = json_incref((json_t *)call->id),
                                  .request = request,
                                  .load = load,
                                  .mtp = rpc_param_bool(call->params, "mtp", false),
                                  .of_fleet = fleet && !json_object_get(call->params, "ducks") && !json_object_get(call->params, "memory"),
                                  .ducks = ducks,
                                  .fleet = fleet};
    memcpy(planning->path, path, strlen(path) + 1);
    worker_submit(call->head->disk, planning_run, planning_done, planning);
    return RPC_LATER;
}

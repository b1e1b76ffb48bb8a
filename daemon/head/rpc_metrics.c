/* metrics: everything that is counted, as one object or as Prometheus reads it. */
#include <string.h>

#include "daemon/head/control.h"
#include "daemon/head/prometheus.h"
#include "daemon/head/rpc.h"
#include "daemon/head/timing_json.h"
#include "proto/base/clock.h"

/* A line holds 1 MiB; a session or a layer has up to 1.5 KB. */
#define SESSIONS_MAX 256
#define LAYERS_MAX 256

static json_t *errors_json(const struct metrics *metrics)
{
    json_t *json = json_object();
    for (enum err_name name = 0; name < ERR_NAME_COUNT_; name++)
        json_object_set_new(json, err_name_text(name), json_integer((json_int_t)metrics->errors[name]));
    return json;
}

static json_t *duck_states_json(const struct core *core)
{
    json_t *json = json_object();
    for (enum core_duck_state state = 0; state <= CORE_DUCK_LOST; state++) {
        json_int_t count = 0;
        for (uint32_t i = 0; i < core->duck_count; i++)
            count += core->ducks[i].state == state;
        json_object_set_new(json, core_duck_state_text(state), json_integer(count));
    }
    return json;
}

static json_t *jobs_json(const struct head *head)
{
    json_t *json = json_object();
    for (enum core_job_state state = 0; state <= CORE_JOB_CANCELLED; state++) {
        json_int_t count = (json_int_t)head->metrics->jobs[state];
        for (uint32_t i = 0; i < CORE_JOBS_MAX; i++)
            count += head->core->jobs[i].used && head->core->jobs[i].state == state && !core_job_over(&head->core->jobs[i]);
        json_object_set_new(json, core_job_state_text(state), json_integer(count));
    }
    return json;
}

static json_t *memory_json(const struct head *head)
{
    json_int_t capacity = 0, used = 0;
    for (uint32_t i = 0; i < head->core->duck_count; i++) {
        const struct core_duck *duck = &head->core->ducks[i];
        capacity += duck->state == CORE_DUCK_UP ? (json_int_t)duck->hello.capacity_bytes : 0;
        used += duck->state == CORE_DUCK_UP ? (json_int_t)duck->used_bytes : 0;
    }
    return json_pack("{s:I, s:I, s:I}", "resident_bytes", (json_int_t)metrics_resident_bytes(), "capacity_bytes", capacity, "used_bytes",
                     used);
}

static json_t *ducks_json(const struct head *head, uint64_t now)
{
    json_t *ducks = json_array();
    for (uint32_t i = 0; i < head->core->duck_count; i++) {
        const struct timing_duck *timing = head->metrics->timing->ducks[i];
        json_t *json =
            json_pack("{s:s, s:s, s:I, s:I}", "name", head->core->ducks[i].name, "state", core_duck_state_text(head->core->ducks[i].state),
                      "reconnects", (json_int_t)metrics_reconnects(head->metrics, i), "losses", (json_int_t)head->metrics->losses[i]);
        for (enum timing_kind kind = 0; timing && kind < TIMING_KINDS; kind++)
            if (timing->time[kind].count)
                json_object_set_new(json, metrics_kind_name(kind),
                                    json_pack("{s:o}", "duck_time_us", timing_json_histogram(&timing->time[kind], now)));
        uint64_t ns, steps = timing ? timing_late_recent(&timing->late, now, &ns) : 0;
        if (timing && timing->late.steps)
            json_object_set_new(json, "last",
                                json_pack("{s:I, s:I, s:o}", "steps", (json_int_t)timing->late.steps, "recent", (json_int_t)steps,
                                          "late_us", steps ? rpc_real((double)ns / (double)steps / 1e3) : json_null()));
        json_array_append_new(ducks, json);
    }
    return ducks;
}

static json_t *sessions_json(const struct head *head, uint64_t now, json_int_t *left_out)
{
    json_t *sessions = json_array();
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        const struct timing_session *session = head->metrics->timing->sessions[i];
        if (!session)
            continue;
        if (json_array_size(sessions) == SESSIONS_MAX) {
            ++*left_out;
            continue;
        }
        json_t *json = timing_json_kinds(session->kinds, now);
        json_object_set_new(json, "session", json_integer((json_int_t)session->id));
        json_object_set_new(json, "model", json_string(head->core->models[session->model].name));
        json_object_set_new(json, "straggler", timing_json_straggler(head, session, now));
        json_array_append_new(sessions, json);
    }
    return sessions;
}

static json_t *layers_json(const struct timing_layers *layers, uint64_t now, uint32_t *room, json_int_t *left_out)
{
    json_t *array = json_array();
    for (uint32_t layer = 0; layer < layers->count; layer++) {
        bool ran = false;
        for (enum timing_kind kind = 0; kind < TIMING_KINDS; kind++)
            ran |= layers->layers[layer][kind].sums.total.steps != 0;
        *left_out += ran && !*room;
        if (!ran || !*room)
            continue;
        --*room;
        json_t *json = timing_json_kinds(layers->layers[layer], now);
        json_object_set_new(json, "layer", json_integer(layer));
        json_array_append_new(array, json);
    }
    return array;
}

static json_t *models_json(const struct head *head, uint64_t now, json_int_t *left_out)
{
    json_t *models = json_array();
    uint32_t room = LAYERS_MAX;
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++) {
        const struct core_model *model = &head->core->models[i];
        if (model->used)
            json_array_append_new(models, json_pack("{s:s, s:s, s:o}", "name", model->name, "state", core_model_state_text(model->state),
                                                    "layers", layers_json(&head->metrics->timing->models[i], now, &room, left_out)));
    }
    return models;
}

static json_t *metrics_json(const struct head *head, uint64_t now)
{
    const struct metrics *metrics = head->metrics;
    uint64_t read_bytes, sent_bytes, reconnects = 0;
    json_int_t sessions_left_out = 0, layers_left_out = 0, sessions = 0;
    metrics_bytes(head, &read_bytes, &sent_bytes);
    for (uint32_t i = 0; i < head->core->duck_count; i++)
        reconnects += metrics_reconnects(metrics, i);
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++)
        sessions += head->core->sessions[i].used;
    json_t *json = json_pack("{s:o, s:o, s:I, s:I, s:o, s:o, s:I, s:o, s:I, s:I, s:o}", "uptime_s",
                             rpc_real((double)(now - head->started_ns) / 1e9), "errors", errors_json(metrics), "bytes_read",
                             (json_int_t)read_bytes, "bytes_sent", (json_int_t)sent_bytes, "jobs", jobs_json(head), "cache",
                             json_pack("{s:I, s:I, s:I}", "hit", (json_int_t)metrics->caches[METRICS_HIT], "partial",
                                       (json_int_t)metrics->caches[METRICS_PARTIAL], "miss", (json_int_t)metrics->caches[METRICS_MISS]),
                             "reconnects", (json_int_t)reconnects, "duck_states", duck_states_json(head->core), "open_sessions", sessions,
                             "clients", (json_int_t)control_client_count(head->control), "memory", memory_json(head));
    json_t *all = timing_json_kinds(metrics->timing->kinds, now);
    json_object_set_new(all, "straggler", timing_json_straggler(head, NULL, now));
    json_object_set_new(json, "steps", all);
    json_object_set_new(json, "ducks", ducks_json(head, now));
    json_object_set_new(json, "models", models_json(head, now, &layers_left_out));
    json_object_set_new(json, "sessions", sessions_json(head, now, &sessions_left_out));
    json_object_set_new(json, "left_out", json_pack("{s:I, s:I}", "sessions", sessions_left_out, "layers", layers_left_out));
    return json;
}

int rpc_metrics(const struct call *call, json_t **ret_result, struct err *err)
{
    uint64_t now = clock_now_ns();
    if (strcmp(rpc_param_string(call->params, "format", "json"), "prometheus") != 0) {
        *ret_result = metrics_json(call->head, now);
        return 0;
    }
    _cleanup_(buf_release) struct buf text = {0};
    int r = prometheus_write(call->head, now, &text, err);
    if (r < 0)
        return r;
    *ret_result = json_pack("{s:s#}", "text", (const char *)text.data, text.length);
    return 0;
}

#include "proto/control/schema.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"

#define SESSION_MAX 2147483647
#define JOB_MAX 9007199254740991 /* 2^53 - 1: exact in every JSON reader */
#define LAYER_MAX 1023
#define TP_MAX 1024
#define DUCKS_MAX 1024
#define TOKENS_MAX 4096
#define BATCH_TOKENS_MAX 1000000000000 /* 10^12 */
#define DEADLINE_MAX 86400000          /* a day */
#define LANES_MAX 8                    /* RPC_LANES_MAX */
#define PATH_BYTES_MAX 4095
#define NAME_BYTES_MAX 63
#define KEY_BYTES_MAX 64
#define US_MAX 1000000000
#define MPARAM_MAX 1000000000
#define MEMORY_MAX 4611686018427387904 /* 2^62 */

static const char *const session_dtypes[] = {"bf16", "f32", NULL};
static const char *const session_priorities[] = {"interactive", "batch", NULL};
static const char *const metrics_formats[] = {"json", "prometheus", NULL};
static const char *const session_jobs[] = {"decode", "prefill", NULL};
static const char *const x_dtypes[] = {"BF16", NULL};
static const char *const ids_dtypes[] = {"I32", NULL};
static const char *const weights_dtypes[] = {"F32", NULL};
static const char *const y_dtypes[] = {"BF16", "F32", NULL};

#define REQUIRED true
#define OPTIONAL false
#define STRING(name, need, high, doc)                                                                                                      \
    {                                                                                                                                      \
        name, SCHEMA_STRING, need, 1, high, NULL, doc                                                                                      \
    }
#define CHOICE(name, need, choices, doc)                                                                                                   \
    {                                                                                                                                      \
        name, SCHEMA_STRING, need, 1, 16, choices, doc                                                                                     \
    }
#define INT(name, need, low, high, doc)                                                                                                    \
    {                                                                                                                                      \
        name, SCHEMA_INT, need, low, high, NULL, doc                                                                                       \
    }
#define BOOL(name, doc)                                                                                                                    \
    {                                                                                                                                      \
        name, SCHEMA_BOOL, OPTIONAL, 0, 0, NULL, doc                                                                                       \
    }
#define TENSOR(name, need, dtypes, doc)                                                                                                    \
    {                                                                                                                                      \
        name, SCHEMA_TENSOR, need, 0, 0, dtypes, doc                                                                                       \
    }

static const struct schema_param plan_params[] = {
    INT("ducks", OPTIONAL, 1, DUCKS_MAX, "ducks to plan for, a count; without it and tp the fleet's"),
    INT("host_us", OPTIONAL, 1, US_MAX, "predict with so much time on the host for a token, microseconds; none when left out"),
    INT("link_rate", OPTIONAL, 1, MEMORY_MAX,
        "predict with a link of so many bytes/s at the head, shared by all ducks; 1250000000 when left out"),
    INT("memory", OPTIONAL, 1, MEMORY_MAX, "weight buffer of each duck, bytes; without it, ducks and tp the fleet's"),
    INT("mparam_rate", OPTIONAL, 1, MPARAM_MAX, "predict with kernels that apply so many million weights/s a duck; no limit when left out"),
    BOOL("mtp", "with the layers for multi-token prediction"),
    INT("multiple_of", OPTIONAL, 8, 128, "unit of slicing: 128, 64, 32, 16 or 8 intermediate neurons; the planner's choice when left out"),
    STRING("path", REQUIRED, PATH_BYTES_MAX, "absolute directory of the checkpoint; only config.json is read"),
    INT("read_rate", OPTIONAL, 1, MEMORY_MAX, "predict with a memory of so many bytes/s in each duck; 20000000000 when left out"),
    INT("step_us", OPTIONAL, 1, US_MAX, "predict with so much for a step besides its bytes, microseconds; 60 when left out"),
    STRING("strategy", OPTIONAL, 32, "\"tp\", \"ep\" or \"tpNxepM\": how the experts are divided over the ranks; \"tp\" when left out"),
    INT("tp", OPTIONAL, 1, TP_MAX, "ranks in all; the planner's choice when left out"),
};

static const struct schema_param load_params[] = {
    BOOL("force", "prepare every slot anew even when the cache has it"),
    BOOL("mtp", "also the layers for multi-token prediction, which follow the others"),
    INT("multiple_of", OPTIONAL, 8, 128, "unit of slicing: 128, 64, 32, 16 or 8 intermediate neurons; the planner's choice when left out"),
    STRING("name", OPTIONAL, NAME_BYTES_MAX, "name of the model from now on; the directory's last part when left out"),
    STRING("path", REQUIRED, PATH_BYTES_MAX, "absolute directory of the checkpoint"),
    STRING("strategy", OPTIONAL, 32, "\"tp\", \"ep\" or \"tpNxepM\": how the experts are divided over the ranks; \"tp\" when left out"),
    INT("tp", OPTIONAL, 1, TP_MAX, "ranks in all; the planner's choice when left out"),
};

static const struct schema_param unload_params[] = {
    BOOL("drop_cache", "also free its slots on the ducks"),
    STRING("model", REQUIRED, NAME_BYTES_MAX, "name of the model"),
};

static const struct schema_param prepare_params[] = {
    INT("layer", OPTIONAL, 0, LAYER_MAX, "only this layer, an index from 0; all when left out"),
    BOOL("memory", "take the weights from a sealed memfd that comes with the line's first byte"),
    STRING("model", REQUIRED, NAME_BYTES_MAX, "name of the model"),
    INT("multiple_of", OPTIONAL, 8, 128, "with memory, of a new model: unit of slicing; the planner's choice when left out"),
    STRING("path", OPTIONAL, PATH_BYTES_MAX, "with memory: absolute directory of a new model's config.json, without weights"),
    STRING("strategy", OPTIONAL, 32, "with memory, of a new model: \"tp\", \"ep\" or \"tpNxepM\"; \"tp\" when left out"),
    INT("tp", OPTIONAL, 1, TP_MAX, "with memory, of a new model: ranks in all; the planner's choice when left out"),
};

static const struct schema_param invalidate_params[] = {
    BOOL("all", "every slot of every duck"),
    STRING("duck", OPTIONAL, NAME_BYTES_MAX, "only on this duck, its name or id"),
    STRING("model", OPTIONAL, KEY_BYTES_MAX, "only of this model: its name, or the first 6 or more hex digits of a model key"),
};

static const struct schema_param verify_params[] = {
    BOOL("full", "also compare with what the checkpoint gives, which is read for it"),
    STRING("model", OPTIONAL, KEY_BYTES_MAX, "only of this model: its name, or the first 6 or more hex digits of a model key"),
};

static const struct schema_param metrics_params[] = {
    CHOICE("format", OPTIONAL, metrics_formats, "json, or prometheus: the same as text, in its exposition format; json when left out"),
};

static const struct schema_param job_params[] = {
    INT("job", REQUIRED, 1, JOB_MAX, "id of the job"),
};

static const struct schema_param session_open_params[] = {
    CHOICE("job", OPTIONAL, session_jobs, "its steps are one batch, which is a job; with job_layer and job_tokens"),
    INT("job_layer", OPTIONAL, 0, LAYER_MAX, "layer of the batch, an index from 0"),
    INT("job_tokens", OPTIONAL, 1, BATCH_TOKENS_MAX, "tokens of the batch; when so many are through, the job is done"),
    INT("lanes", OPTIONAL, 1, LANES_MAX, "steps that may be in flight at once; the arena has room for so many; 2 when left out"),
    INT("max_tokens", REQUIRED, 1, TOKENS_MAX, "largest step of the session, tokens"),
    STRING("model", REQUIRED, NAME_BYTES_MAX, "name of the model"),
    BOOL("one_shot", "a fresh kernel run for each step in place of the persistent judge"),
    CHOICE("output_dtype", OPTIONAL, session_dtypes, "type of y; bf16 when left out"),
    CHOICE("partials", OPTIONAL, session_dtypes, "type of the ranks' partial sums; the daemon's setting when left out"),
    CHOICE("priority", OPTIONAL, session_priorities,
           "steps of a batch session let those of others overtake them; interactive when left out; steps of more than 4 tokens are batch"),
    BOOL("ring", "a step ring behind the arena; its doorbell, an eventfd, comes behind the arena's descriptor"),
};

static const struct schema_param session_params[] = {
    INT("session", REQUIRED, 1, SESSION_MAX, "id of the session"),
};

static const struct schema_param cancel_params[] = {
    {"request", SCHEMA_ID, REQUIRED, 0, 0, NULL, "the id of the decode or prefill request, as it was sent"},
    INT("session", REQUIRED, 1, SESSION_MAX, "id of the session"),
};

static const struct schema_param step_params[] = {
    INT("deadline_ms", OPTIONAL, 1, DEADLINE_MAX,
        "fail with DEADLINE when the output is not there so many milliseconds after the request; [fleet] deadline_s when left out"),
    INT("layer", REQUIRED, 0, LAYER_MAX, "index of the layer, from 0"),
    INT("session", REQUIRED, 1, SESSION_MAX, "id of the session"),
    INT("tokens", REQUIRED, 0, TOKENS_MAX, "T, rows of x; at most the session's max_tokens"),
    INT("top_k", OPTIONAL, 1, 64, "columns of topk_ids; the session's top_k_max when left out (with b64: by the length)"),
    TENSOR("topk_ids", OPTIONAL, ids_dtypes, "I32 [T, top_k], -1 is an empty slot; left out for a dense layer"),
    TENSOR("topk_weights", OPTIONAL, weights_dtypes, "F32 [T, top_k]; left out for a dense layer"),
    BOOL("trace", "also tell when what happened: trace in the answer"),
    TENSOR("x", REQUIRED, x_dtypes, "BF16 [T, hidden_size]"),
    TENSOR("y", OPTIONAL, y_dtypes, "BF16 or F32 [T, hidden_size], where the output goes; without an offset it comes back as {b64, dtype}"),
};

#define PARAMS(table) table, ARRAY_LENGTH(table)
#define NO_PARAMS NULL, 0
#define STEP_RESULT                                                                                                                        \
    "judge_wait_us, duck_max_us, judge_gap_us, judge_ratio, mode, params, weight_bytes, one_shot_us of a one-shot session, "               \
    "straggler, straggler_us, trace when it was asked for, y when the request gave it no offset"

/* Sorted by name: schema_find() searches, and the test of this table checks it. */
const struct schema_method schema_methods[] = {
    {"cache.invalidate", true, PARAMS(invalidate_params), "freed_bytes, pending", "forget slots; give model, duck, both, or all"},
    {"cache.list", false, NO_PARAMS, "slots, lost, history",
     "the slots in the ducks' weight buffers, why others are gone, the latest loads"},
    {"cache.verify", false, PARAMS(verify_params), "checked, bad, unreached, uncompared, bytes, compared, seconds, job",
     "compute the checksums of slots again; a job that ends with its client, job.progress tells how far it is"},
    {"decode", false, PARAMS(step_params), STEP_RESULT, "few tokens through one layer"},
    {"duck.list", false, NO_PARAMS, "ducks", "the ducks of the fleet"},
    {"events.subscribe", false, NO_PARAMS, "state", "from now on, event notifications tell what happens"},
    {"job.cancel", false, PARAMS(job_params), "job, state", "stop a job that is queued or running"},
    {"job.list", false, NO_PARAMS, "jobs", "the jobs that are known, newest last; those of earlier runs of fp9d too"},
    {"job.wait", false, PARAMS(job_params), "the keys of the job's kind", "answer when the job is done; its failure is this call's error"},
    {"metrics", false, PARAMS(metrics_params),
     "uptime_s, errors, bytes_read, bytes_sent, jobs, cache, reconnects, duck_states, open_sessions, clients, memory, steps, ducks, "
     "models, sessions, left_out; with prometheus text",
     "what is counted: steps and what they took, errors, loads, losses"},
    {"model.list", false, NO_PARAMS, "models", "the registered models"},
    {"model.load", true, PARAMS(load_params), "job", "spread a checkpoint over the ducks"},
    {"model.unload", true, PARAMS(unload_params), "freed_bytes, pending", "take a model out of service"},
    {"plan", false, PARAMS(plan_params),
     "family, tp, multiple_of, strategy, legal, ranks, bytes_total, padding, bytes_per_param, send_bytes, rebuild_read_bytes, "
     "rebuild_send_bytes, rebuild_seconds, link_bytes_per_token, head_link_bytes_per_token, predicted_tokens_per_second, bottleneck, "
     "predicted_us, prediction_assumes, explanation, loadable, note, held_bytes",
     "how a checkpoint would be spread; nothing is loaded"},
    {"prefill", false, PARAMS(step_params), STEP_RESULT ", tiles, avg_tile_batch", "many tokens through one layer"},
    {"prepare", true, PARAMS(prepare_params), "job", "prepare the slots that are missing"},
    {"session.close", false, PARAMS(session_params), "", "end a session and drop its arena"},
    {"session.list", false, NO_PARAMS, "sessions", "the open sessions"},
    {"session.open", false, PARAMS(session_open_params),
     "session, arena_bytes, hidden_size, top_k_max, lanes, ring, job when it is a batch",
     "start a session; the arena's memfd comes with the answer's first byte"},
    {"status", false, NO_PARAMS, "state, version, uptime_s, ducks, models, sessions, one_shot_sessions, persistent_judge, jobs, timing",
     "the daemon at a glance"},
    {"step.cancel", false, PARAMS(cancel_params), "cancelled",
     "end a step in flight; its own request is answered with CANCELLED, and its ducks are free within a tile"},
};

const size_t schema_method_count = ARRAY_LENGTH(schema_methods);

const struct schema_later schema_later[] = {
    {"duck.add", NULL},
    {"duck.drain", NULL},
    {"duck.remove", NULL},
};
const size_t schema_later_count = ARRAY_LENGTH(schema_later);

static int compare_name(const void *name, const void *method)
{
    return strcmp(name, ((const struct schema_method *)method)->name);
}

const struct schema_method *schema_find(const char *name)
{
    return bsearch(name, schema_methods, schema_method_count, sizeof schema_methods[0], compare_name);
}

const struct schema_param *schema_find_param(const struct schema_method *method, const char *name)
{
    for (size_t i = 0; i < method->param_count; i++)
        if (strcmp(method->params[i].name, name) == 0)
            return &method->params[i];
    return NULL;
}

bool schema_is_later(const char *method, const char *param)
{
    for (size_t i = 0; i < schema_later_count; i++) {
        const struct schema_later *later = &schema_later[i];
        if (strcmp(later->method, method) == 0 && (param ? later->param && strcmp(later->param, param) == 0 : !later->param))
            return true;
    }
    return false;
}

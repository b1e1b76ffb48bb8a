#include "daemon/head/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/log.h"

struct metrics *metrics_new(void)
{
    struct metrics *metrics = calloc(1, sizeof *metrics);
    struct timing *timing = metrics ? timing_new() : NULL;
    if (!timing) {
        free(metrics);
        return NULL;
    }
    metrics->timing = timing;
    return metrics;
}

void metrics_free(struct metrics *metrics)
{
    if (!metrics)
        return;
    timing_free(metrics->timing);
    free(metrics);
}

const char *metrics_kind_name(enum timing_kind kind)
{
    return kind == TIMING_PREFILL ? "prefill" : "decode";
}

const char *metrics_word_name(enum timing_word word)
{
    static const char *const names[TIMING_WORDS] = {"judge_wait", "duck_max", "judge_gap", "judge_ratio"};
    return names[word];
}

/* ---- what happens ---- */

void metrics_error(struct head *head, const struct err *err)
{
    head->metrics->errors[err->name]++;
}

void metrics_duck_up(struct head *head, uint32_t duck)
{
    head->metrics->ups[duck]++;
    timing_duck_up(head->metrics->timing, duck);
}

void metrics_duck_lost(struct head *head, uint32_t duck)
{
    head->metrics->losses[duck] += head->core->ducks[duck].state == CORE_DUCK_UP;
}

void metrics_job_over(struct head *head, const struct core_job *job)
{
    static const char *const caches[METRICS_CACHES] = {"hit", "partial", "miss"};
    struct metrics *metrics = head->metrics;
    metrics->jobs[job->state]++;
    if (job->model == CORE_NONE)
        return; /* what a verify reads is slots */
    metrics->read_bytes += job->read_bytes;
    metrics->sent_bytes += job->sent_bytes;
    for (size_t i = 0; job->state == CORE_JOB_DONE && i < METRICS_CACHES; i++)
        metrics->caches[i] += strcmp(head->core->models[job->model].cache, caches[i]) == 0;
}

void metrics_model_gone(struct head *head, uint32_t model)
{
    timing_model_gone(head->metrics->timing, model);
}

void metrics_session_ready(struct head *head, uint64_t id)
{
    const struct core_session *session = core_session_find(head->core, id);
    if (!session)
        return;
    uint32_t place = (uint32_t)(session - head->core->sessions);
    if (!timing_session_open(head->metrics->timing, head->core, place))
        log_warning("metrics", "session %" PRIu64 ": no room for the layers of %s, which are not counted apart", id,
                    head->core->models[session->model].name);
}

/* ---- forwards ---- */

static void log_forward(const struct head *head, const struct timing_session *session, const struct timing_forward *forward)
{
    const struct timing_sums *sums = &forward->sums;
    char late[CORE_NAME_MAX + 64] = "";
    if (forward->straggler != CORE_NONE)
        snprintf(late, sizeof late, ", waited for %s alone for up to %.1f us", head->core->ducks[forward->straggler].name,
                 (double)forward->straggler_ns / 1e3);
    double wait = (double)sums->judge_wait_ns, most = (double)sums->duck_max_ns;
    log_debug("forward",
              "session %" PRIu64 ", %s: %s of %u %s through layers %u to %u, steps %u: judge_wait %.1f us, duck_max %.1f us, "
              "judge_gap %.1f us, judge_ratio %.2f, %.2f Gparam/s%s",
              session->id, head->core->models[session->model].name, metrics_kind_name(forward->kind), forward->tokens,
              forward->tokens == 1 ? "token" : "tokens", forward->first_layer, forward->last_layer, forward->steps, wait / 1e3, most / 1e3,
              (wait - most) / 1e3, most > 0 ? wait / most : 0.0, most > 0 ? (double)sums->params / most : 0.0, late);
}

void metrics_session_gone(struct head *head, uint64_t id)
{
    const struct timing_session *session = timing_session_find(head->metrics->timing, id);
    if (!session)
        return;
    for (uint32_t lane = 0; lane < CORE_LANES_MAX; lane++)
        if (session->forwards[lane].steps)
            log_forward(head, session, &session->forwards[lane]);
    timing_session_gone(head->metrics->timing, id);
}

/* ---- steps ---- */

void metrics_answer(struct head *head, uint64_t now, uint32_t duck, const struct core_step *step, const struct msg_step_done *done)
{
    timing_answer(head->metrics->timing, now, duck, step->prefill ? TIMING_PREFILL : TIMING_DECODE, done->duck_time_ns);
}

bool metrics_step_take(const struct head *head, uint64_t id, uint32_t lane, struct metrics_step *ret_step)
{
    const struct core *core = head->core;
    const struct core_session *session = core_session_find(head->core, id);
    const struct core_step *done = session ? &session->steps[lane] : NULL;
    if (!done || !done->chunks)
        return false;
    const struct arch *arch = core->models[session->model].arch;
    *ret_step = (struct metrics_step){
        .now = done->answered_ns,
        .place = (uint32_t)(session - core->sessions),
        .last_layer = arch ? arch->layers - 1 : 0,
        .timing =
            {
                .lane = lane,
                .kind = done->prefill ? TIMING_PREFILL : TIMING_DECODE,
                .layer = done->layer,
                .tokens = done->tokens,
                .judge_wait_ns = done->judge_wait_ns,
                .duck_max_ns = done->duck_max_ns,
                .params = done->params,
                .weight_bytes = done->weight_bytes,
                .tiles = done->tiles,
                .tile_tokens = done->tile_tokens,
                .straggler = done->straggler,
                .straggler_ns = done->straggler_ns,
            },
    };
    return true;
}

void metrics_step_add(struct head *head, const struct metrics_step *step)
{
    struct timing *timing = head->metrics->timing;
    struct timing_forward forwards[2];
    uint32_t ended = timing_step(timing, step->now, step->place, step->last_layer, &step->timing, forwards);
    for (uint32_t i = 0; i < ended; i++)
        log_forward(head, timing->sessions[step->place], &forwards[i]);
}

/* ---- reading ---- */

void metrics_bytes(const struct head *head, uint64_t *ret_read, uint64_t *ret_sent)
{
    *ret_read = head->metrics->read_bytes;
    *ret_sent = head->metrics->sent_bytes;
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++) {
        const struct core_job *job = &head->core->jobs[i];
        if (!job->used || core_job_over(job) || job->model == CORE_NONE)
            continue;
        *ret_read += job->read_bytes;
        *ret_sent += job->sent_bytes;
    }
}

uint64_t metrics_reconnects(const struct metrics *metrics, uint32_t duck)
{
    return metrics->ups[duck] ? metrics->ups[duck] - 1 : 0;
}

uint64_t metrics_resident_bytes(void)
{
    unsigned long long pages = 0;
    _cleanup_(fclosep) FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%*u %llu", &pages) != 1)
        return 0;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

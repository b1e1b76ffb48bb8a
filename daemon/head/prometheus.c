#include "daemon/head/prometheus.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/head/control.h"
#include "kernels/kernels.h"

#define LINE_MAX_BYTES 1024
#define LABELS_MAX 512
#define TAIL 4096         /* kept free for what comes after layers and sessions */
#define SERIES_BYTES 2048 /* more than one summary's lines */
#define NAME_ESCAPED (2 * CORE_NAME_MAX + 1)

struct writer {
    const struct head *head;
    uint64_t now;
    struct buf *text;
    int failed; /* negative errno */
    uint64_t left_out;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *writer, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof line)
        writer->failed = -EMSGSIZE;
    if (!writer->failed)
        writer->failed = buf_append(writer->text, line, (size_t)length, PROMETHEUS_BYTES_MAX);
}

static void family(struct writer *writer, const char *name, const char *type, const char *help)
{
    put(writer, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void number(struct writer *writer, double value)
{
    if (isnan(value))
        put(writer, " NaN\n");
    else
        put(writer, " %.12g\n", value);
}

/* labels without braces; "" for none. */
static void sample(struct writer *writer, const char *name, const char *labels, double value)
{
    put(writer, *labels ? "%s{%s}" : "%s%s", name, labels);
    number(writer, value);
}

/* A label's value: backslash, quote and newline are escaped. */
static const char *escape(const char *text, char to[NAME_ESCAPED])
{
    size_t at = 0;
    for (; *text && at + 2 < NAME_ESCAPED; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n')
            to[at++] = '\\';
        to[at++] = *text == '\n' ? 'n' : *text;
    }
    to[at] = '\0';
    return to;
}

/* A histogram in nanoseconds or thousandths as a summary in seconds or ones. */
static void summary(struct writer *writer, const char *name, const char *labels, const struct histogram *histogram, double unit)
{
    struct histogram_summary read;
    histogram_read(histogram, writer->now, &read);
    const struct {
        const char *text;
        double value;
    } quantiles[] = {{"0.5", read.p50}, {"0.9", read.p90}, {"0.99", read.p99}};
    for (size_t i = 0; i < ARRAY_LENGTH(quantiles); i++) {
        put(writer, "%s{%s,quantile=\"%s\"}", name, labels, quantiles[i].text);
        number(writer, quantiles[i].value * unit);
    }
    put(writer, "%s_sum{%s}", name, labels);
    number(writer, (double)read.sum * unit);
    put(writer, "%s_count{%s} %" PRIu64 "\n", name, labels, read.count);
}

static double unit_of(enum timing_word word)
{
    return word == TIMING_JUDGE_RATIO ? 1e-3 : 1e-9;
}

/* "fp9_layer_judge_wait_seconds" and its head. */
static void word_family(struct writer *writer, const char *of, const char *whose, enum timing_word word, char name[64])
{
    static const char *const helps[TIMING_WORDS] = {
        "From the first byte out to the last result in",
        "Longest kernel time of the ranks",
        "judge_wait - duck_max",
        "judge_wait / duck_max",
    };
    char help[128];
    snprintf(name, 64, "fp9_%s%s%s", of, metrics_word_name(word), word == TIMING_JUDGE_RATIO ? "" : "_seconds");
    snprintf(help, sizeof help, "%s, %s.", helps[word], whose);
    family(writer, name, "summary", help);
}

static bool room_for_series(struct writer *writer)
{
    if (writer->text->length + SERIES_BYTES + TAIL <= PROMETHEUS_BYTES_MAX)
        return true;
    writer->left_out++;
    return false;
}

/* ---- the daemon ---- */

static void write_daemon(struct writer *writer)
{
    const struct head *head = writer->head;
    const struct core *core = head->core;
    char labels[LABELS_MAX];
    uint64_t sessions = 0;
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++)
        sessions += core->sessions[i].used;
    family(writer, "fp9_build_info", "gauge", "Always 1; what runs.");
    snprintf(labels, sizeof labels, "version=\"%s\",isa=\"%s\",kernels=\"%s\"", FP9_VERSION, kernels_tier_name(), kernels_variant_name());
    sample(writer, "fp9_build_info", labels, 1);
    family(writer, "fp9_uptime_seconds", "gauge", "Time since fp9d's start.");
    sample(writer, "fp9_uptime_seconds", "", (double)(writer->now - head->started_ns) / 1e9);
    family(writer, "fp9_state", "gauge", "Always 1; the state that status tells.");
    snprintf(labels, sizeof labels, "state=\"%s\"", core_state_text(core));
    sample(writer, "fp9_state", labels, 1);
    family(writer, "fp9_sessions", "gauge", "Open sessions.");
    sample(writer, "fp9_sessions", "", (double)sessions);
    family(writer, "fp9_clients", "gauge", "Connections on the control socket.");
    sample(writer, "fp9_clients", "", (double)control_client_count(head->control));
    family(writer, "fp9_resident_memory_bytes", "gauge", "Resident memory of fp9d.");
    sample(writer, "fp9_resident_memory_bytes", "", (double)metrics_resident_bytes());
    family(writer, "fp9_errors_total", "counter", "Error answers to clients.");
    for (enum err_name name = 0; name < ERR_NAME_COUNT_; name++) {
        snprintf(labels, sizeof labels, "name=\"%s\"", err_name_text(name));
        sample(writer, "fp9_errors_total", labels, (double)head->metrics->errors[name]);
    }
}

static void write_jobs(struct writer *writer)
{
    static const char *const caches[METRICS_CACHES] = {"hit", "partial", "miss"};
    const struct metrics *metrics = writer->head->metrics;
    char labels[LABELS_MAX];
    uint64_t read_bytes, sent_bytes;
    metrics_bytes(writer->head, &read_bytes, &sent_bytes);
    family(writer, "fp9_read_bytes_total", "counter", "Bytes of checkpoints read by jobs.");
    sample(writer, "fp9_read_bytes_total", "", (double)read_bytes);
    family(writer, "fp9_sent_bytes_total", "counter", "Bytes of weights sent to ducks by jobs.");
    sample(writer, "fp9_sent_bytes_total", "", (double)sent_bytes);
    family(writer, "fp9_jobs", "gauge", "Jobs that are not over.");
    for (enum core_job_state state = CORE_JOB_QUEUED; state <= CORE_JOB_RUNNING; state++) {
        double count = 0;
        for (uint32_t i = 0; i < CORE_JOBS_MAX; i++)
            count += writer->head->core->jobs[i].used && writer->head->core->jobs[i].state == state;
        snprintf(labels, sizeof labels, "state=\"%s\"", core_job_state_text(state));
        sample(writer, "fp9_jobs", labels, count);
    }
    family(writer, "fp9_jobs_ended_total", "counter", "Jobs that are over.");
    for (enum core_job_state state = CORE_JOB_DONE; state <= CORE_JOB_CANCELLED; state++) {
        snprintf(labels, sizeof labels, "state=\"%s\"", core_job_state_text(state));
        sample(writer, "fp9_jobs_ended_total", labels, (double)metrics->jobs[state]);
    }
    family(writer, "fp9_loads_total", "counter", "Jobs that were done, by what they found in the weight cache.");
    for (size_t i = 0; i < METRICS_CACHES; i++) {
        snprintf(labels, sizeof labels, "cache=\"%s\"", caches[i]);
        sample(writer, "fp9_loads_total", labels, (double)metrics->caches[i]);
    }
}

static void write_models(struct writer *writer)
{
    char labels[LABELS_MAX], name[NAME_ESCAPED];
    family(writer, "fp9_model_ready", "gauge", "1 when the model is ready.");
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++) {
        const struct core_model *model = &writer->head->core->models[i];
        if (!model->used)
            continue;
        snprintf(labels, sizeof labels, "model=\"%s\"", escape(model->name, name));
        sample(writer, "fp9_model_ready", labels, model->state == CORE_MODEL_READY);
    }
}

/* ---- ducks ---- */

enum duck_figure {
    DUCK_UP,
    DUCK_CAPACITY,
    DUCK_USED,
    DUCK_RTT,
    DUCK_RECONNECTS,
    DUCK_LOSSES,
    DUCK_LAST_STEPS,
    DUCK_LAST_SECONDS,
};

static const struct {
    const char *name, *type, *help;
} duck_families[] = {
    [DUCK_UP] = {"fp9_duck_up", "gauge", "1 when the duck is up."},
    [DUCK_CAPACITY] = {"fp9_duck_capacity_bytes", "gauge", "Weight buffer of the duck."},
    [DUCK_USED] = {"fp9_duck_used_bytes", "gauge", "What slots take of it."},
    [DUCK_RTT] = {"fp9_duck_rtt_seconds", "gauge", "Answer time of the last ping; NaN when there is none."},
    [DUCK_RECONNECTS] = {"fp9_duck_reconnects_total", "counter", "Times the duck came up again."},
    [DUCK_LOSSES] = {"fp9_duck_losses_total", "counter", "Times the duck was lost while it was up."},
    [DUCK_LAST_STEPS] = {"fp9_duck_last_steps_total", "counter", "Steps of more than one rank in which the duck answered last."},
    [DUCK_LAST_SECONDS] = {"fp9_duck_last_seconds_total", "counter", "Time for which it was waited for alone in them."},
};

static double duck_figure(const struct head *head, uint32_t index, enum duck_figure figure)
{
    const struct core_duck *duck = &head->core->ducks[index];
    const struct timing_duck *timing = head->metrics->timing->ducks[index];
    switch (figure) {
    case DUCK_UP: return duck->state == CORE_DUCK_UP;
    case DUCK_CAPACITY: return duck->ever_up ? (double)duck->hello.capacity_bytes : 0;
    case DUCK_USED: return (double)duck->used_bytes;
    case DUCK_RTT: return duck->rtt_ns ? (double)duck->rtt_ns / 1e9 : (double)NAN;
    case DUCK_RECONNECTS: return (double)metrics_reconnects(head->metrics, index);
    case DUCK_LOSSES: return (double)head->metrics->losses[index];
    case DUCK_LAST_STEPS: return timing ? (double)timing->late.steps : 0;
    case DUCK_LAST_SECONDS: return timing ? (double)timing->late.ns / 1e9 : 0;
    }
    return (double)NAN;
}

static void write_ducks(struct writer *writer)
{
    const struct core *core = writer->head->core;
    char labels[LABELS_MAX], name[NAME_ESCAPED];
    for (enum duck_figure figure = 0; figure < ARRAY_LENGTH(duck_families); figure++) {
        family(writer, duck_families[figure].name, duck_families[figure].type, duck_families[figure].help);
        for (uint32_t i = 0; i < core->duck_count; i++) {
            snprintf(labels, sizeof labels, "duck=\"%s\"", escape(core->ducks[i].name, name));
            sample(writer, duck_families[figure].name, labels, duck_figure(writer->head, i, figure));
        }
    }
    family(writer, "fp9_duck_time_seconds", "summary", "Kernel time of the duck, of each chunk of a step.");
    for (uint32_t i = 0; i < core->duck_count; i++) {
        const struct timing_duck *timing = writer->head->metrics->timing->ducks[i];
        for (enum timing_kind kind = 0; timing && kind < TIMING_KINDS; kind++) {
            snprintf(labels, sizeof labels, "duck=\"%s\",kind=\"%s\"", escape(core->ducks[i].name, name), metrics_kind_name(kind));
            if (timing->time[kind].count)
                summary(writer, "fp9_duck_time_seconds", labels, &timing->time[kind], 1e-9);
        }
    }
}

/* ---- steps ---- */

static void write_sums(struct writer *writer)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } families[] = {
        {"fp9_steps_total", "Finished steps.", offsetof(struct timing_sums, steps)},
        {"fp9_tokens_total", "Tokens in them.", offsetof(struct timing_sums, tokens)},
        {"fp9_params_total", "Weights applied in them, padding not counted.", offsetof(struct timing_sums, params)},
        {"fp9_weight_bytes_total", "Bytes of weights read for them.", offsetof(struct timing_sums, weight_bytes)},
        {"fp9_tiles_total", "Tiles of weights run through in them, where ducks count them.", offsetof(struct timing_sums, tiles)},
        {"fp9_tile_tokens_total", "Tokens in those tiles.", offsetof(struct timing_sums, tile_tokens)},
    };
    char labels[LABELS_MAX];
    for (size_t i = 0; i < ARRAY_LENGTH(families); i++) {
        family(writer, families[i].name, "counter", families[i].help);
        for (enum timing_kind kind = 0; kind < TIMING_KINDS; kind++) {
            const struct timing_sums *sums = &writer->head->metrics->timing->kinds[kind].sums.total;
            uint64_t value;
            memcpy(&value, (const char *)sums + families[i].offset, sizeof value);
            snprintf(labels, sizeof labels, "kind=\"%s\"", metrics_kind_name(kind));
            sample(writer, families[i].name, labels, (double)value);
        }
    }
}

static void write_all(struct writer *writer)
{
    const struct timing *timing = writer->head->metrics->timing;
    char labels[LABELS_MAX], name[64];
    for (enum timing_word word = 0; word < TIMING_WORDS; word++) {
        word_family(writer, "", "of all steps", word, name);
        for (enum timing_kind kind = 0; kind < TIMING_KINDS; kind++) {
            snprintf(labels, sizeof labels, "kind=\"%s\"", metrics_kind_name(kind));
            summary(writer, name, labels, &timing->kinds[kind].words[word], unit_of(word));
        }
    }
}

static void write_sessions(struct writer *writer)
{
    const struct head *head = writer->head;
    char labels[LABELS_MAX], name[64], model[NAME_ESCAPED];
    for (enum timing_word word = 0; word < TIMING_WORDS; word++) {
        word_family(writer, "session_", "by session", word, name);
        for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
            const struct timing_session *session = head->metrics->timing->sessions[i];
            for (enum timing_kind kind = 0; session && kind < TIMING_KINDS; kind++) {
                if (!session->kinds[kind].sums.total.steps || !room_for_series(writer))
                    continue;
                snprintf(labels, sizeof labels, "session=\"%" PRIu64 "\",model=\"%s\",kind=\"%s\"", session->id,
                         escape(head->core->models[session->model].name, model), metrics_kind_name(kind));
                summary(writer, name, labels, &session->kinds[kind].words[word], unit_of(word));
            }
        }
    }
}

static void write_layers(struct writer *writer, uint32_t index, enum timing_word word, const char *name)
{
    const struct timing_layers *layers = &writer->head->metrics->timing->models[index];
    char labels[LABELS_MAX], model[NAME_ESCAPED];
    escape(writer->head->core->models[index].name, model);
    for (uint32_t layer = 0; layer < layers->count; layer++) {
        for (enum timing_kind kind = 0; kind < TIMING_KINDS; kind++) {
            const struct timing_set *set = &layers->layers[layer][kind];
            if (!set->sums.total.steps || !room_for_series(writer))
                continue;
            snprintf(labels, sizeof labels, "model=\"%s\",layer=\"%u\",kind=\"%s\"", model, layer, metrics_kind_name(kind));
            summary(writer, name, labels, &set->words[word], unit_of(word));
        }
    }
}

int prometheus_write(const struct head *head, uint64_t now, struct buf *text, struct err *err)
{
    struct writer writer = {.head = head, .now = now, .text = text};
    write_daemon(&writer);
    write_jobs(&writer);
    write_models(&writer);
    write_ducks(&writer);
    write_sums(&writer);
    write_all(&writer);
    for (enum timing_word word = 0; word < TIMING_WORDS; word++) {
        char name[64];
        word_family(&writer, "layer_", "by layer", word, name);
        for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
            if (head->core->models[i].used)
                write_layers(&writer, i, word, name);
    }
    write_sessions(&writer);
    family(&writer, "fp9_series_left_out", "gauge", "Series of layers and sessions that found no room here.");
    sample(&writer, "fp9_series_left_out", "", (double)writer.left_out);
    if (writer.failed)
        return err_set(err, writer.failed, ERR_NO_MEMORY, "metrics as text: %s", strerror(-writer.failed));
    return 0;
}

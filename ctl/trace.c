/* One token through every layer, and when what happened to it, as chrome://tracing and Perfetto read it. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl/commands.h"
#include "ctl/layers.h"
#include "ctl/random.h"
#include "ctl/table.h"

/* Processes and threads of the picture. */
enum {
    PID_CLIENT = 1,
    PID_DAEMON = 2,
    PID_DUCKS = 10, /* and the rank */
    TID_STEPS = 1,
    TID_LINKS = 10, /* and the rank */
};

struct trace {
    struct ctl *ctl;
    const char *model;
    struct layers layers;
    struct fp9_session *session;
    struct random random;
    int32_t *all;        /* owned, [experts]: a permutation of the ids */
    json_t *events;      /* owned */
    int64_t zero_ns;     /* the time that is 0 in the picture; 0: not set yet */
    json_int_t named_to; /* ranks that have their names */
    double job_us;       /* sum over the layers */
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* "M" events give processes and threads their names. */
static void name_row(struct trace *trace, int pid, int tid, const char *kind, const char *name)
{
    json_array_append_new(trace->events,
                          json_pack("{s:s,s:s,s:i,s:i,s:{s:s}}", "name", kind, "ph", "M", "pid", pid, "tid", tid, "args", "name", name));
}

static void span(struct trace *trace, int pid, int tid, const char *name, int64_t begin_ns, int64_t end_ns, json_int_t layer)
{
    double ts = (double)(begin_ns - trace->zero_ns) / 1e3, duration = end_ns > begin_ns ? (double)(end_ns - begin_ns) / 1e3 : 0.0;
    json_array_append_new(trace->events, json_pack("{s:s,s:s,s:s,s:i,s:i,s:f,s:f,s:{s:I}}", "name", name, "cat", "fp9", "ph", "X", "pid",
                                                   pid, "tid", tid, "ts", ts, "dur", duration, "args", "layer", layer));
}

static void name_ranks(struct trace *trace, const json_t *ranks)
{
    size_t i;
    json_t *rank;
    json_array_foreach((json_t *)ranks, i, rank)
    {
        if ((json_int_t)i < trace->named_to)
            continue;
        char text[128];
        const char *duck = json_string_value(json_object_get(rank, "duck"));
        snprintf(text, sizeof text, "rank %zu: %s", i, duck ? duck : "?");
        name_row(trace, PID_DAEMON, TID_LINKS + (int)i, "thread_name", text);
        name_row(trace, PID_DUCKS + (int)i, TID_STEPS, "thread_name", "kernels");
        snprintf(text, sizeof text, "duck %s (rank %zu)", duck ? duck : "?", i);
        name_row(trace, PID_DUCKS + (int)i, TID_STEPS, "process_name", text);
        trace->named_to = (json_int_t)i + 1;
    }
}

/* Adds a rank's spans; *last_sent and *last_answer are moved on. The duck tells how long its kernels ran and not when: they are drawn in
 * the middle between the sending of the step and the arrival of its answer. A duck may begin before fp9d knows that all is sent; what is
 * longer than that time ends with it. */
static void add_rank(struct trace *trace, json_int_t layer, int64_t received, size_t index, const json_t *rank, int64_t *last_sent,
                     int64_t *last_answer)
{
    int64_t sent = received + json_integer_value(json_object_get(rank, "sent_ns")),
            answered = received + json_integer_value(json_object_get(rank, "answered_ns")),
            duck_time = json_integer_value(json_object_get(rank, "duck_time_ns"));
    int64_t spare = answered - sent - duck_time, begin = answered - duck_time - (spare > 0 ? spare / 2 : 0);
    int row = TID_LINKS + (int)index;
    span(trace, PID_DAEMON, row, "send", *last_sent, sent, layer);
    span(trace, PID_DAEMON, row, "wait", sent, answered, layer);
    span(trace, PID_DUCKS + (int)index, TID_STEPS, "kernels", begin, begin + duck_time, layer);
    *last_sent = sent;
    *last_answer = answered > *last_answer ? answered : *last_answer;
}

/* The spans of one call from the trace object of its answer. False: it has none of the form that is known. */
static bool add_step(struct trace *trace, json_int_t layer, const json_t *told, int64_t begin, int64_t end)
{
    int64_t received = json_integer_value(json_object_get(told, "received_ns"));
    int64_t parsed = received + json_integer_value(json_object_get(told, "parsed_ns")),
            at = received + json_integer_value(json_object_get(told, "answered_ns"));
    const json_t *chunk = json_array_get(json_object_get(told, "chunks"), 0), *ranks = json_object_get(chunk, "ranks");
    if (!received || !json_array_size(ranks))
        return false;
    int64_t copied = received + json_integer_value(json_object_get(chunk, "begun_ns")),
            encoded = received + json_integer_value(json_object_get(chunk, "encoded_ns")),
            summed = received + json_integer_value(json_object_get(chunk, "summed_ns")), sent = encoded, answered = 0;
    char name[32];
    snprintf(name, sizeof name, "layer %lld", (long long)layer);
    name_ranks(trace, ranks);
    span(trace, PID_CLIENT, TID_STEPS, name, begin, end, layer);
    span(trace, PID_DAEMON, TID_STEPS, "receive and parse", received, parsed, layer);
    span(trace, PID_DAEMON, TID_STEPS, "check and copy", parsed, copied, layer);
    span(trace, PID_DAEMON, TID_STEPS, "encode", copied, encoded, layer);
    size_t i;
    json_t *rank;
    json_array_foreach((json_t *)ranks, i, rank) add_rank(trace, layer, received, i, rank, &sent, &answered);
    span(trace, PID_DAEMON, TID_STEPS, "send", encoded, sent, layer);
    span(trace, PID_DAEMON, TID_STEPS, "wait", sent, answered, layer);
    span(trace, PID_DAEMON, TID_STEPS, "sum", answered, summed, layer);
    span(trace, PID_DAEMON, TID_STEPS, "answer", summed, at, layer);
    return true;
}

static json_t *params_of(const struct trace *trace, uint32_t layer, bool moe, const struct fp9_places *places)
{
    const char *arena = fp9_session_arena(trace->session);
    json_t *params = json_pack("{s:I,s:i,s:i,s:b,s:{s:I},s:{s:I}}", "session", (json_int_t)fp9_session_id(trace->session), "layer",
                               (int)layer, "tokens", 1, "trace", 1, "x", "offset", (json_int_t)((const char *)places->x - arena), "y",
                               "offset", (json_int_t)((const char *)places->y - arena));
    if (moe) {
        json_object_set_new(params, "top_k", json_integer(trace->layers.top_k));
        json_object_set_new(params, "topk_ids", json_pack("{s:I}", "offset", (json_int_t)((const char *)places->topk_ids - arena)));
        json_object_set_new(params, "topk_weights", json_pack("{s:I}", "offset", (json_int_t)((const char *)places->topk_weights - arena)));
    }
    return params;
}

/* A token through every layer; `noted` or only to warm up. */
static enum ctl_exit pass(struct trace *trace, bool noted)
{
    struct fp9_places places;
    fp9_session_places(trace->session, &places);
    for (uint32_t layer = 0; trace->layers.kinds[layer]; layer++) {
        bool moe = trace->layers.kinds[layer] == 'm';
        random_input(&trace->random, places.x, fp9_session_hidden_size(trace->session));
        if (moe)
            random_routing(&trace->random, trace->layers.experts, trace->layers.top_k, trace->all, places.topk_ids, places.topk_weights);
        json_t *params = params_of(trace, layer, moe, &places), *result;
        int64_t begin = now_ns();
        trace->zero_ns = noted && !trace->zero_ns ? begin : trace->zero_ns;
        enum ctl_exit r = ctl_call(trace->ctl, "decode", params, &result);
        if (r)
            return r;
        int64_t end = now_ns();
        bool good = !noted || add_step(trace, layer, json_object_get(result, "trace"), begin, end);
        json_decref(result);
        if (!good)
            return ctl_fail_with(trace->ctl, "INTERNAL", "fp9d's answer to a step of layer %u has no trace", layer);
        trace->job_us += noted ? (double)(end - begin) / 1e3 : 0.0;
    }
    return CTL_DONE;
}

static enum ctl_exit run(struct trace *trace)
{
    struct ctl *ctl = trace->ctl;
    struct fp9_error error;
    struct fp9_session_options options = {.max_tokens = 1};
    trace->all = calloc(trace->layers.experts + 1, sizeof trace->all[0]);
    trace->events = json_array();
    if (!trace->all || !trace->events)
        return ctl_no_memory(ctl);
    for (uint32_t i = 0; i < trace->layers.experts; i++)
        trace->all[i] = (int32_t)i;
    if (fp9_session_open(ctl->conn, trace->model, &options, &trace->session, &error) < 0)
        return ctl_fail(ctl, &error);
    if (trace->layers.top_k > fp9_session_top_k_max(trace->session))
        return ctl_fail_with(ctl, "BAD_SHAPE", "the model's top_k is more than a session takes");
    name_row(trace, PID_CLIENT, TID_STEPS, "process_name", "fp9ctl");
    name_row(trace, PID_CLIENT, TID_STEPS, "thread_name", "calls");
    name_row(trace, PID_DAEMON, TID_STEPS, "process_name", "fp9d");
    name_row(trace, PID_DAEMON, TID_STEPS, "thread_name", "steps");
    enum ctl_exit r = pass(trace, false);
    return r ? r : pass(trace, true);
}

/* Whole or not at all. */
static enum ctl_exit write_file(const struct ctl *ctl, const json_t *object, const char *path)
{
    char part[4096 + 8];
    int length = snprintf(part, sizeof part, "%s.part", path);
    if (length < 0 || (size_t)length >= sizeof part)
        return ctl_fail_with(ctl, "BAD_REQUEST", "--output: the path is too long");
    FILE *file = fopen(part, "we");
    bool good = file && json_dumpf(object, file, JSON_COMPACT | JSON_REAL_PRECISION(12)) == 0 && fputc('\n', file) != EOF;
    good = file && fclose(file) == 0 && good;
    if (good && rename(part, path) == 0)
        return CTL_DONE;
    int number = errno;
    if (file)
        remove(part);
    return ctl_fail_with(ctl, "BAD_REQUEST", "%s: cannot be written: %s", path, strerror(number));
}

static enum ctl_exit show(const struct trace *trace, const char *path)
{
    json_t *picture =
        json_pack("{s:O,s:s,s:{s:s}}", "traceEvents", trace->events, "displayTimeUnit", "ns", "otherData", "model", trace->model);
    enum ctl_exit r = picture ? CTL_DONE : ctl_no_memory(trace->ctl);
    if (r == CTL_DONE && path) {
        r = write_file(trace->ctl, picture, path);
        json_t *said = json_pack("{s:s,s:i,s:I,s:f,s:s}", "model", trace->model, "layers", (int)strlen(trace->layers.kinds), "events",
                                 (json_int_t)json_array_size(trace->events), "job_time_us", trace->job_us, "output", path);
        if (r == CTL_DONE && !ctl_print_json(trace->ctl, said))
            table_print_object(said);
        json_decref(said);
    } else if (r == CTL_DONE) {
        json_dumpf(picture, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
        putchar('\n');
    }
    json_decref(picture);
    return r;
}

enum ctl_exit trace_run(struct ctl *ctl, const struct parse_args *args)
{
    struct trace trace = {.ctl = ctl, .model = args->args[0], .random.state = (uint64_t)parse_option_int(args, "--seed", 1)};
    json_t *list;
    enum ctl_exit r = ctl_call(ctl, "model.list", NULL, &list);
    if (r)
        return r;
    r = layers_read(ctl, list, trace.model, &trace.layers);
    if (r == CTL_DONE)
        r = run(&trace);
    if (r == CTL_DONE)
        r = show(&trace, parse_option(args, "--output"));
    fp9_session_close(trace.session, NULL);
    json_decref(trace.events);
    json_decref(list);
    free(trace.all);
    return r;
}

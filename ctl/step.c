#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl/commands.h"
#include "ctl/progress.h"
#include "ctl/stats.h"
#include "ctl/table.h"

#define PREFILL_TOKENS_MAX 4096 /* of one session */
#define NAME_MAX_BYTES 512

/* The tensors of a step's file. */
struct input {
    struct fp9_tensors *file;
    uint64_t tokens, hidden, top_k; /* top_k 0: no routing in the file */
    const uint16_t *x;
    const int32_t *ids;
    const float *weights;
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static enum ctl_exit read_tensor(const struct ctl *ctl, struct input *input, const char *prefix, const char *name, enum fp9_dtype dtype,
                                 struct fp9_tensor *ret_tensor)
{
    struct fp9_error error;
    char whole[NAME_MAX_BYTES];
    int n = snprintf(whole, sizeof whole, "%s%s", prefix, name);
    if (n < 0 || (size_t)n >= sizeof whole)
        return ctl_fail_with(ctl, "BAD_REQUEST", "--prefix: longer than a tensor's name can be");
    if (fp9_tensors_read(input->file, whole, dtype, 2, ret_tensor, &error) < 0)
        return ctl_fail(ctl, &error);
    return CTL_DONE;
}

static bool has_tensor(const struct input *input, const char *prefix, const char *name)
{
    char whole[NAME_MAX_BYTES];
    int n = snprintf(whole, sizeof whole, "%s%s", prefix, name);
    return n > 0 && (size_t)n < sizeof whole && fp9_tensors_has(input->file, whole);
}

static enum ctl_exit check_rows(const struct ctl *ctl, const char *path, const struct fp9_tensor *tensor, uint64_t tokens, uint64_t top_k)
{
    if (tensor->shape[0] == tokens && tensor->shape[1] == top_k)
        return CTL_DONE;
    return ctl_fail_with(ctl, "BAD_SHAPE", "%s: %s has shape [%llu, %llu], [%llu, %llu] is needed", path, tensor->name,
                         (unsigned long long)tensor->shape[0], (unsigned long long)tensor->shape[1], (unsigned long long)tokens,
                         (unsigned long long)top_k);
}

static enum ctl_exit read_routing(const struct ctl *ctl, struct input *input, const char *path, const char *prefix)
{
    if (!has_tensor(input, prefix, "topk_ids") && !has_tensor(input, prefix, "topk_weights"))
        return CTL_DONE;
    struct fp9_tensor ids, weights;
    enum ctl_exit r = read_tensor(ctl, input, prefix, "topk_ids", FP9_I32, &ids);
    if (r == CTL_DONE)
        r = read_tensor(ctl, input, prefix, "topk_weights", FP9_F32, &weights);
    if (r == CTL_DONE)
        r = check_rows(ctl, path, &ids, input->tokens, ids.shape[1]);
    if (r == CTL_DONE)
        r = check_rows(ctl, path, &weights, input->tokens, ids.shape[1]);
    if (r)
        return r;
    if (ids.shape[1] == 0 || ids.shape[1] > UINT32_MAX)
        return ctl_fail_with(ctl, "BAD_SHAPE", "%s: %s has %llu columns", path, ids.name, (unsigned long long)ids.shape[1]);
    input->top_k = ids.shape[1];
    input->ids = ids.data;
    input->weights = weights.data;
    return CTL_DONE;
}

static enum ctl_exit read_input(const struct ctl *ctl, const struct parse_args *args, struct input *input)
{
    const char *path = parse_option(args, "--input"), *prefix = parse_option(args, "--prefix");
    struct fp9_error error;
    struct fp9_tensor x;
    prefix = prefix ? prefix : "";
    if (fp9_tensors_open(path, &input->file, &error) < 0)
        return ctl_fail(ctl, &error);
    enum ctl_exit r = read_tensor(ctl, input, prefix, "input", FP9_BF16, &x);
    if (r)
        return r;
    input->tokens = x.shape[0];
    input->hidden = x.shape[1];
    input->x = x.data;
    return read_routing(ctl, input, path, prefix);
}

static enum fp9_dtype dtype_of(const char *text)
{
    return !text ? FP9_DEFAULT : strcmp(text, "f32") == 0 ? FP9_F32 : FP9_BF16;
}

/* All tokens in steps of `chunk`. */
static enum ctl_exit run_steps(const struct ctl *ctl, struct fp9_session *session, bool prefill, uint32_t layer, uint32_t chunk,
                               const struct input *input, uint8_t *y, struct stats_steps *steps)
{
    size_t row = input->hidden * (fp9_session_output_dtype(session) == FP9_BF16 ? 2 : 4);
    for (uint64_t t = 0; t < input->tokens; t += chunk) {
        uint64_t left = input->tokens - t;
        struct fp9_step step = {
            .layer = layer,
            .tokens = left < chunk ? (uint32_t)left : chunk,
            .top_k = (uint32_t)input->top_k,
            .x = input->x + t * input->hidden,
            .topk_ids = input->top_k ? input->ids + t * input->top_k : NULL,
            .topk_weights = input->top_k ? input->weights + t * input->top_k : NULL,
            .y = y + t * row,
        };
        struct fp9_timing timing;
        struct fp9_error error;
        if ((prefill ? fp9_prefill(session, &step, &timing, &error) : fp9_decode(session, &step, &timing, &error)) < 0)
            return ctl_fail(ctl, &error);
        if (!stats_steps_add(steps, &timing))
            return ctl_no_memory(ctl);
    }
    return CTL_DONE;
}

static enum ctl_exit write_output(const struct ctl *ctl, const struct parse_args *args, const struct input *input, const void *y)
{
    const char *path = parse_option(args, "--output");
    enum fp9_dtype dtype = dtype_of(parse_option(args, "--output-dtype")) == FP9_F32 ? FP9_F32 : FP9_BF16;
    struct fp9_error error;
    struct fp9_tensor output = {.name = "output", .dtype = dtype, .dims = 2, .shape = {input->tokens, input->hidden}, .data = y};
    return fp9_tensors_write(path, &output, 1, &error) < 0 ? ctl_fail(ctl, &error) : CTL_DONE;
}

static void report(const struct ctl *ctl, bool prefill, uint64_t tokens, double seconds, struct stats_steps *steps)
{
    json_t *result = json_object();
    json_object_set_new(result, "tokens", json_integer((json_int_t)tokens));
    json_object_set_new(result, "seconds", stats_json(seconds));
    if (steps->job)
        json_object_set_new(result, "job", json_integer((json_int_t)steps->job));
    stats_steps_mode(steps, result);
    if (prefill) {
        json_object_set_new(result, "job_time_us", stats_json(steps->job_us));
        json_object_set_new(result, "judge_wait_us", stats_json(steps->wait_us));
        json_object_set_new(result, "duck_max_us", stats_json(steps->duck_us));
        json_object_set_new(result, "judge_gap_us", stats_json(steps->wait_us - steps->duck_us));
        json_object_set_new(result, "judge_ratio", stats_json(steps->wait_us / steps->duck_us));
        stats_steps_prefill_keys(steps, result);
    } else {
        json_object_set_new(result, "job_time_us", stats_json(stats_quantile(&steps->job_time, 0.5)));
        json_object_set_new(result, "judge_wait_us", stats_json(stats_quantile(&steps->judge_wait, 0.5)));
        json_object_set_new(result, "duck_max_us", stats_json(stats_quantile(&steps->duck_max, 0.5)));
        json_object_set_new(result, "judge_gap_us", stats_json(stats_quantile(&steps->judge_gap, 0.5)));
        json_object_set_new(result, "judge_ratio", stats_json(stats_quantile(&steps->judge_ratio, 0.5)));
    }
    stats_steps_one_shot(steps, prefill, result);
    if (!ctl_print_json(ctl, result))
        table_print_object(result);
    json_decref(result);
}

/* Before there is a session: a file that does not fit should not leave a job behind. 0: not known, or it cannot be asked. */
static uint32_t hidden_size_of(const struct ctl *ctl, const char *model)
{
    char *text = NULL;
    if (fp9_call(ctl->conn, "model.list", NULL, &text, NULL) < 0)
        return 0;
    json_t *result = json_loads(text, 0, NULL), *entry;
    uint32_t hidden = 0;
    size_t i;
    free(text);
    json_array_foreach(json_object_get(result, "models"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, model) == 0)
            hidden = (uint32_t)json_integer_value(json_object_get(entry, "hidden_size"));
    }
    json_decref(result);
    return hidden;
}

static enum ctl_exit check_hidden(const struct ctl *ctl, const struct parse_args *args, const struct input *input, uint32_t hidden)
{
    if (!hidden || input->hidden == hidden)
        return CTL_DONE;
    return ctl_fail_with(ctl, "BAD_SHAPE", "%s: input has shape [%llu, %llu], the hidden size of %s is %u", parse_option(args, "--input"),
                         (unsigned long long)input->tokens, (unsigned long long)input->hidden, args->args[0], hidden);
}

static enum ctl_exit run_session(struct ctl *ctl, const struct parse_args *args, bool prefill, const struct input *input, uint8_t **y,
                                 struct stats_steps *steps)
{
    struct fp9_error error;
    struct fp9_session *session;
    uint32_t chunk = !prefill || input->tokens == 0 ? 1 : input->tokens > PREFILL_TOKENS_MAX ? PREFILL_TOKENS_MAX : (uint32_t)input->tokens;
    struct fp9_session_options options = {
        .max_tokens = chunk,
        .partials = dtype_of(parse_option(args, "--partials")),
        .output_dtype = dtype_of(parse_option(args, "--output-dtype")),
        .one_shot = parse_option(args, "--one-shot") != NULL,
        .job_prefill = prefill,
        .job_layer = (uint32_t)parse_option_int(args, "--layer", 0),
        .job_tokens = input->tokens,
    };
    enum ctl_exit r = ctl_connect(ctl);
    if (r == CTL_DONE)
        r = check_hidden(ctl, args, input, hidden_size_of(ctl, args->args[0]));
    if (r)
        return r;
    struct progress progress;
    progress_start(&progress, ctl->conn, ctl->json);
    progress_hold(&progress, 2);
    if (fp9_session_open(ctl->conn, args->args[0], &options, &session, &error) < 0) {
        progress_stop(&progress, ctl->conn);
        return ctl_fail(ctl, &error);
    }
    steps->job = fp9_session_job(session);
    r = check_hidden(ctl, args, input, fp9_session_hidden_size(session));
    if (r == CTL_DONE && !(*y = calloc(input->tokens + 1, input->hidden * 4)))
        r = ctl_no_memory(ctl);
    if (r == CTL_DONE)
        r = run_steps(ctl, session, prefill, (uint32_t)parse_option_int(args, "--layer", 0), chunk, input, *y, steps);
    progress_stop(&progress, ctl->conn);
    if (fp9_session_close(session, &error) < 0 && r == CTL_DONE)
        r = ctl_fail(ctl, &error);
    return r;
}

static enum ctl_exit step_run(struct ctl *ctl, const struct parse_args *args, bool prefill)
{
    struct input input = {0};
    struct stats_steps steps = {0};
    uint8_t *y = NULL;
    enum ctl_exit r = read_input(ctl, args, &input);
    double begin = seconds_now(), seconds = 0.0;
    if (r == CTL_DONE) {
        r = run_session(ctl, args, prefill, &input, &y, &steps);
        seconds = seconds_now() - begin;
    }
    if (r == CTL_DONE)
        r = write_output(ctl, args, &input, y);
    if (r == CTL_DONE)
        report(ctl, prefill, input.tokens, seconds, &steps);
    stats_steps_release(&steps);
    free(y);
    fp9_tensors_free(input.file);
    return r;
}

enum ctl_exit step_decode(struct ctl *ctl, const struct parse_args *args)
{
    return step_run(ctl, args, false);
}

enum ctl_exit step_prefill(struct ctl *ctl, const struct parse_args *args)
{
    return step_run(ctl, args, true);
}

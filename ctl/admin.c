#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/commands.h"
#include "ctl/memory.h"
#include "ctl/progress.h"
#include "ctl/table.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static enum ctl_exit bad_params(const struct ctl *ctl)
{
    return ctl_fail_with(ctl, "BAD_REQUEST", "the path cannot be sent: with the working directory's it is too long, or no UTF-8");
}

static enum ctl_exit call_and_print(struct ctl *ctl, const char *method, const struct parse_args *args)
{
    json_t *params = parse_params(args), *result;
    if (!params)
        return bad_params(ctl);
    enum ctl_exit r = ctl_call(ctl, method, params, &result);
    if (r)
        return r;
    if (!ctl_print_json(ctl, result))
        table_print_object(result);
    json_decref(result);
    return CTL_DONE;
}

/* Waits for a job and prints what it gives. */
static enum ctl_exit wait_and_print(struct ctl *ctl, json_int_t job, struct progress *progress)
{
    json_t *result;
    progress->job = job;
    enum ctl_exit r = ctl_call(ctl, "job.wait", json_pack("{s:I}", "job", job), &result);
    progress_stop(progress, ctl->conn);
    if (r)
        return r;
    if (!ctl_print_json(ctl, result))
        table_print_object(result);
    json_decref(result);
    return CTL_DONE;
}

/* A method that may answer with a job: its result is the command's, unless --no-wait. `params` is taken; fd >= 0 goes along. */
static enum ctl_exit run_job_with(struct ctl *ctl, const char *method, const struct parse_args *args, json_t *params, int fd)
{
    json_t *result;
    if (!params)
        return bad_params(ctl);
    struct progress progress;
    enum ctl_exit r = ctl_connect(ctl);
    if (r) {
        json_decref(params);
        return r;
    }
    progress_start(&progress, ctl->conn, ctl->json);
    r = ctl_call_fd(ctl, method, params, fd, &result);
    if (r) {
        progress_stop(&progress, ctl->conn);
        return r;
    }
    const json_t *job = json_object_get(result, "job");
    if (json_is_integer(job) && !parse_option(args, "--no-wait")) {
        r = wait_and_print(ctl, json_integer_value(job), &progress);
    } else {
        progress_stop(&progress, ctl->conn);
        if (!ctl_print_json(ctl, result))
            table_print_object(result);
    }
    json_decref(result);
    return r;
}

static enum ctl_exit run_job(struct ctl *ctl, const char *method, const struct parse_args *args)
{
    return run_job_with(ctl, method, args, parse_params(args), -1);
}

enum ctl_exit admin_plan(struct ctl *ctl, const struct parse_args *args)
{
    static const struct table_column legal[] = {
        {"multiple_of", "MULTIPLE_OF", TABLE_COUNT}, {"tp_max", "TP MAX", TABLE_COUNT}, {"tp_max_fleet", "TP MAX OF DUCKS", TABLE_COUNT}};
    static const struct table_column ranks[] = {{"rank", "RANK", TABLE_COUNT},
                                                {"neurons", "NEURONS", TABLE_COUNT},
                                                {"experts", "EXPERTS", TABLE_TEXT},
                                                {"bytes", "SIZE", TABLE_BYTES}};
    json_t *params = parse_params(args), *result;
    if (!params)
        return bad_params(ctl);
    enum ctl_exit r = ctl_call(ctl, "plan", params, &result);
    if (r)
        return r;
    if (!ctl_print_json(ctl, result)) {
        table_print_object(result);
        putchar('\n');
        table_print(json_object_get(result, "legal"), legal, COUNT(legal), "no legal points", ctl->color);
        putchar('\n');
        table_print(json_object_get(result, "ranks"), ranks, COUNT(ranks), "no ranks", ctl->color);
    }
    json_decref(result);
    return CTL_DONE;
}

enum ctl_exit admin_load(struct ctl *ctl, const struct parse_args *args)
{
    return run_job(ctl, "model.load", args);
}

enum ctl_exit admin_unload(struct ctl *ctl, const struct parse_args *args)
{
    return run_job(ctl, "model.unload", args);
}

enum ctl_exit admin_prepare(struct ctl *ctl, const struct parse_args *args)
{
    const char *from = parse_option(args, "--from");
    if (!from)
        return run_job(ctl, "prepare", args);
    int fd;
    enum ctl_exit r = memory_of_file(ctl, from, &fd);
    if (r)
        return r;
    json_t *params = parse_params(args);
    if (params)
        json_object_set_new(params, "memory", json_true());
    ctl->memory_of = from;
    r = run_job_with(ctl, "prepare", args, params, fd);
    close(fd);
    return r;
}

/* A slot that is bad is a result of the command, not a failure of it. */
enum ctl_exit admin_verify(struct ctl *ctl, const struct parse_args *args)
{
    static const struct table_column columns[] = {{"duck", "DUCK", TABLE_TEXT},     {"model", "MODEL", TABLE_TEXT},
                                                  {"model_key", "KEY", TABLE_KEY},  {"layer", "LAYER", TABLE_COUNT},
                                                  {"expert", "EXPERT", TABLE_TEXT}, {"reason", "REASON", TABLE_TEXT}};
    json_t *params = parse_params(args), *result;
    if (!params)
        return bad_params(ctl);
    enum ctl_exit r = ctl_connect(ctl);
    if (r) {
        json_decref(params);
        return r;
    }
    struct progress progress;
    progress_start(&progress, ctl->conn, ctl->json);
    r = ctl_call(ctl, "cache.verify", params, &result);
    progress_stop(&progress, ctl->conn);
    if (r)
        return r;
    if (!ctl_print_json(ctl, result)) {
        const json_t *unreached = json_object_get(result, "unreached");
        long long checked = json_integer_value(json_object_get(result, "checked"));
        printf("%lld slot%s checked, ", checked, checked == 1 ? "" : "s");
        if (parse_option(args, "--full"))
            printf("%lld compared with the checkpoint, ", (long long)json_integer_value(json_object_get(result, "compared")));
        printf("%zu bad\n", json_array_size(json_object_get(result, "bad")));
        if (json_array_size(json_object_get(result, "bad")))
            table_print(json_object_get(result, "bad"), columns, COUNT(columns), "", ctl->color);
        for (size_t i = 0; i < json_array_size(unreached); i++)
            printf("%s: not reached\n", json_string_value(json_array_get(unreached, i)));
        const json_t *uncompared = json_object_get(result, "uncompared");
        for (size_t i = 0; i < json_array_size(uncompared); i++)
            printf("%s: %s\n", json_string_value(json_object_get(json_array_get(uncompared, i), "model")),
                   json_string_value(json_object_get(json_array_get(uncompared, i), "reason")));
    }
    json_decref(result);
    return CTL_DONE;
}

enum ctl_exit admin_invalidate(struct ctl *ctl, const struct parse_args *args)
{
    return run_job(ctl, "cache.invalidate", args);
}

enum ctl_exit admin_job_wait(struct ctl *ctl, const struct parse_args *args)
{
    struct progress progress;
    json_t *params = parse_params(args);
    json_int_t job = json_integer_value(json_object_get(params, "job"));
    json_decref(params);
    enum ctl_exit r = ctl_connect(ctl);
    if (r)
        return r;
    progress_start(&progress, ctl->conn, ctl->json);
    return wait_and_print(ctl, job, &progress);
}

enum ctl_exit admin_job_cancel(struct ctl *ctl, const struct parse_args *args)
{
    return call_and_print(ctl, "job.cancel", args);
}

#include <stdio.h>
#include <string.h>

#include "ctl/commands.h"
#include "ctl/show_timing.h"
#include "ctl/table.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const struct table_column duck_columns[] = {
    {"id", "ID", TABLE_TEXT},           {"name", "NAME", TABLE_TEXT},        {"state", "STATE", TABLE_STATE},
    {"address", "ADDRESS", TABLE_TEXT}, {"spare", "SPARE", TABLE_TEXT},      {"isa", "ISA", TABLE_TEXT},
    {"cores", "CORES", TABLE_COUNT},    {"used_bytes", "USED", TABLE_BYTES}, {"capacity_bytes", "CAPACITY", TABLE_BYTES},
    {"rtt_us", "RTT us", TABLE_COUNT},
};

static const struct table_column model_columns[] = {
    {"name", "NAME", TABLE_TEXT},
    {"state", "STATE", TABLE_STATE},
    {"family", "FAMILY", TABLE_TEXT},
    {"tp", "TP", TABLE_COUNT},
    {"multiple_of", "MULTIPLE_OF", TABLE_COUNT},
    {"strategy", "STRATEGY", TABLE_TEXT},
    {"layers", "LAYERS", TABLE_COUNT},
    {"hidden_size", "HIDDEN", TABLE_COUNT},
    {"experts", "EXPERTS", TABLE_COUNT},
    {"cache", "CACHE", TABLE_TEXT},
    {"model_key", "KEY", TABLE_KEY},
};

static const struct table_column slot_columns[] = {
    {"duck", "DUCK", TABLE_TEXT},         {"model_key", "MODEL KEY", TABLE_KEY}, {"layer", "LAYER", TABLE_COUNT},
    {"kind", "KIND", TABLE_TEXT},         {"state", "STATE", TABLE_STATE},       {"bytes", "SIZE", TABLE_BYTES},
    {"checksum", "CHECKSUM", TABLE_TEXT}, {"models", "MODELS", TABLE_TEXT},
};

static const struct table_column job_columns[] = {
    {"id", "ID", TABLE_COUNT},       {"kind", "KIND", TABLE_TEXT},          {"model", "MODEL", TABLE_TEXT}, {"layer", "LAYER", TABLE_COUNT},
    {"state", "STATE", TABLE_STATE}, {"progress", "PROGRESS", TABLE_SHARE}, {"queued", "ASKED FOR", TABLE_TEXT},
    {"seconds", "SECONDS", TABLE_TEXT}, {"error", "ERROR", TABLE_TEXT},
};

static const struct table_column session_columns[] = {
    {"session", "SESSION", TABLE_COUNT},  {"model", "MODEL", TABLE_TEXT},         {"max_tokens", "MAX TOKENS", TABLE_COUNT},
    {"partials", "PARTIALS", TABLE_TEXT}, {"output_dtype", "OUTPUT", TABLE_TEXT}, {"judge", "JUDGE", TABLE_TEXT},
    {"priority", "PRIORITY", TABLE_TEXT}, {"steps", "STEPS", TABLE_COUNT},        {"wait", "WAIT us", TABLE_COUNT},
    {"gap", "GAP us", TABLE_COUNT},       {"ratio", "RATIO", TABLE_COUNT},        {"last", "LAST", TABLE_TEXT},
};

/* An error object in a cell is its sentence. */
static void flatten_error(json_t *row)
{
    json_t *message = json_object_get(json_object_get(row, "error"), "message");
    if (message)
        json_object_set(row, "error", message);
}

/* A list of names in a cell is the names. */
static void join_models(json_t *row)
{
    json_t *models = json_object_get(row, "models"), *name;
    if (!json_is_array(models))
        return;
    char text[TABLE_TEXT_MAX] = "";
    size_t i;
    json_array_foreach(models, i, name)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? "," : "", json_string_value(name));
    json_object_set_new(row, "models", text[0] ? json_string(text) : json_null());
}

/* Most sentences say already whom they are about: "model m: ...". */
static void print_reason(const char *name, const char *text)
{
    bool named = false;
    for (const char *at = text; *name && !named && (at = strstr(at, name)); at++) {
        char after = at[strlen(name)];
        named = (at == text || at[-1] == ' ') && (after == ':' || after == ' ');
    }
    printf("%s%s%s\n", named ? "" : name, named ? "" : ": ", text);
}

/* Below a table of models or ducks: why those that are not well are not. */
static void print_reasons(const json_t *rows, const char *key)
{
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        const json_t *why = json_object_get(row, key);
        const char *text = json_string_value(json_is_object(why) ? json_object_get(why, "message") : why);
        if (text)
            print_reason(json_string_value(json_object_get(row, "name")), text);
    }
}

/* And what their last load found in the cache. */
static void print_loads(const json_t *models)
{
    size_t i;
    const json_t *row;
    json_array_foreach(models, i, row)
    {
        const char *cache = json_string_value(json_object_get(row, "cache")), *reason = json_string_value(json_object_get(row, "reason"));
        if (cache && cache[0] && reason && reason[0])
            printf("%s: cache %s: %s\n", json_string_value(json_object_get(row, "name")), cache, reason);
    }
}

/* Of models whose experts are divided, whose they are: "m: experts 0-5 local0 local1, 6-11 local2 local3". */
static void print_owners(const json_t *model)
{
    const json_t *owners = json_object_get(model, "owners");
    size_t i, j;
    const json_t *group, *duck;
    json_array_foreach(owners, i, group)
    {
        if (i)
            printf(", %s", json_string_value(json_object_get(group, "experts")));
        else
            printf("%s: experts %s", json_string_value(json_object_get(model, "name")),
                   json_string_value(json_object_get(group, "experts")));
        json_array_foreach(json_object_get(group, "ducks"), j, duck) printf(" %s", json_string_value(duck));
    }
    if (json_array_size(owners))
        putchar('\n');
}

static void print_all_owners(const json_t *models)
{
    size_t i;
    const json_t *model;
    json_array_foreach(models, i, model) print_owners(model);
}

#define JUDGES_TEXT 64

/* " (2 one-shot)", that they all are by configuration, or nothing. */
static const char *judges_text(const json_t *status, char ret_text[JUDGES_TEXT])
{
    json_int_t one_shot = json_integer_value(json_object_get(status, "one_shot_sessions"));
    ret_text[0] = '\0';
    if (json_is_false(json_object_get(status, "persistent_judge")))
        snprintf(ret_text, JUDGES_TEXT, " (persistent_judge is off: one-shot)");
    else if (one_shot)
        snprintf(ret_text, JUDGES_TEXT, " (%lld one-shot)", (long long)one_shot);
    return ret_text;
}

enum ctl_exit show_status(struct ctl *ctl, const struct parse_args *args)
{
    (void)args;
    json_t *result;
    enum ctl_exit r = ctl_call(ctl, "status", NULL, &result);
    if (r)
        return r;
    if (!ctl_print_json(ctl, result)) {
        char state[TABLE_TEXT_MAX], version[TABLE_TEXT_MAX], judges[JUDGES_TEXT];
        table_format(json_object_get(result, "state"), TABLE_TEXT, state);
        table_format(json_object_get(result, "version"), TABLE_TEXT, version);
        long long sessions = json_integer_value(json_object_get(result, "sessions"));
        long long jobs = json_integer_value(json_object_get(result, "jobs"));
        printf("fp9d %s is %s, up %.0f s, %lld session%s%s, %lld job%s\n", version, state,
               json_number_value(json_object_get(result, "uptime_s")), sessions, sessions == 1 ? "" : "s", judges_text(result, judges),
               jobs, jobs == 1 ? "" : "s");
        show_timing_line(json_object_get(result, "timing"));
        putchar('\n');
        table_print(json_object_get(result, "ducks"), duck_columns, COUNT(duck_columns), "no ducks", ctl->color);
        putchar('\n');
        table_print(json_object_get(result, "models"), model_columns, COUNT(model_columns), "no models", ctl->color);
        print_reasons(json_object_get(result, "ducks"), "reason");
        print_reasons(json_object_get(result, "models"), "error");
        print_loads(json_object_get(result, "models"));
        print_all_owners(json_object_get(result, "models"));
    }
    json_decref(result);
    return CTL_DONE;
}

static enum ctl_exit show_list(struct ctl *ctl, const char *method, const char *key, const struct table_column *columns, size_t count,
                               const char *empty)
{
    json_t *result;
    enum ctl_exit r = ctl_call(ctl, method, NULL, &result);
    if (r)
        return r;
    if (!ctl_print_json(ctl, result)) {
        json_t *rows = json_object_get(result, key);
        size_t i;
        json_t *row;
        json_array_foreach(rows, i, row)
        {
            flatten_error(row);
            join_models(row);
            show_timing_spread(row);
        }
        table_print(rows, columns, count, empty, ctl->color);
    }
    json_decref(result);
    return CTL_DONE;
}

/* One item of a list, by the first of its members that has the text asked for. */
static enum ctl_exit show_item(struct ctl *ctl, const char *method, const char *key, const char *const *members, const char *wanted,
                               const char *what)
{
    json_t *result, *item, *found = NULL;
    size_t i;
    char text[TABLE_TEXT_MAX];
    const char *shown = *members;
    enum ctl_exit r = ctl_call(ctl, method, NULL, &result);
    if (r)
        return r;
    for (; !found && *members; members++) {
        json_array_foreach(json_object_get(result, key), i, item)
        {
            table_format(json_object_get(item, *members), TABLE_TEXT, text);
            if (strcmp(text, wanted) == 0)
                found = item;
        }
    }
    if (!found)
        r = ctl_no_such(ctl, what, wanted, json_object_get(result, key), shown);
    else if (!ctl_print_json(ctl, found)) {
        if (strcmp(what, "job") != 0) /* whose error is shown with its name */
            flatten_error(found);
        table_print_object(found);
        print_owners(found);
    }
    json_decref(result);
    return r;
}

enum ctl_exit show_ducks(struct ctl *ctl, const struct parse_args *args)
{
    (void)args;
    return show_list(ctl, "duck.list", "ducks", duck_columns, COUNT(duck_columns), "no ducks");
}

enum ctl_exit show_duck(struct ctl *ctl, const struct parse_args *args)
{
    static const char *const members[] = {"name", "id", NULL};
    return show_item(ctl, "duck.list", "ducks", members, args->args[0], "duck");
}

enum ctl_exit show_models(struct ctl *ctl, const struct parse_args *args)
{
    (void)args;
    return show_list(ctl, "model.list", "models", model_columns, COUNT(model_columns), "no models");
}

enum ctl_exit show_model(struct ctl *ctl, const struct parse_args *args)
{
    static const char *const members[] = {"name", NULL};
    return show_item(ctl, "model.list", "models", members, args->args[0], "model");
}

enum ctl_exit show_cache(struct ctl *ctl, const struct parse_args *args)
{
    static const struct table_column lost[] = {{"duck", "DUCK", TABLE_TEXT},
                                               {"model_key", "MODEL KEY", TABLE_KEY},
                                               {"layer", "LAYER", TABLE_COUNT},
                                               {"reason", "NOT THERE BECAUSE", TABLE_TEXT}};
    static const struct table_column loads[] = {{"time", "TIME", TABLE_TEXT},        {"kind", "KIND", TABLE_TEXT},
                                                {"model", "MODEL", TABLE_TEXT},      {"result", "RESULT", TABLE_STATE},
                                                {"cache", "CACHE", TABLE_TEXT},      {"bytes_read", "READ", TABLE_BYTES},
                                                {"bytes_sent", "SENT", TABLE_BYTES}, {"reason", "REASON", TABLE_TEXT}};
    (void)args;
    json_t *result;
    enum ctl_exit r = ctl_call(ctl, "cache.list", NULL, &result);
    if (r)
        return r;
    if (!ctl_print_json(ctl, result)) {
        size_t i;
        json_t *row;
        json_array_foreach(json_object_get(result, "slots"), i, row) join_models(row);
        table_print(json_object_get(result, "slots"), slot_columns, COUNT(slot_columns), "no slots", ctl->color);
        if (json_array_size(json_object_get(result, "lost"))) {
            putchar('\n');
            table_print(json_object_get(result, "lost"), lost, COUNT(lost), "", ctl->color);
        }
        if (json_array_size(json_object_get(result, "history"))) {
            putchar('\n');
            table_print(json_object_get(result, "history"), loads, COUNT(loads), "", ctl->color);
        }
    }
    json_decref(result);
    return CTL_DONE;
}

enum ctl_exit show_sessions(struct ctl *ctl, const struct parse_args *args)
{
    (void)args;
    return show_list(ctl, "session.list", "sessions", session_columns, COUNT(session_columns), "no sessions");
}

enum ctl_exit show_jobs(struct ctl *ctl, const struct parse_args *args)
{
    (void)args;
    return show_list(ctl, "job.list", "jobs", job_columns, COUNT(job_columns), "no jobs");
}

enum ctl_exit show_job(struct ctl *ctl, const struct parse_args *args)
{
    static const char *const members[] = {"id", NULL};
    return show_item(ctl, "job.list", "jobs", members, args->args[0], "job");
}

/* What the fleet does now: ducks and sessions with their rates, drawn anew every second on a terminal, once elsewhere. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl/commands.h"
#include "ctl/show_timing.h"
#include "ctl/stats.h"
#include "ctl/table.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const struct table_column duck_columns[] = {
    {"name", "DUCK", TABLE_TEXT},
    {"state", "STATE", TABLE_STATE},
    {"steps_per_second", "STEPS/s", TABLE_COUNT},
    {"time", "KERNELS us", TABLE_COUNT},
    {"busy", "BUSY", TABLE_SHARE},
    {"last_share", "LAST", TABLE_SHARE},
    {"reconnects", "RECONNECTS", TABLE_COUNT},
};

static const struct table_column session_columns[] = {
    {"session", "SESSION", TABLE_COUNT}, {"model", "MODEL", TABLE_TEXT}, {"steps_per_second", "STEPS/s", TABLE_COUNT},
    {"wait", "WAIT us", TABLE_COUNT},    {"gap", "GAP us", TABLE_COUNT}, {"ratio", "RATIO", TABLE_COUNT},
    {"last", "LAST", TABLE_TEXT},
};

/* One look at fp9d. */
struct sample {
    double at_s;
    json_t *status, *metrics, *sessions; /* owned */
};

static void sample_release(struct sample *sample)
{
    json_decref(sample->status);
    json_decref(sample->metrics);
    json_decref(sample->sessions);
    *sample = (struct sample){0};
}

static enum ctl_exit sample_take(struct ctl *ctl, struct sample *ret_sample)
{
    struct timespec now;
    struct sample sample = {0};
    enum ctl_exit r = ctl_call(ctl, "status", NULL, &sample.status);
    if (r == CTL_DONE)
        r = ctl_call(ctl, "metrics", NULL, &sample.metrics);
    if (r == CTL_DONE)
        r = ctl_call(ctl, "session.list", NULL, &sample.sessions);
    if (r) {
        sample_release(&sample);
        return r;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    sample.at_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    *ret_sample = sample;
    return CTL_DONE;
}

/* The entry of an array whose member `key` is the same. */
static const json_t *same_entry(const json_t *array, const char *key, const json_t *value)
{
    size_t i;
    json_t *entry;
    json_array_foreach((json_t *)array, i, entry) if (json_equal(json_object_get(entry, key), value)) return entry;
    return NULL;
}

/* Of both kinds: a member of the word `word`, added up. */
static double over_kinds(const json_t *entry, const char *word, const char *member)
{
    double sum = 0.0;
    static const char *const kinds[] = {"decode", "prefill"};
    for (size_t i = 0; i < COUNT(kinds); i++)
        sum += json_number_value(json_object_get(json_object_get(json_object_get(entry, kinds[i]), word), member));
    return sum;
}

static json_t *tokens_per_second(const struct sample *before, const struct sample *now)
{
    static const char *const kinds[] = {"decode", "prefill"};
    double tokens = 0.0;
    for (size_t i = 0; i < COUNT(kinds); i++)
        tokens += json_number_value(json_object_get(json_object_get(json_object_get(now->metrics, "steps"), kinds[i]), "tokens")) -
                  json_number_value(json_object_get(json_object_get(json_object_get(before->metrics, "steps"), kinds[i]), "tokens"));
    return stats_json(tokens / (now->at_s - before->at_s));
}

static json_t *duck_rows(const struct sample *before, const struct sample *now)
{
    json_t *rows = json_array(), *duck;
    double seconds = now->at_s - before->at_s, last = 0.0;
    size_t i;
    json_array_foreach(json_object_get(now->metrics, "ducks"), i, duck) last +=
        json_number_value(json_object_get(json_object_get(duck, "last"), "recent"));
    json_array_foreach(json_object_get(now->metrics, "ducks"), i, duck)
    {
        const json_t *old = same_entry(json_object_get(before->metrics, "ducks"), "name", json_object_get(duck, "name"));
        const json_t *decode = json_object_get(duck, "decode"), *kind = decode ? decode : json_object_get(duck, "prefill"),
                     *time = json_object_get(kind, "duck_time_us");
        json_t *row = json_pack("{s:O,s:O,s:O}", "name", json_object_get(duck, "name"), "state", json_object_get(duck, "state"),
                                "reconnects", json_object_get(duck, "reconnects"));
        double steps = over_kinds(duck, "duck_time_us", "count") - over_kinds(old, "duck_time_us", "count"),
               us = over_kinds(duck, "duck_time_us", "sum") - over_kinds(old, "duck_time_us", "sum");
        json_object_set_new(row, "steps_per_second", stats_json(steps / seconds));
        json_object_set_new(row, "busy", stats_json(us / 1e6 / seconds));
        json_object_set_new(row, "duck_time_us",
                            json_pack("{s:O?,s:O?}", "p50", json_object_get(time, "p50"), "p99", json_object_get(time, "p99")));
        json_object_set_new(row, "last_share",
                            stats_json(json_number_value(json_object_get(json_object_get(duck, "last"), "recent")) / last));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *session_rows(const struct sample *before, const struct sample *now)
{
    json_t *rows = json_array(), *session;
    size_t i;
    json_array_foreach(json_object_get(now->sessions, "sessions"), i, session)
    {
        const json_t *old = same_entry(json_object_get(before->sessions, "sessions"), "session", json_object_get(session, "session"));
        double steps = json_number_value(json_object_get(session, "steps")) - json_number_value(json_object_get(old, "steps"));
        json_t *row = json_copy(session);
        json_object_set_new(row, "steps_per_second", stats_json(steps / (now->at_s - before->at_s)));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* The rows with cells for people beside the numbers. */
static json_t *drawn_rows(const json_t *rows)
{
    json_t *drawn = json_array(), *row;
    size_t i;
    json_array_foreach((json_t *)rows, i, row)
    {
        char time[TABLE_TEXT_MAX];
        json_t *copy = json_copy(row);
        show_timing_pair(json_object_get(row, "duck_time_us"), time);
        json_object_set_new(copy, "time", json_string(time));
        show_timing_spread(copy);
        json_array_append_new(drawn, copy);
    }
    return drawn;
}

static void draw(const struct ctl *ctl, const struct sample *now, const json_t *view)
{
    char tokens[TABLE_TEXT_MAX];
    table_format(json_object_get(view, "layer_tokens_per_second"), TABLE_COUNT, tokens);
    const char *state = json_string_value(json_object_get(now->status, "state"));
    printf("fp9d is %s, %s tokens/s through a layer\n", state ? state : "?", tokens);
    show_timing_line(json_object_get(now->status, "timing"));
    json_t *ducks = drawn_rows(json_object_get(view, "ducks")), *sessions = drawn_rows(json_object_get(view, "sessions"));
    putchar('\n');
    table_print(ducks, duck_columns, COUNT(duck_columns), "no ducks", ctl->color);
    putchar('\n');
    table_print(sessions, session_columns, COUNT(session_columns), "no sessions", ctl->color);
    json_decref(ducks);
    json_decref(sessions);
}

enum ctl_exit top_run(struct ctl *ctl, const struct parse_args *args)
{
    bool terminal = isatty(STDOUT_FILENO) == 1 && !ctl->json;
    unsigned every = (unsigned)parse_option_int(args, "--interval", 1);
    struct sample before = {0}, now = {0};
    enum ctl_exit r = sample_take(ctl, &before);
    do {
        if (r == CTL_DONE) {
            sleep(every);
            r = sample_take(ctl, &now);
        }
        if (r)
            break;
        json_t *view =
            json_pack("{s:O,s:o,s:o,s:o}", "state", json_object_get(now.status, "state"), "layer_tokens_per_second",
                      tokens_per_second(&before, &now), "ducks", duck_rows(&before, &now), "sessions", session_rows(&before, &now));
        if (terminal)
            fputs("\033[H\033[J", stdout); /* home, and clear from there */
        if (!ctl_print_json(ctl, view))
            draw(ctl, &now, view);
        fflush(stdout);
        json_decref(view);
        sample_release(&before);
        before = now;
        now = (struct sample){0};
    } while (terminal);
    sample_release(&before);
    sample_release(&now);
    return r;
}

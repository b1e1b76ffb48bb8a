#include "ctl/progress.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/table.h"

#define SPARSE_S 5

static time_t seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static void show(struct progress *progress, const json_t *params)
{
    char phase[TABLE_TEXT_MAX], done[TABLE_TEXT_MAX], total[TABLE_TEXT_MAX], rate[TABLE_TEXT_MAX];
    table_format(json_object_get(params, "phase"), TABLE_TEXT, phase);
    table_format(json_object_get(params, "done_bytes"), TABLE_BYTES, done);
    table_format(json_object_get(params, "total_bytes"), TABLE_BYTES, total);
    table_format(json_object_get(params, "rate"), TABLE_BYTES, rate);
    if (seconds_now() < progress->from)
        return;
    bool changed = strncmp(progress->phase, phase, sizeof progress->phase - 1) != 0;
    time_t now = seconds_now();
    if (!progress->terminal && !changed && now - progress->last < SPARSE_S)
        return;
    progress->last = now;
    snprintf(progress->phase, sizeof progress->phase, "%.31s", phase);
    double eta = json_number_value(json_object_get(params, "eta_s"));
    char left[48] = "";
    if (json_is_number(json_object_get(params, "eta_s")))
        snprintf(left, sizeof left, ", %.0f s left", eta);
    /* A phase without bytes of its own is only named. */
    bool bytes = json_number_value(json_object_get(params, "total_bytes")) > 0.0;
    const json_t *tokens = json_object_get(params, "total_tokens");
    fprintf(stderr, "%s%s", progress->terminal ? "\r\033[K" : "", phase);
    if (tokens)
        fprintf(stderr, ": %lld of %lld tokens, %.0f tokens/s%s", (long long)json_integer_value(json_object_get(params, "done_tokens")),
                (long long)json_integer_value(tokens), json_number_value(json_object_get(params, "rate")), left);
    else if (bytes)
        fprintf(stderr, ": %s of %s, %s/s%s", done, total, rate, left);
    if (!progress->terminal)
        fputc('\n', stderr);
    progress->open = progress->terminal;
}

static void notified(void *userdata, const char *method, const char *params)
{
    struct progress *progress = userdata;
    if (progress->quiet || strcmp(method, "job.progress") != 0)
        return;
    json_t *object = json_loads(params, 0, NULL);
    if (object && (!progress->job || json_integer_value(json_object_get(object, "job")) == progress->job))
        show(progress, object);
    json_decref(object);
}

void progress_start(struct progress *progress, struct fp9_conn *conn, bool json)
{
    bool terminal = isatty(STDERR_FILENO) == 1;
    *progress = (struct progress){.terminal = terminal, .quiet = json && !terminal, .last = seconds_now()};
    fp9_on_notification(conn, notified, progress);
}

void progress_hold(struct progress *progress, unsigned seconds)
{
    progress->from = seconds_now() + (time_t)seconds;
}

void progress_stop(struct progress *progress, struct fp9_conn *conn)
{
    fp9_on_notification(conn, NULL, NULL);
    if (progress->open)
        fputc('\n', stderr);
    progress->open = false;
}

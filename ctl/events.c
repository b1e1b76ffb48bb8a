/* fp9ctl events: a line for each, until the connection or the reader of the lines ends. */
#include <stdio.h>
#include <stdlib.h>

#include "ctl/commands.h"
#include "ctl/table.h"

struct listener {
    bool json;
    bool closed;   /* nobody reads the lines any more */
    long long left; /* lines still wanted; negative: all */
};

static void event(void *userdata, const char *method, const char *params)
{
    struct listener *listener = userdata;
    json_t *object = json_loads(params, 0, NULL);
    if (object && listener->left && !listener->closed && json_object_get(object, "kind")) {
        if (listener->json) {
            json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
        } else {
            char time[TABLE_TEXT_MAX], kind[TABLE_TEXT_MAX];
            table_format(json_object_get(object, "time"), TABLE_TEXT, time);
            table_format(json_object_get(object, "kind"), TABLE_TEXT, kind);
            printf("%s %-16s ", time, kind);
            for (const char *p = json_string_value(json_object_get(object, "message")); p && *p; p++)
                putchar((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p); /* a terminal must not obey it */
        }
        putchar('\n');
        listener->closed = fflush(stdout) != 0;
        listener->left -= listener->left > 0;
    }
    json_decref(object);
    (void)method;
}

enum ctl_exit events_run(struct ctl *ctl, const struct parse_args *args)
{
    struct listener listener = {.json = ctl->json, .left = parse_option_int(args, "--count", -1)};
    struct fp9_error error;
    enum ctl_exit r = ctl_connect(ctl);
    if (r)
        return r;
    fp9_on_notification(ctl->conn, event, &listener);
    json_t *result;
    r = ctl_call(ctl, "events.subscribe", NULL, &result);
    if (r == CTL_DONE)
        json_decref(result);
    while (r == CTL_DONE && listener.left && !listener.closed)
        if (fp9_process(ctl->conn, -1, &error) < 0)
            r = ctl_fail(ctl, &error);
    fp9_on_notification(ctl->conn, NULL, NULL);
    return r;
}

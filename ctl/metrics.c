#include <stdio.h>

#include "ctl/commands.h"

enum ctl_exit metrics_print(struct ctl *ctl, const struct parse_args *args)
{
    (void)args;
    json_t *result;
    enum ctl_exit r = ctl_call(ctl, "metrics", json_pack("{s:s}", "format", ctl->json ? "json" : "prometheus"), &result);
    if (r)
        return r;
    const char *text = json_string_value(json_object_get(result, "text"));
    if (!ctl_print_json(ctl, result)) {
        if (text)
            fputs(text, stdout);
        else
            r = ctl_fail_with(ctl, "INTERNAL", "fp9d's answer to metrics has no text");
    }
    json_decref(result);
    return r;
}

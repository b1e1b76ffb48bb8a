#include "ctl/show_timing.h"

#include <stdio.h>

void show_timing_pair(const json_t *pair, char ret_text[TABLE_TEXT_MAX])
{
    char p50[TABLE_TEXT_MAX], p99[TABLE_TEXT_MAX];
    table_format(json_object_get(pair, "p50"), TABLE_COUNT, p50);
    table_format(json_object_get(pair, "p99"), TABLE_COUNT, p99);
    snprintf(ret_text, TABLE_TEXT_MAX, "%.48s / %.48s", p50, p99);
}

/* "local2 61 % by 12.5 us": who was last most often; "-" for nobody. */
static void format_straggler(const json_t *straggler, char ret_text[TABLE_TEXT_MAX])
{
    char duck[TABLE_TEXT_MAX], share[TABLE_TEXT_MAX], late[TABLE_TEXT_MAX];
    table_format(json_object_get(straggler, "duck"), TABLE_TEXT, duck);
    table_format(json_object_get(straggler, "share"), TABLE_SHARE, share);
    table_format(json_object_get(straggler, "late_us"), TABLE_COUNT, late);
    if (json_is_object(straggler))
        snprintf(ret_text, TABLE_TEXT_MAX, "%.64s %.16s by %.32s us", duck, share, late);
    else
        snprintf(ret_text, TABLE_TEXT_MAX, "-");
}

void show_timing_spread(json_t *row)
{
    const json_t *timing = json_object_get(row, "timing");
    if (!json_is_object(timing))
        return;
    char text[TABLE_TEXT_MAX];
    show_timing_pair(json_object_get(timing, "judge_wait_us"), text);
    json_object_set_new(row, "wait", json_string(text));
    show_timing_pair(json_object_get(timing, "judge_gap_us"), text);
    json_object_set_new(row, "gap", json_string(text));
    json_object_set(row, "ratio", json_object_get(timing, "judge_ratio"));
    format_straggler(json_object_get(timing, "straggler"), text);
    json_object_set_new(row, "last", json_string(text));
}

void show_timing_line(const json_t *timing)
{
    char kind[TABLE_TEXT_MAX], wait[TABLE_TEXT_MAX], gap[TABLE_TEXT_MAX], ratio[TABLE_TEXT_MAX], last[TABLE_TEXT_MAX];
    if (!json_is_object(timing))
        return;
    table_format(json_object_get(timing, "kind"), TABLE_TEXT, kind);
    table_format(json_object_get(timing, "judge_ratio"), TABLE_COUNT, ratio);
    show_timing_pair(json_object_get(timing, "judge_wait_us"), wait);
    show_timing_pair(json_object_get(timing, "judge_gap_us"), gap);
    format_straggler(json_object_get(timing, "straggler"), last);
    printf("%s of late: steps %lld, judge_wait %s us, judge_gap %s us (p50 / p99), judge_ratio %s, last mostly %s\n", kind,
           (long long)json_integer_value(json_object_get(timing, "steps")), wait, gap, ratio, last);
}

#include "daemon/head/timing_json.h"

#include <stdio.h>

#include "proto/control/rpc.h"

/* Thousandths to one: nanoseconds to microseconds, and a ratio's unit. */
#define UNIT 1e-3

json_t *timing_json_histogram(const struct histogram *histogram, uint64_t now)
{
    struct histogram_summary summary;
    histogram_read(histogram, now, &summary);
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "count", (json_int_t)summary.count, "sum", rpc_real((double)summary.sum * UNIT),
                     "p50", rpc_real(summary.p50 * UNIT), "p90", rpc_real(summary.p90 * UNIT), "p99", rpc_real(summary.p99 * UNIT), "max",
                     summary.recent ? rpc_real((double)summary.max * UNIT) : json_null());
}

static json_t *ratio(double over, double under)
{
    return under > 0 ? rpc_real(over / under) : json_null();
}

static json_t *set_json(const struct timing_set *set, enum timing_kind kind, uint64_t now)
{
    const struct timing_sums *total = &set->sums.total;
    struct timing_sums recent = timing_recent(&set->sums, now);
    json_t *json = json_pack("{s:I, s:I}", "steps", (json_int_t)total->steps, "tokens", (json_int_t)total->tokens);
    for (enum timing_word word = 0; word < TIMING_WORDS; word++) {
        char key[32];
        snprintf(key, sizeof key, "%s%s", metrics_word_name(word), word == TIMING_JUDGE_RATIO ? "" : "_us");
        json_object_set_new(json, key, timing_json_histogram(&set->words[word], now));
    }
    /* Per nanosecond: 1e9 per second. */
    double kernels = (double)recent.duck_max_ns;
    if (kind == TIMING_PREFILL) {
        json_object_set_new(json, "gflops", ratio(2.0 * (double)recent.params, kernels));
        json_object_set_new(json, "weight_stream_gb_per_s", ratio((double)recent.weight_bytes, kernels));
        json_object_set_new(json, "tiles", json_integer((json_int_t)total->tiles));
        json_object_set_new(json, "avg_tile_batch", ratio((double)recent.tile_tokens, (double)recent.tiles));
    } else {
        json_object_set_new(json, "gparam_per_s", ratio((double)recent.params, kernels));
        json_object_set_new(json, "effective_read_gb_per_s", ratio((double)recent.weight_bytes, kernels));
    }
    return json;
}

json_t *timing_json_kinds(const struct timing_set kinds[TIMING_KINDS], uint64_t now)
{
    json_t *json = json_object();
    for (enum timing_kind kind = 0; kind < TIMING_KINDS; kind++)
        if (kinds[kind].sums.total.steps)
            json_object_set_new(json, metrics_kind_name(kind), set_json(&kinds[kind], kind, now));
    return json;
}

json_t *timing_json_straggler(const struct head *head, const struct timing_session *session, uint64_t now)
{
    struct timing_straggler worst = timing_straggler(head->metrics->timing, session, now);
    if (worst.duck == CORE_NONE)
        return json_null();
    return json_pack("{s:s, s:o, s:o}", "duck", head->core->ducks[worst.duck].name, "share", rpc_real(worst.share), "late_us",
                     rpc_real(worst.late_us));
}

static json_t *pair(const struct histogram *histogram, uint64_t now)
{
    struct histogram_summary summary;
    histogram_read(histogram, now, &summary);
    return json_pack("{s:o, s:o}", "p50", rpc_real(summary.p50 * UNIT), "p99", rpc_real(summary.p99 * UNIT));
}

json_t *timing_json_summary(const struct head *head, const struct timing_session *session, uint64_t now)
{
    const struct timing_set *kinds = session ? session->kinds : head->metrics->timing->kinds;
    enum timing_kind kind = TIMING_DECODE;
    struct timing_sums recent = timing_recent(&kinds[kind].sums, now);
    if (!recent.steps) {
        kind = TIMING_PREFILL;
        recent = timing_recent(&kinds[kind].sums, now);
    }
    if (!recent.steps)
        return json_null();
    const struct histogram *words = kinds[kind].words;
    struct histogram_summary judge_ratio;
    histogram_read(&words[TIMING_JUDGE_RATIO], now, &judge_ratio);
    return json_pack("{s:s, s:I, s:o, s:o, s:o, s:o}", "kind", metrics_kind_name(kind), "steps", (json_int_t)recent.steps, "judge_wait_us",
                     pair(&words[TIMING_JUDGE_WAIT], now), "judge_gap_us", pair(&words[TIMING_JUDGE_GAP], now), "judge_ratio",
                     rpc_real(judge_ratio.p50 * UNIT), "straggler", timing_json_straggler(head, session, now));
}

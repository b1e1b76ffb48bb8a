#include "ctl/stats.h"

#include <math.h>
#include <stdlib.h>

#define MODES 32 /* bits of stats_steps.modes */

bool stats_add(struct stats *stats, double value)
{
    if (!isfinite(value))
        return true;
    if (stats->count == stats->capacity) {
        size_t capacity = stats->capacity ? 2 * stats->capacity : 64;
        double *values = reallocarray(stats->values, capacity, sizeof *values);
        if (!values)
            return false;
        stats->values = values;
        stats->capacity = capacity;
    }
    stats->values[stats->count++] = value;
    return true;
}

bool stats_append(struct stats *stats, const struct stats *more)
{
    for (size_t i = 0; i < more->count; i++)
        if (!stats_add(stats, more->values[i]))
            return false;
    return true;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double stats_quantile(struct stats *stats, double q)
{
    if (!stats->count)
        return NAN;
    qsort(stats->values, stats->count, sizeof stats->values[0], compare);
    size_t rank = (size_t)ceil(q * (double)stats->count);
    return stats->values[rank ? rank - 1 : 0];
}

void stats_release(struct stats *stats)
{
    free(stats->values);
    *stats = (struct stats){0};
}

json_t *stats_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static bool add_parts(struct stats_steps *steps, const struct fp9_one_shot *one_shot)
{
    const double parts[STATS_PARTS] = {one_shot->spawn_us, one_shot->map_us, one_shot->team_us, one_shot->run_us, one_shot->exit_us};
    bool good = true;
    for (int i = 0; i < STATS_PARTS; i++)
        good = stats_add(&steps->one_shot[i], parts[i]) && good;
    return good;
}

void stats_steps_one_shot(struct stats_steps *steps, bool sum, json_t *result)
{
    static const char *const names[STATS_PARTS] = {"spawn", "map", "team", "run", "exit"};
    if (!steps->one_shot[0].count)
        return;
    json_t *json = json_object();
    for (int i = 0; i < STATS_PARTS; i++) {
        const struct stats *part = &steps->one_shot[i];
        double value = sum ? 0.0 : stats_quantile(&steps->one_shot[i], 0.5);
        for (size_t n = 0; sum && n < part->count; n++)
            value += part->values[n];
        json_object_set_new(json, names[i], stats_json(value));
    }
    json_object_set_new(result, "one_shot_us", json);
}

bool stats_steps_add(struct stats_steps *steps, const struct fp9_timing *timing)
{
    steps->duck_us += isfinite(timing->duck_max_us) ? timing->duck_max_us : 0.0;
    steps->wait_us += isfinite(timing->judge_wait_us) ? timing->judge_wait_us : 0.0;
    steps->job_us += timing->job_time_us;
    steps->params += (double)timing->params;
    steps->weight_bytes += (double)timing->weight_bytes;
    steps->tiles += (double)timing->tiles;
    steps->tile_tokens += isfinite(timing->avg_tile_batch) ? (double)timing->tiles * timing->avg_tile_batch : 0.0;
    steps->modes |= timing->mode >= 0 && timing->mode < MODES ? 1u << timing->mode : 0;
    return add_parts(steps, &timing->one_shot) && stats_add(&steps->job_time, timing->job_time_us) &&
           stats_add(&steps->judge_wait, timing->judge_wait_us) &&
           stats_add(&steps->client_gap, timing->job_time_us - timing->judge_wait_us) &&
           stats_add(&steps->duck_max, timing->duck_max_us) && stats_add(&steps->judge_gap, timing->judge_gap_us) &&
           stats_add(&steps->judge_ratio, timing->judge_ratio);
}

bool stats_steps_append(struct stats_steps *steps, const struct stats_steps *more)
{
    steps->duck_us += more->duck_us;
    steps->wait_us += more->wait_us;
    steps->job_us += more->job_us;
    steps->params += more->params;
    steps->weight_bytes += more->weight_bytes;
    steps->tiles += more->tiles;
    steps->tile_tokens += more->tile_tokens;
    steps->modes |= more->modes;
    for (int i = 0; i < STATS_PARTS; i++)
        if (!stats_append(&steps->one_shot[i], &more->one_shot[i]))
            return false;
    return stats_append(&steps->job_time, &more->job_time) && stats_append(&steps->judge_wait, &more->judge_wait) &&
           stats_append(&steps->client_gap, &more->client_gap) && stats_append(&steps->duck_max, &more->duck_max) &&
           stats_append(&steps->judge_gap, &more->judge_gap) &&
           stats_append(&steps->judge_ratio, &more->judge_ratio);
}

void stats_steps_release(struct stats_steps *steps)
{
    stats_release(&steps->job_time);
    stats_release(&steps->judge_wait);
    stats_release(&steps->duck_max);
    stats_release(&steps->judge_gap);
    stats_release(&steps->client_gap);
    stats_release(&steps->judge_ratio);
    for (int i = 0; i < STATS_PARTS; i++)
        stats_release(&steps->one_shot[i]);
}

void stats_steps_mode(const struct stats_steps *steps, json_t *result)
{
    int mode = MODES - 1;
    while (mode >= 0 && !(steps->modes >> mode & 1))
        mode--;
    json_object_set_new(result, "mode", mode < 0 ? json_null() : json_integer(mode));
    json_object_set_new(result, "mode_name", mode < 0 ? json_null() : json_string(fp9_mode_name(mode)));
}

void stats_steps_modes(const struct stats_steps *steps, json_t *result)
{
    json_t *modes = json_array(), *names = json_array();
    for (int mode = 0; mode < MODES; mode++) {
        if (!(steps->modes >> mode & 1))
            continue;
        json_array_append_new(modes, json_integer(mode));
        json_array_append_new(names, json_string(fp9_mode_name(mode)));
    }
    json_object_set_new(result, "modes", modes);
    json_object_set_new(result, "mode_names", names);
}

void stats_steps_prefill_keys(const struct stats_steps *steps, json_t *result)
{
    /* Per microsecond and a thousand: 1e9 per second. A weight applied is a multiplication and an addition. */
    json_object_set_new(result, "gflops", stats_json(2.0 * steps->params / steps->duck_us / 1e3));
    json_object_set_new(result, "weight_stream_gb_per_s", stats_json(steps->weight_bytes / steps->duck_us / 1e3));
    json_object_set_new(result, "tiles", json_integer((json_int_t)steps->tiles));
    json_object_set_new(result, "avg_tile_batch", stats_json(steps->tile_tokens / steps->tiles));
}

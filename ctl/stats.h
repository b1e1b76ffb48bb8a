/* Samples of a quantity, and what a run of steps adds up to. */
#ifndef FP9_CTL_STATS_H
#define FP9_CTL_STATS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "proto/client/fp9.h"

struct stats {
    double *values; /* owned */
    size_t count, capacity;
};

/* A value that is not finite (a ratio without a divisor) is no sample. False: out of memory. */
bool stats_add(struct stats *stats, double value);
bool stats_append(struct stats *stats, const struct stats *more);
/* Nearest rank; q 0.5 is the median. NaN without samples. Sorts the samples. */
double stats_quantile(struct stats *stats, double q);
void stats_release(struct stats *stats);

/* A JSON number, null when it is not finite. */
json_t *stats_json(double value);

#define STATS_PARTS 5

struct stats_steps {
    struct stats job_time, judge_wait, duck_max, judge_gap, judge_ratio; /* a sample a step; us */
    struct stats client_gap;                                             /* likewise: job_time - judge_wait */
    double duck_us;                                                      /* sum of duck_max */
    double wait_us, job_us;
    double params, weight_bytes, tiles, tile_tokens; /* sums; tile_tokens / tiles = avg_tile_batch */
    uint32_t modes;                                  /* bit per mode that was seen */
    struct stats one_shot[STATS_PARTS];              /* samples of one-shot steps, in the order of struct fp9_one_shot; us */
    uint64_t job;                                    /* fp9d's number of the batch; 0: none */
};

bool stats_steps_add(struct stats_steps *steps, const struct fp9_timing *timing);
bool stats_steps_append(struct stats_steps *steps, const struct stats_steps *more);
/* Adds mode and mode_name, of the highest that was seen; null when none was told. */
void stats_steps_mode(const struct stats_steps *steps, json_t *result);
/* Adds modes and mode_names, of all. */
void stats_steps_modes(const struct stats_steps *steps, json_t *result);
/* Adds one_shot_us when there were one-shot steps: the medians of the parts, or with `sum` what they add up to. */
void stats_steps_one_shot(struct stats_steps *steps, bool sum, json_t *result);
void stats_steps_release(struct stats_steps *steps);
/* Adds gflops, weight_stream_gb_per_s, tiles, avg_tile_batch; both rates are over duck_max. */
void stats_steps_prefill_keys(const struct stats_steps *steps, json_t *result);

#endif

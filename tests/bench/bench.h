/* fp9-bench: what its parts share.
 *
 * A *step* is one call of a kernel: one matrix (gemv), one expert (mlp), top_k experts (moe). Steps walk round a *pool* of distinct
 * matrices or experts; a cold pool is larger than the caches, a hot one has no more than one step needs. In a *round* every reader and
 * every variant runs for the same time, one after the other, so that the ratios of a round are taken under the same conditions.
 */
#ifndef FP9_TESTS_BENCH_BENCH_H
#define FP9_TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "kernels/tiers.h"
#include "proto/base/err.h"

#define BENCH_TOP_K_MAX 16
#define BENCH_THREADS_MAX 256
#define BENCH_ROUNDS 9

enum bench_kind {
    BENCH_GEMV,
    BENCH_MLP,
    BENCH_MOE,
};

struct bench_case {
    char name[64];
    enum bench_kind kind;
    struct layout_mlp layout; /* gemv: only its down matrix is used, rows = hidden, columns = neurons */
    uint32_t top_k;           /* items of the pool that a step reads: 1 but for moe */
    size_t item_bytes;        /* multiple of 64 */
    double step_params;       /* weights applied, padding not counted */
};

struct bench_settings {
    bool cold;
    uint32_t threads;
    bool json;
    const struct tiers_variant *variant; /* NULL: all that run here */
};

struct bench_pool {
    uint8_t *items; /* count * item_bytes, 64-byte aligned, owned */
    size_t bytes;   /* of the mapping */
    uint32_t count;
};

struct bench_result {
    const struct tiers_variant *variant;
    double gparam_s, gb_s, read_gb_s, of_read, of_limit; /* medians over the rounds */
    double spread;                                       /* of gparam_s: (third quartile - first) / median */
};

/* ---- cases.c ---- */

/* A case by name or NxK. -EINVAL for an unknown name (the sentence lists them) or a shape outside the limits. */
int bench_case_init(struct bench_case *ret_case, enum bench_kind kind, const char *text, struct err *err);
/* The i-th case that runs when none is named, or NULL. */
const char *bench_case_default(enum bench_kind kind, size_t i);

/* ---- pool.c ---- */

/* Enough items for every thread; cold: 1 GiB and four times the last cache at least, or half the memory there is (then it says so on
 * stderr). All items hold valid weights. */
int bench_pool_init(struct bench_pool *ret_pool, const struct bench_case *what, const struct bench_settings *settings, struct err *err);
void bench_pool_release(struct bench_pool *pool);

/* ---- reader.c ---- */

/* Reads every byte of [data, data + bytes) (bytes a multiple of 64) and returns something that depends on them. */
struct bench_reader {
    const char *name;
    uint64_t (*read)(const uint8_t *data, size_t bytes);
};
/* The i-th that runs on this CPU; false when there is none. */
bool bench_reader(size_t i, struct bench_reader *ret_reader);

/* ---- measure.c ---- */

#define BENCH_RESULTS_MAX 16
/* Returns the number of results, or a negative errno. */
int bench_measure(const struct bench_case *what, const struct bench_settings *settings, const struct bench_pool *pool,
                  struct bench_result ret_results[BENCH_RESULTS_MAX], struct err *err);

/* ---- report.c ---- */

void bench_report_begin(const struct bench_settings *settings);
void bench_report(const struct bench_case *what, const struct bench_settings *settings, const struct bench_pool *pool,
                  const struct bench_result *results, int count);
void bench_report_end(const struct bench_settings *settings);

#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/histogram.h"
#include "proto/base/clock.h"

#define PERIOD HISTOGRAM_PERIOD_NS

static uint64_t seed, state_now;

/* splitmix64 */
static uint64_t next(void)
{
    uint64_t z = (state_now += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void expect_near(double got, const uint64_t *sorted, size_t count, double q)
{
    uint64_t exact = sorted[(size_t)ceil(q * (double)count) - 1];
    double allowed = (double)exact / 64.0 < 4.0 ? 4.0 : (double)exact / 64.0;
    if (fabs(got - (double)exact) > allowed)
        fail_msg("seed %llu: %zu values, quantile %g: got %g, exact %llu", (unsigned long long)seed, count, q, got,
                 (unsigned long long)exact);
}

/* Shapes that step times have and some that they should not: narrow, log-uniform over everything, two humps, all alike. */
static uint64_t value_of(unsigned shape)
{
    switch (shape) {
    case 0: return 50000 + next() % 2000;
    case 1: return next() >> (28 + next() % 36); /* below 2^36 */
    case 2: return next() % 10 ? 30000 + next() % 1000 : 900000 + next() % 100000;
    case 3: return 77777;
    default: return next() % 600;
    }
}

static void quantiles_are_near_the_exact_ones(void **state)
{
    (void)state;
    static uint64_t values[20000];
    struct histogram *histogram = malloc(sizeof *histogram);
    for (unsigned round = 0; round < 60; round++) {
        memset(histogram, 0, sizeof *histogram);
        size_t count = 1 + next() % (sizeof values / sizeof values[0]);
        uint64_t sum = 0, now = PERIOD * (5 + next() % 1000);
        for (size_t i = 0; i < count; i++) {
            values[i] = value_of(round % 5);
            sum += values[i];
            histogram_add(histogram, now + i, values[i]);
        }
        qsort(values, count, sizeof values[0], compare);
        struct histogram_summary summary;
        histogram_read(histogram, now + count, &summary);
        assert_int_equal(summary.count, count);
        assert_int_equal(summary.recent, count);
        assert_true(summary.sum == sum);
        assert_true(summary.max == values[count - 1]);
        expect_near(summary.p50, values, count, 0.5);
        expect_near(summary.p90, values, count, 0.9);
        expect_near(summary.p99, values, count, 0.99);
    }
    free(histogram);
}

/* Every bucket's ends, so that no value falls beside its bucket or past the array. */
static void no_value_is_lost(void **state)
{
    (void)state;
    struct histogram *histogram = calloc(1, sizeof *histogram);
    for (unsigned power = 0; power < 64; power++) {
        for (int off = -1; off <= 1; off++) {
            uint64_t value = (UINT64_C(1) << power) + (uint64_t)(int64_t)off;
            memset(histogram, 0, sizeof *histogram);
            histogram_add(histogram, 0, value);
            struct histogram_summary summary;
            histogram_read(histogram, 0, &summary);
            assert_true(summary.max == value);
            if (value < UINT64_C(1) << HISTOGRAM_LAST)
                assert_true(fabs(summary.p99 - (double)value) <= fmax(4.0, (double)value / 64.0));
            else
                assert_true(summary.p99 > 6e10); /* the highest bucket */
        }
    }
    free(histogram);
}

/* Time is ours. */
static void old_values_go(void **state)
{
    (void)state;
    struct histogram *histogram = calloc(1, sizeof *histogram);
    struct histogram_summary summary;
    uint64_t now = 7 * PERIOD + 5;
    histogram_read(histogram, now, &summary);
    assert_int_equal(summary.recent, 0);
    assert_true(isnan(summary.p50) && isnan(summary.p99) && summary.max == 0);
    for (int i = 0; i < 100; i++)
        histogram_add(histogram, now, 1000);
    /* The next period: both count. */
    now += PERIOD;
    for (int i = 0; i < 300; i++)
        histogram_add(histogram, now, 2000000);
    histogram_read(histogram, now, &summary);
    assert_int_equal(summary.recent, 400);
    assert_true(fabs(summary.p50 / 2e6 - 1) < 0.016);
    /* A quarter is of the older period. */
    struct histogram_summary later;
    histogram_read(histogram, now + PERIOD, &later);
    assert_int_equal(later.recent, 300);
    assert_int_equal(later.count, 400);
    assert_true(later.sum == 100 * 1000 + UINT64_C(300) * 2000000);
    assert_true(later.max == 2000000);
    histogram_read(histogram, now + 2 * PERIOD, &later);
    assert_int_equal(later.recent, 0);
    assert_true(isnan(later.p90) && later.max == 0);
    /* The first period's values are gone when the third one begins. */
    histogram_add(histogram, now + PERIOD, 10);
    histogram_read(histogram, now + PERIOD, &later);
    assert_int_equal(later.recent, 301);
    /* After a long silence nothing of before is left. */
    histogram_add(histogram, now + 50 * PERIOD, 10);
    histogram_read(histogram, now + 50 * PERIOD, &later);
    assert_int_equal(later.recent, 1);
    assert_int_equal(later.count, 402);
    assert_true(later.p50 >= 6 && later.p50 <= 10 && later.max == 10);
    /* ... and not in the period that follows. */
    histogram_read(histogram, now + 51 * PERIOD, &later);
    assert_int_equal(later.recent, 1);
    free(histogram);
}

/* Against a list of all that was ever added, in random steps of time. */
static void periods_are_exact(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    static uint64_t values[COUNT], times[COUNT], left[COUNT];
    struct histogram *histogram = calloc(1, sizeof *histogram);
    uint64_t now = 3 * PERIOD;
    for (size_t i = 0; i < COUNT; i++) {
        now += next() % 5 ? next() % (PERIOD / 50) : next() % 40 ? 0 : next() % (3 * PERIOD);
        values[i] = value_of(1);
        times[i] = now;
        histogram_add(histogram, now, values[i]);
        uint64_t at = now + (next() % 3 ? 0 : next() % (2 * PERIOD));
        size_t count = 0;
        uint64_t max = 0;
        for (size_t k = 0; k <= i; k++) {
            if (times[k] / PERIOD + 1 < at / PERIOD)
                continue;
            left[count++] = values[k];
            max = values[k] > max ? values[k] : max;
        }
        struct histogram_summary summary;
        histogram_read(histogram, at, &summary);
        if (summary.recent != count || summary.max != max || summary.count != i + 1)
            fail_msg("seed %llu: value %zu: %llu of %zu values, max %llu of %llu", (unsigned long long)seed, i,
                     (unsigned long long)summary.recent, count, (unsigned long long)summary.max, (unsigned long long)max);
        if (i % 50 || !count)
            continue;
        qsort(left, count, sizeof left[0], compare);
        expect_near(summary.p50, left, count, 0.5);
        expect_near(summary.p99, left, count, 0.99);
    }
    free(histogram);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : clock_now_ns();
    state_now = seed;
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_near_the_exact_ones),
        cmocka_unit_test(no_value_is_lost),
        cmocka_unit_test(old_values_go),
        cmocka_unit_test(periods_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The dispatch: what is asked for is used, and what cannot be had is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "kernels/cpu.h"
#include "kernels/kernels.h"
#include "kernels/tiers.h"

static void refused(const char *forced, int code, const char *sentence)
{
    const struct tiers_ops *before = tiers_active();
    struct err err;

    assert_int_equal(kernels_select(forced, &err), code);
    assert_int_equal(err.code, code);
    assert_int_equal(err.name, ERR_BAD_REQUEST);
    if (!strstr(err.message, sentence))
        fail_msg("\"%s\" does not say \"%s\"", err.message, sentence);
    assert_ptr_equal(tiers_active(), before);
}

static void test_forced(void **state)
{
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        if (!kernels_tier_available(variants[i].tier)) {
            refused(variants[i].name, -ENOTSUP, "lacks");
            continue;
        }
        assert_int_equal(kernels_select(variants[i].name, NULL), 0);
        assert_string_equal(kernels_tier_name(), variants[i].name);
        assert_ptr_equal(tiers_active(), variants[i].ops);
    }
}

static void test_refused(void **state)
{
    (void)state;
    refused("nonsense", -EINVAL, "FP9_CPU=nonsense is unknown: ref, avx2 or avx512");
    refused("AVX2", -EINVAL, "unknown");
    refused("avx512", -ENOTSUP, "has no avx512 kernels");
}

static void test_best(void **state)
{
    (void)state;
    assert_int_equal(kernels_select("ref", NULL), 0);
    assert_int_equal(kernels_select(NULL, NULL), 0);
    assert_string_equal(kernels_tier_name(), cpu_has_avx2() ? "avx2" : "ref");
    assert_int_equal(kernels_select("ref", NULL), 0);
    assert_int_equal(kernels_select("", NULL), 0);
    assert_string_equal(kernels_tier_name(), cpu_has_avx2() ? "avx2" : "ref");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best), /* first: nothing was chosen before */
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

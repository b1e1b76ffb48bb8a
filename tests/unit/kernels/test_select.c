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

#if defined(__x86_64__)
#define FP9_X86 1
#else
#define FP9_X86 0
#endif

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
        assert_string_equal(kernels_variant_name(), variants[i].name);
        assert_ptr_equal(tiers_active(), variants[i].ops);
        /* a tier's name: one of its variants */
        assert_int_equal(kernels_select(variants[i].ops->name, NULL), 0);
        assert_string_equal(kernels_tier_name(), variants[i].ops->name);
    }
}

static void test_refused(void **state)
{
    (void)state;
    refused("nonsense", -EINVAL, "FP9_CPU=nonsense is unknown: ref, avx2, avx2:rp, avx2:rm or avx512");
    refused("AVX2", -EINVAL, "unknown");
    refused("avx2:", -EINVAL, "unknown");
    refused("ref:rm", -EINVAL, "unknown");
}

/* Whichever is the fastest, it is not the reference. */
static void test_best(void **state)
{
    bool plain = !(cpu_features() & CPU_AVX2);

    (void)state;
    for (int i = 0; i < 2; i++) {
        int r;

        assert_int_equal(kernels_select("ref", NULL), 0);
        r = kernels_select(i ? "" : NULL, NULL);
        assert_int_equal(r, plain && FP9_X86 ? -ENOTSUP : 0);
        assert_int_equal(strcmp(kernels_tier_name(), "ref") == 0, plain);
    }
}

static unsigned features(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0)
{
    return cpu_features_of(&(struct cpu_words){leaf1_ecx, leaf7_ebx, xcr0});
}

/* Words as CPUs give them. */
static void test_features(void **state)
{
    const uint32_t haswell = 0x7ffafbbf, nehalem = 0x0098e3fd, server = 0xd19f4ffb; /* leaf 7 EBX of a Skylake server */

    (void)state;
    assert_int_equal(features(haswell, 0x27ab, 7), CPU_AVX2);
    assert_int_equal(features(nehalem, 0, 0), 0);
    assert_int_equal(features(haswell & ~(1u << 12), 0x27ab, 7), 0);  /* no FMA */
    assert_int_equal(features(haswell & ~(1u << 29), 0x27ab, 7), 0);  /* no F16C */
    assert_int_equal(features(haswell, 0x27ab & ~(1u << 5), 7), 0);   /* no AVX2 */
    assert_int_equal(features(haswell, server, 3), 0);                /* the system saves no YMM */
    assert_int_equal(features(haswell, server, 7), CPU_AVX2);         /* nor ZMM */
    assert_int_equal(features(haswell, server, 0xe7), CPU_AVX2 | CPU_AVX512);
    assert_int_equal(features(haswell, server & ~(1u << 30), 0xe7), CPU_AVX2); /* no BW */
    assert_int_equal(features(haswell, server & ~(1u << 31), 0xe7), CPU_AVX2); /* no VL */
}

#if FP9_X86
/* A CPU without AVX2 is refused in words, a named reference runs on it; one without AVX-512 never gets it. */
static void test_poor_cpu(void **state)
{
    const struct tiers_variant *variant = NULL;
    struct err err;

    (void)state;
    assert_int_equal(tiers_choose(0, NULL, &variant, &err), -ENOTSUP);
    assert_int_equal(err.name, ERR_BAD_REQUEST);
    assert_non_null(strstr(err.message, "lacks AVX2, FMA or F16C, which fp9 needs; FP9_CPU=ref"));
    assert_int_equal(tiers_choose(0, "avx2:rm", &variant, &err), -ENOTSUP);
    assert_non_null(strstr(err.message, "FP9_CPU=avx2:rm: this CPU or its operating system lacks it"));
    assert_null(variant);
    assert_int_equal(tiers_choose(0, "ref", &variant, &err), 0);
    assert_string_equal(variant->name, "ref");
    if (!(cpu_features() & CPU_AVX2))
        return;
    assert_int_equal(tiers_choose(CPU_AVX2, "avx512", &variant, &err), -ENOTSUP);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(tiers_choose(CPU_AVX2, NULL, &variant, &err), 0);
        assert_int_equal(variant->tier, KERNELS_AVX2);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best), /* first: nothing was chosen before */
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_features),
#if FP9_X86
        cmocka_unit_test(test_poor_cpu),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

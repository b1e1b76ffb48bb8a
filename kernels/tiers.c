/* The choice of a tier and variant, once per process: the only place that decides. */
#include "kernels/tiers.h"

#include <errno.h>
#include <string.h>

#include "kernels/cpu.h"
#include "kernels/ref/ref.h"
#include "kernels/timing.h"
#include "kernels/x86/x86.h"
#include "proto/base/cleanup.h"

/* Of two that are about as fast the earlier one is used. */
static const struct tiers_variant variants[] = {
    {KERNELS_REF, "ref", &ref_ops},
#if FP9_KERNELS_X86
    {KERNELS_AVX2, "avx2:rm", &avx2_rm_ops},
    {KERNELS_AVX2, "avx2:rp", &avx2_rp_ops},
    {KERNELS_AVX512, "avx512", &avx512_ops},
#endif
};

static const struct tiers_variant *active; /* atomic; NULL until first use */

const struct tiers_variant *tiers_variants(size_t *ret_count)
{
    *ret_count = ARRAY_LENGTH(variants);
    return variants;
}

static bool available(unsigned features, enum kernels_tier tier)
{
    switch (tier) {
    case KERNELS_REF:
        return true;
    case KERNELS_AVX2:
        return FP9_KERNELS_X86 && (features & CPU_AVX2);
    case KERNELS_AVX512:
        return FP9_KERNELS_X86 && (features & CPU_AVX512);
    }
    return false;
}

bool kernels_tier_available(enum kernels_tier tier)
{
    return available(cpu_features(), tier);
}

/* `forced` names a variant, or a tier and so all its variants; NULL: any. */
static bool matches(const struct tiers_variant *variant, const char *forced)
{
    return !forced || strcmp(forced, variant->name) == 0 || strcmp(forced, variant->ops->name) == 0;
}

/* The fastest that matches and runs, the reference only if it is alone; NULL when there is none. */
static const struct tiers_variant *fastest(unsigned features, const char *forced)
{
    const struct tiers_variant *candidates[ARRAY_LENGTH(variants)], *reference = NULL;
    size_t count = 0;

    for (size_t i = 0; i < ARRAY_LENGTH(variants); i++) {
        if (!matches(&variants[i], forced) || !available(features, variants[i].tier))
            continue;
        if (variants[i].tier == KERNELS_REF)
            reference = &variants[i];
        else
            candidates[count++] = &variants[i];
    }
    if (count == 0)
        return reference;
    return count == 1 ? candidates[0] : timing_fastest(candidates, count);
}

static const struct tiers_variant *in_use(void)
{
    const struct tiers_variant *variant = __atomic_load_n(&active, __ATOMIC_RELAXED);

    if (!variant) {
        variant = fastest(cpu_features(), NULL);
        __atomic_store_n(&active, variant, __ATOMIC_RELAXED);
    }
    return variant;
}

const struct tiers_ops *tiers_active(void)
{
    return in_use()->ops;
}

const char *kernels_tier_name(void)
{
    return in_use()->ops->name;
}

const char *kernels_variant_name(void)
{
    return in_use()->name;
}

int tiers_choose(unsigned features, const char *forced, const struct tiers_variant **ret_variant, struct err *err)
{
    const struct tiers_variant *variant;
    bool known = false;

    if (forced && !*forced)
        forced = NULL;
    variant = fastest(features, forced);
    if (FP9_KERNELS_X86 && !forced && variant->tier == KERNELS_REF)
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST,
                       "this CPU or its operating system lacks AVX2, FMA or F16C, which fp9 needs; FP9_CPU=ref runs the plain C reference, "
                       "some hundred times slower");
    if (variant) {
        *ret_variant = variant;
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(variants); i++)
        known |= matches(&variants[i], forced);
    if (known)
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST, "FP9_CPU=%s: this CPU or its operating system lacks it; unset FP9_CPU or use ref",
                       forced);
    if (!FP9_KERNELS_X86 && strncmp(forced, "avx", 3) == 0)
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST, "FP9_CPU=%s: this build is not for x86-64; use ref", forced);
    return err_set(err, -EINVAL, ERR_BAD_REQUEST, "FP9_CPU=%s is unknown: ref, avx2, avx2:rp, avx2:rm or avx512", forced);
}

int kernels_select(const char *forced, struct err *err)
{
    const struct tiers_variant *variant = NULL;
    int r = tiers_choose(cpu_features(), forced, &variant, err);

    if (r < 0)
        return r;
    __atomic_store_n(&active, variant, __ATOMIC_RELAXED);
    return 0;
}

/* The choice of a tier, once per process. */
#include "kernels/tiers.h"

#include <errno.h>
#include <string.h>

#include "kernels/cpu.h"
#include "kernels/ref/ref.h"
#include "kernels/x86/x86.h"

/* The best of each tier last: the default is the last that runs here. */
static const struct tiers_variant variants[] = {
    {KERNELS_REF, "ref", &ref_ops},
#if FP9_KERNELS_X86
    {KERNELS_AVX2, "avx2", &avx2_ops},
#endif
};

#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static const struct tiers_ops *active; /* atomic; NULL until first use */

const struct tiers_variant *tiers_variants(size_t *ret_count)
{
    *ret_count = VARIANTS;
    return variants;
}

bool kernels_tier_available(enum kernels_tier tier)
{
    switch (tier) {
    case KERNELS_REF:
        return true;
    case KERNELS_AVX2:
        return FP9_KERNELS_X86 && cpu_has_avx2();
    }
    return false;
}

static const struct tiers_ops *best(void)
{
    size_t i = VARIANTS;

    while (!kernels_tier_available(variants[--i].tier))
        ;
    return variants[i].ops;
}

const struct tiers_ops *tiers_active(void)
{
    const struct tiers_ops *ops = __atomic_load_n(&active, __ATOMIC_RELAXED);

    if (!ops) {
        ops = best();
        __atomic_store_n(&active, ops, __ATOMIC_RELAXED);
    }
    return ops;
}

const char *kernels_tier_name(void)
{
    return tiers_active()->name;
}

int kernels_select(const char *forced, struct err *err)
{
    const struct tiers_ops *ops = NULL;

    if (!forced || !*forced) {
        ops = best();
    } else {
        for (size_t i = 0; i < VARIANTS; i++) {
            if (strcmp(forced, variants[i].name) != 0)
                continue;
            if (!kernels_tier_available(variants[i].tier))
                return err_set(err, -ENOTSUP, ERR_BAD_REQUEST,
                               "FP9_CPU=%s: this CPU or its operating system lacks %s; unset FP9_CPU or use ref", forced, forced);
            ops = variants[i].ops;
        }
        if (!ops && strcmp(forced, "avx512") == 0)
            return err_set(err, -ENOTSUP, ERR_BAD_REQUEST, "FP9_CPU=avx512: this build has no avx512 kernels; use avx2 or ref");
        if (!ops && strcmp(forced, "avx2") == 0)
            return err_set(err, -ENOTSUP, ERR_BAD_REQUEST, "FP9_CPU=avx2: this build is not for x86-64; use ref");
        if (!ops)
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "FP9_CPU=%s is unknown: ref, avx2 or avx512", forced);
    }
    __atomic_store_n(&active, ops, __ATOMIC_RELAXED);
    return 0;
}

#include "tests/checkkern/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

static unsigned mxcsr_set(unsigned value)
{
#if defined(__SSE__)
    unsigned saved = _mm_getcsr();

    _mm_setcsr(value);
    return saved;
#else
    (void)value;
    return 0;
#endif
}

void run_forward(const struct check_layer *layer, const struct run_input *input, const char *tier, float *ret_y)
{
    uint32_t hidden = layer->layout.hidden;
    size_t count = (size_t)input->tokens * hidden;
    /* y is a float's alignment and no more. */
    struct check_guarded y = check_guarded_new(count * sizeof(float), 4);
    struct check_guarded scratch = check_guarded_new(kernels_scratch_bytes(&layer->layer), 0);
    unsigned saved = 0;
    struct err err;

    if (kernels_select(tier, &err) < 0)
        check_fail("select: %s", err.message);
    if (input->mxcsr)
        saved = mxcsr_set(input->mxcsr);
    if (input->top_k)
        kernels_moe(&layer->layer, input->x, input->ids, input->weights, input->tokens, input->top_k, (float *)(void *)y.data,
                    scratch.data);
    else
        kernels_dense(&layer->layer, input->x, input->tokens, (float *)(void *)y.data, scratch.data);
    if (input->mxcsr && mxcsr_set(saved) != input->mxcsr)
        check_fail("forward: %s left MXCSR other than 0x%04x", tier, input->mxcsr);
    kernels_canonical((float *)(void *)y.data, count);
    memcpy(ret_y, y.data, count * sizeof(float));
    if (!check_guarded_free(&y))
        check_fail("forward: %s wrote outside y", tier);
    if (!check_guarded_free(&scratch))
        check_fail("forward: %s wrote outside its scratch", tier);
}

bool run_compared(const char *what, const struct check_layer *layer, const struct run_input *input, float *ret_y)
{
    size_t bytes = (size_t)input->tokens * layer->layout.hidden * sizeof(float);
    const struct tiers_variant *variant;
    float *have = malloc(bytes);
    bool same = true;

    run_forward(layer, input, "ref", ret_y);
    for (size_t i = 0; check_tier(i, &variant); i++) {
        run_forward(layer, input, variant->name, have);
        same &= check_same(what, variant->name, have, ret_y, bytes);
    }
    free(have);
    return same;
}

/* FTZ and DAZ, each rounding, an exception left unmasked. */
void run_mxcsr(const char *what, const struct check_layer *layer, const struct run_input *input, const float *want)
{
#if defined(__SSE__)
    static const unsigned hostile[] = {0x9fc0, 0x3f80, 0x5f80, 0x7f80, 0xffc0, 0x1f00};
    size_t bytes = (size_t)input->tokens * layer->layout.hidden * sizeof(float);
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);
    float *have = malloc(bytes);

    for (size_t i = 0; i < count * (sizeof(hostile) / sizeof(hostile[0])); i++) {
        const struct tiers_variant *variant = &variants[i % count];
        struct run_input other = *input;

        if (!kernels_tier_available(variant->tier))
            continue;
        other.mxcsr = hostile[i / count];
        run_forward(layer, &other, variant->name, have);
        check_same(what, variant->name, have, want, bytes);
    }
    free(have);
#else
    (void)what, (void)layer, (void)input, (void)want;
#endif
}

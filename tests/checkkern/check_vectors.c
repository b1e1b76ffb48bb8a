/* Elementwise kernels: normalise, silu, partials; packing of a tile. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bits.h"
#include "kernels/ref/ref.h"
#include "tests/checkkern/check.h"

#define COUNT 300
#define SILU_ERROR 0x1p-22 /* README section 4 */

static void fill_bits(void *to, size_t bytes, struct check_random *random)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = (uint8_t)check_u64(random);
}

/* The stated properties, without looking at how: an exact multiple by 2^(126 - e), the largest in [2^126, 2^127). */
static void check_normalised(const float *in, const float *out, uint32_t count, uint32_t floats, int e)
{
    double largest = 0.0;

    for (uint32_t k = 0; k < count; k++) {
        double want = ldexp((double)in[k], 126 - e);

        if (e <= 126 && !isnan(in[k]) && (double)out[k] != want) {
            check_fail("normalise: %a became %a at e %d, not %a", (double)in[k], (double)out[k], e, want);
            return;
        }
        if (isnan(in[k]) != isnan(out[k]))
            check_fail("normalise: NaN appeared or went at %u", k);
        if (isfinite(in[k]) && fabs((double)in[k]) > largest)
            largest = fabs((double)in[k]);
    }
    for (uint32_t k = count; k < floats; k++)
        if (bits_of_f32(out[k]) != 0)
            check_fail("normalise: padding is %a", (double)out[k]);
    if (largest >= 0x1p-126 && (ldexp(largest, 126 - e) < 0x1p126 || ldexp(largest, 126 - e) >= 0x1p127))
        check_fail("normalise: largest %a, e %d", largest, e);
}

static void check_normalise(struct check_random *random)
{
    /* Ranges of exponents, so that all-subnormal and all-huge vectors come up too. */
    uint32_t count = 1 + check_below(random, COUNT), floats = (count + 15) / 16 * 16 + 16 * check_below(random, 3);
    uint32_t low = check_below(random, 256), span = 1 + check_below(random, 256 - low);
    struct check_guarded want = check_guarded_new(floats * sizeof(float), 0);
    float in[COUNT], bf16_in[COUNT];
    uint16_t bf16[COUNT];
    const struct tiers_variant *variant;
    int e;

    for (uint32_t k = 0; k < count; k++) {
        uint32_t bits = (uint32_t)check_u64(random);

        in[k] = bits_to_f32((bits & 0x807fffff) | (low + check_below(random, span)) << 23);
        bf16[k] = (uint16_t)(bits_of_f32(in[k]) >> 16);
        bf16_in[k] = kernels_bf16_to_f32(bf16[k]);
    }
    e = ref_normalise_f32((float *)(void *)want.data, floats, in, count);
    check_normalised(in, (const float *)(const void *)want.data, count, floats, e);
    for (size_t i = 0; check_tier(i, &variant); i++) {
        struct check_guarded have = check_guarded_new(floats * sizeof(float), 0);

        memcpy(have.data, in, count * sizeof(float));
        if (variant->ops->normalise_f32((float *)(void *)have.data, floats, (float *)(void *)have.data, count) != e)
            check_fail("normalise_f32: %s has another e", variant->name);
        check_same("normalise_f32", variant->name, have.data, want.data, floats * sizeof(float));
        if (!check_guarded_free(&have))
            check_fail("normalise_f32: %s wrote outside", variant->name);
    }

    e = ref_normalise_bf16((float *)(void *)want.data, floats, bf16, count);
    check_normalised(bf16_in, (const float *)(const void *)want.data, count, floats, e);
    for (size_t i = 0; check_tier(i, &variant); i++) {
        struct check_guarded have = check_guarded_new(floats * sizeof(float), 0);

        if (variant->ops->normalise_bf16((float *)(void *)have.data, floats, bf16, count) != e)
            check_fail("normalise_bf16: %s has another e", variant->name);
        check_same("normalise_bf16", variant->name, have.data, want.data, floats * sizeof(float));
        if (!check_guarded_free(&have))
            check_fail("normalise_bf16: %s wrote outside", variant->name);
    }
    if (!check_guarded_free(&want))
        check_fail("normalise: ref wrote outside");
}

static void check_silu_at(uint32_t bits, double *worst, float *worst_at)
{
    float g = bits_to_f32(bits), have = ref_silu(g);
    double exact, error;

    if (isnan(g) || isinf(g)) {
        if (isnan(g) ? !isnan(have) : have != (g > 0 ? g : 0.0f))
            check_fail("silu: %a gives %a", (double)g, (double)have);
        return;
    }
    exact = (double)g / (1.0 + exp(-(double)g));
    if (fabs(exact) < 0x1p-126) {
        if (fabs((double)have - exact) > 2 * 0x1p-149)
            check_fail("silu: %a gives %a, exact %a", (double)g, (double)have, exact);
        return;
    }
    error = fabs((double)have - exact) / fabs(exact);
    if (error > *worst) {
        *worst = error;
        *worst_at = g;
    }
}

/* Every binary32 in steps of a prime from a random start; all bits of the range where something happens more finely. */
static void check_silu(struct check_random *random)
{
    double worst = 0.0;
    float worst_at = 0.0f;

    for (uint64_t bits = check_below(random, 4099); bits <= UINT32_MAX; bits += 4099)
        check_silu_at((uint32_t)bits, &worst, &worst_at);
    for (int sign = 0; sign < 2; sign++)
        for (uint32_t bits = 0x3a000000 + check_below(random, 101); bits < 0x43400000; bits += 101)
            check_silu_at(bits | (uint32_t)sign << 31, &worst, &worst_at);
    printf("silu: largest relative error 2^%.2f, at %a\n", log2(worst), (double)worst_at);
    if (worst > SILU_ERROR)
        check_fail("silu: %g is more than 2^-22", worst);
}

#define SILU_ROWS 4096

/* A gate matrix with 1 on its diagonal and an up matrix that gives 1: h = silu(g) for any g, within 2^14. */
static void gate_up_silu(const struct tiers_ops *ops, const float *g, float *h)
{
    static const float scales[2] = {0.5f, 0.5f};
    uint8_t panel[2 * LAYOUT_GROUP_BYTES] __attribute__((aligned(64)));
    uint8_t gate[16][32] = {0}, up[16][32] = {0};
    float v[32] __attribute__((aligned(64))) = {0};
    struct tiers_run run = {.panels = panel, .scales = scales, .count = 1, .segments = 1, .first_groups = 2, .groups = 2};

    for (uint32_t row = 0; row < 16; row++)
        gate[row][row] = up[row][16] = 0x38; /* 1, raw 2^-111 */
    ops->pack_tile(panel, 0, gate[0], 32, 16, 32);
    ops->pack_tile(panel, 1, up[0], 32, 16, 32);
    v[16] = 0x1p112f;
    for (uint32_t i = 0; i < SILU_ROWS; i += 16) {
        for (uint32_t row = 0; row < 16; row++)
            v[row] = g[i + row] * 0x1p112f;
        ops->gate_up(&run, v, 1.0f, h + i);
    }
}

/* silu as the fused kernels have it, against ref_silu: bits, not bounds. */
static void check_fused_silu(struct check_random *random)
{
    struct check_guarded want = check_guarded_new(SILU_ROWS * sizeof(float), 0);
    static float g[SILU_ROWS];
    float *silu = (float *)(void *)want.data;
    const struct tiers_variant *variant;

    for (int round = 0; round < 100; round++) {
        for (uint32_t i = 0; i < SILU_ROWS; i++) {
            /* mostly where e^-a is no extreme, but any exponent up to 2^13 */
            uint32_t any = ((uint32_t)check_u64(random) & 0x807fffff) | check_below(random, 127 + 14) << 23;

            g[i] = i % 8 ? 200.0f * check_float(random) * fabsf(check_float(random)) : bits_to_f32(any);
            silu[i] = ref_silu(g[i]);
        }
        for (size_t i = 0; check_tier(i, &variant); i++) {
            struct check_guarded have = check_guarded_new(SILU_ROWS * sizeof(float), 0);

            gate_up_silu(variant->ops, g, (float *)(void *)have.data);
            check_same("silu within gate_up", variant->name, have.data, want.data, SILU_ROWS * sizeof(float));
            if (!check_guarded_free(&have))
                check_fail("silu: %s wrote outside h", variant->name);
        }
    }
    check_guarded_free(&want);
}

static void check_partials(struct check_random *random)
{
    uint32_t count = 1 + check_below(random, COUNT);
    float values[COUNT], sum[COUNT], want[COUNT], have[COUNT];
    uint16_t bf16[COUNT], want16[COUNT], have16[COUNT];
    const struct tiers_variant *variant;

    fill_bits(values, sizeof(values), random);
    fill_bits(bf16, sizeof(bf16), random);
    fill_bits(sum, sizeof(sum), random);
    for (uint32_t i = 0; i < count; i += 7)
        values[i] = bits_to_f32((uint32_t)check_u64(random) | BITS_INF); /* NaN and Inf of all kinds */

    for (size_t i = 0; check_tier(i, &variant); i++) {
        memcpy(want, values, sizeof(want));
        memcpy(have, values, sizeof(have));
        ref_canonical(want, count);
        variant->ops->canonical(have, count);
        check_same("canonical", variant->name, have, want, sizeof(want)); /* beyond count too */

        memset(want16, 0xa5, sizeof(want16));
        memset(have16, 0xa5, sizeof(have16));
        ref_to_bf16(want16, values, count);
        variant->ops->to_bf16(have16, values, count);
        check_same("to_bf16", variant->name, have16, want16, sizeof(want16));

        memcpy(want, sum, sizeof(want));
        memcpy(have, sum, sizeof(have));
        ref_add_f32(want, values, count);
        ref_add_bf16(want, bf16, count);
        variant->ops->add_f32(have, values, count);
        variant->ops->add_bf16(have, bf16, count);
        ref_canonical(want, count); /* which NaN an addition gives is not part of the formula, the canonical one is */
        ref_canonical(have, count);
        check_same("add", variant->name, have, want, sizeof(want));
    }
}

/* Any code but NaN, any width, poison before. */
static void check_pack_tile(struct check_random *random)
{
    uint32_t columns = 1 + check_below(random, 200), rows = 1 + check_below(random, 16), groups = (columns + 15) / 16;
    size_t bytes = groups * (size_t)LAYOUT_GROUP_BYTES;
    struct check_guarded want = check_guarded_new(bytes, 0);
    uint8_t codes[16 * 200];
    const struct tiers_variant *variant;

    fill_bits(codes, sizeof(codes), random);
    for (size_t i = 0; i < sizeof(codes); i++)
        if ((codes[i] & 0x7f) == 0x7f)
            codes[i] = 0x80;
    for (uint32_t tile = 0; tile < 2; tile++)
        ref_pack_tile(want.data, tile, codes, columns, rows, columns);
    for (size_t i = 0; check_tier(i, &variant); i++) {
        struct check_guarded have = check_guarded_new(bytes, 0);

        for (uint32_t tile = 0; tile < 2; tile++)
            variant->ops->pack_tile(have.data, tile, codes, columns, rows, columns);
        check_same("pack_tile", variant->name, have.data, want.data, bytes);
        if (!check_guarded_free(&have))
            check_fail("pack_tile: %s wrote outside the panel", variant->name);
    }
    if (!check_guarded_free(&want))
        check_fail("pack_tile: ref wrote outside the panel");
}

void check_vectors(struct check_random *random)
{
    for (int i = 0; i < 200; i++) {
        check_normalise(random);
        check_partials(random);
        check_pack_tile(random);
    }
    check_silu(random);
    check_fused_silu(random);
}

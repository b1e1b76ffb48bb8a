/* Every E4M3 code in every row of a panel, read out by a one-hot vector: all 254 finite codes exact, in every tier. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/bits.h"
#include "tests/checkkern/check.h"

#define CODES 256

/* The code's value from the definition of E4M3FN, in double. */
static double e4m3_value(unsigned code)
{
    unsigned exponent = (code >> 3) & 15, mantissa = code & 7;
    double magnitude = exponent ? ldexp(1.0 + mantissa / 8.0, (int)exponent - 7) : ldexp(mantissa, -9);

    return code & 0x80 ? -magnitude : magnitude;
}

static void check_conversion(void)
{
    for (unsigned code = 0; code < CODES; code++) {
        uint16_t fp9 = kernels_fp9_of_e4m3((uint8_t)code);
        float value = kernels_fp9_to_f32(fp9);
        double want = e4m3_value(code);

        if ((code & 0x7f) == 0x7f) {
            if (fp9 != KERNELS_FP9_NAN || !isnan(value))
                check_fail("codes: NaN code 0x%02x became fp9 0x%03x", code, fp9);
        } else if ((double)value != want || !!signbit(value) != !!signbit(want)) {
            check_fail("codes: 0x%02x became %a, not %a", code, (double)value, want);
        }
    }
}

static void check_one_hot(const char *tier, const struct tiers_ops *ops, uint32_t rows)
{
    static const float scales[2] = {1.0f, 1.0f};
    struct check_guarded panel = check_guarded_new(CODES / 16 * LAYOUT_GROUP_BYTES, 0);
    uint8_t codes[32][CODES];
    float v[CODES] __attribute__((aligned(64)));
    /* One segment of 256 columns: the kernels do not know that a block has 128. */
    struct tiers_run run = {.panels = panel.data, .scales = scales, .count = 1, .segments = 1, .first_groups = 16, .groups = 16};

    for (uint32_t row = 0; row < 32; row++)
        for (unsigned k = 0; k < CODES; k++)
            codes[row][k] = (uint8_t)((k & 0x7f) == 0x7f ? 0 : k);
    for (uint32_t tile = 0; tile < 2; tile++)
        ops->pack_tile(panel.data, tile, codes[16 * tile], CODES, 16, CODES);

    for (unsigned k = 0; k < CODES; k++) {
        uint16_t x[CODES] = {0};
        float y[32] = {0};
        int e;

        x[k] = 0x3f80; /* 1 */
        e = ops->normalise_bf16(v, CODES, x, CODES);
        ops->down(&run, v, bits_pow2(e - 15), 1.0f, y, rows);
        for (uint32_t row = 0; row < 32; row++) {
            double want = row < rows && (k & 0x7f) != 0x7f ? e4m3_value(k) : 0.0;

            if ((double)y[row] != want) {
                check_fail("codes: %s gives %a for code 0x%02x in row %u of %u, not %a", tier, (double)y[row], k, row, rows, want);
                return;
            }
        }
    }
    check_guarded_free(&panel);
}

void check_codes(void)
{
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);

    check_conversion();
    for (size_t i = 0; i < count; i++)
        if (kernels_tier_available(variants[i].tier)) {
            check_one_hot(variants[i].name, variants[i].ops, 32);
            check_one_hot(variants[i].name, variants[i].ops, 19);
        }
}

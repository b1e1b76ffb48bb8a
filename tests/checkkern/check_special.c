/* Values that real layers should not have and sooner or later do: no crash, no other token touched, the same bits in every tier. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bits.h"
#include "tests/checkkern/run.h"

#define TOKENS 6
#define BF16_NAN 0x7fc1
#define BF16_INF 0x7f80

/* What a token is filled with. */
enum filling { USUAL, SUBNORMAL, HUGE_VALUES, ONE_NAN, ONE_INF, ALL_NAN, ALL_ZERO, MIXED, FILLINGS };

static uint16_t filled(enum filling filling, uint32_t k, uint32_t hidden, struct check_random *random)
{
    uint16_t sign = (uint16_t)(check_u64(random) & 0x8000);
    uint16_t usual = kernels_bf16_of_f32(check_float(random));

    switch (filling) {
    case SUBNORMAL:
        return (uint16_t)(sign | check_below(random, 0x80));
    case HUGE_VALUES:
        return (uint16_t)(sign | kernels_bf16_of_f32(1e30f * fabsf(check_float(random))));
    case ONE_NAN:
        return k == hidden / 2 ? (uint16_t)(sign | BF16_NAN) : usual;
    case ONE_INF:
        return k == hidden / 3 ? (uint16_t)(sign | BF16_INF) : usual;
    case ALL_NAN:
        return (uint16_t)(sign | BF16_NAN);
    case ALL_ZERO:
        return sign;
    case MIXED: /* any bits whatever */
        return (uint16_t)check_u64(random);
    default:
        return usual;
    }
}

static bool all_nan(const float *y, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (bits_of_f32(y[i]) != BITS_NAN)
            return false;
    return true;
}

/* A token in company gives the bits that it gives alone. */
static void check_alone(const struct check_layer *layer, const struct run_input *input, const float *y)
{
    uint32_t hidden = layer->layout.hidden;
    float *alone = calloc(hidden, sizeof(*alone));

    for (uint32_t t = 0; t < input->tokens; t++) {
        struct run_input one = *input;

        one.tokens = 1;
        one.x += (size_t)t * hidden;
        one.ids += (size_t)t * input->top_k;
        one.weights += (size_t)t * input->top_k;
        run_compared("special, alone", layer, &one, alone);
        if (memcmp(alone, y + (size_t)t * hidden, hidden * sizeof(*alone)) != 0)
            check_fail("special: token %u differs when others run with it", t);
    }
    free(alone);
}

static void check_fillings(enum check_scales scales, struct check_random *random)
{
    struct check_shape shape = {
        .hidden = 16 + check_below(random, 200),
        .begin = 8 * check_below(random, 16),
        .neurons = 1 + check_below(random, 150),
        .pad_to = 8u << check_below(random, 3),
        .experts = 2,
        .shared_neurons = check_below(random, 2) * 24,
    };
    size_t count = TOKENS * (size_t)shape.hidden;
    uint16_t *memory = malloc((count + 1) * sizeof(*memory)), *x = memory + 1;
    float *y = malloc(count * sizeof(*y));
    int32_t ids[TOKENS * 2];
    float weights[TOKENS * 2];
    enum filling fillings[TOKENS];
    struct run_input input = {.tokens = TOKENS, .top_k = 2, .x = x, .ids = ids, .weights = weights};
    struct check_layer layer;

    check_layer_init(&layer, &shape, scales, random);
    for (uint32_t t = 0; t < TOKENS; t++) {
        fillings[t] = (enum filling)check_below(random, FILLINGS);
        for (uint32_t k = 0; k < shape.hidden; k++)
            x[(size_t)t * shape.hidden + k] = filled(fillings[t], k, shape.hidden, random);
        for (uint32_t slot = 0; slot < 2; slot++) {
            ids[2 * t + slot] = (int32_t)check_below(random, 2);
            weights[2 * t + slot] = check_below(random, 8) ? check_float(random) : bits_to_f32((uint32_t)check_u64(random));
        }
    }
    run_compared("special", &layer, &input, y);
    check_alone(&layer, &input, y);
    run_mxcsr("special with a hostile MXCSR", &layer, &input, y); /* subnormals are about, so FTZ and DAZ would show */
    for (uint32_t t = 0; t < TOKENS; t++) {
        const float *row = y + (size_t)t * shape.hidden;

        if ((fillings[t] == ONE_NAN || fillings[t] == ALL_NAN) && !all_nan(row, shape.hidden))
            check_fail("special: a token with NaN gave something else than NaN");
        for (uint32_t k = 0; fillings[t] == ALL_ZERO && isfinite(weights[2 * t]) && isfinite(weights[2 * t + 1]) && k < shape.hidden; k++)
            if (row[k] != 0.0f)
                check_fail("special: a token of zeros gave %a", (double)row[k]);
    }
    check_layer_release(&layer);
    free(memory);
    free(y);
}

/* With weights of one sign and no cancellation, range alone could spoil the result: the reference against float64 for x and scales at
 * the ends of their ranges. */
static void check_range(struct check_random *random)
{
    static const struct {
        float x, scale;
    } ends[] = {{1e30f, 1e-23f}, {1e-30f, 1e20f}, {0x1p127f, 1e-38f}, {1e-38f, 0x1p80f},
              {0x1p-133f, 0x1p80f}, {1.8e19f, 1e-10f}, {1.0f, 0x1p-7f}};
    const struct tiers_ops *ops = tiers_variants(&(size_t){0})[0].ops; /* the reference */
    struct layout_mlp layout;

    layout_mlp_init(&layout, 40, 0, 300, 16, NULL);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        uint8_t *expert = aligned_alloc(64, (size_t)layout.expert_bytes), codes[40 * 300];
        float scales[9], v[304] __attribute__((aligned(64))), y[40] = {0};
        uint16_t x[300];
        struct kernels_rows rows = {.matrix = KERNELS_DOWN, .rows = 40, .codes = codes, .scales = scales};
        struct tiers_run run = tiers_run_of(&layout.down, expert, 0, layout.down.panels);

        for (size_t k = 0; k < sizeof(codes); k++)
            codes[k] = (uint8_t)check_below(random, 0x7f);
        for (size_t k = 0; k < 9; k++)
            scales[k] = ends[i].scale;
        for (size_t k = 0; k < 300; k++)
            x[k] = kernels_bf16_of_f32(ends[i].x * (0.5f + 0.5f * fabsf(check_float(random))));
        kernels_pack_begin(&layout, expert);
        if (kernels_pack(&layout, expert, &rows, NULL) < 0)
            check_fail("range: refused");
        ops->down(&run, v, bits_pow2(ops->normalise_bf16(v, 304, x, 300) - 15), 1.0f, y, 40);
        for (uint32_t row = 0; row < 40; row++) {
            double want = 0.0;

            for (size_t k = 0; k < 300; k++)
                want += (double)kernels_fp9_to_f32(kernels_fp9_of_e4m3(codes[row * 300 + k])) * (double)ends[i].scale *
                        (double)kernels_bf16_to_f32(x[k]);
            if (!(fabs((double)y[row] - want) <= 0x1p-20 * want + 0x1p-149)) {
                check_fail("range: x about %g, scale %g: row %u is %g, float64 has %g", (double)ends[i].x, (double)ends[i].scale, row,
                           (double)y[row], want);
                break;
            }
        }
        free(expert);
    }
}

void check_special(struct check_random *random)
{
    check_range(random);
    for (int i = 0; i < 30; i++)
        check_fillings(i % 2 ? CHECK_SCALES_HOSTILE : CHECK_SCALES_USUAL, random);
}

/* Modes 0 and 1 over odd shapes: tiers by memcmp, the reference against float64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bits.h"
#include "tests/checkkern/run.h"

#define TOKENS 3
#define TOP_K 4

struct inputs {
    uint16_t *memory, *x; /* x one element past memory: not aligned to anything */
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
};

static void inputs_init(struct inputs *inputs, const struct check_shape *shape, struct check_random *random)
{
    inputs->memory = malloc((1 + TOKENS * (size_t)shape->hidden) * sizeof(uint16_t));
    inputs->x = inputs->memory + 1;
    for (size_t i = 0; i < TOKENS * (size_t)shape->hidden; i++)
        inputs->x[i] = kernels_bf16_of_f32(check_float(random) * 2.0f);
    for (size_t i = 0; i < TOKENS * TOP_K; i++) {
        /* Empty slots, and the same expert more than once. */
        inputs->ids[i] = (int32_t)check_below(random, shape->experts + 1) - 1;
        inputs->weights[i] = check_float(random);
    }
}

static void check_float64(const struct check_layer *layer, const struct run_input *input, const float *y)
{
    uint32_t hidden = layer->layout.hidden;
    double *want = calloc(hidden, sizeof(*want)), *bound = calloc(hidden, sizeof(*bound));

    for (uint32_t t = 0; t < input->tokens; t++) {
        run_float64(layer, input, t, want, bound);
        for (uint32_t row = 0; row < hidden; row++)
            if (!(fabs((double)y[(size_t)t * hidden + row] - want[row]) <= bound[row])) {
                check_fail("forward: token %u row %u is %g, float64 has %g, bound %g", t, row, (double)y[(size_t)t * hidden + row],
                           want[row], bound[row]);
                break;
            }
    }
    free(want);
    free(bound);
}

/* Section 5 put together here from the experts' own results: ascending ids, equal ids in slot order, empty slots nowhere. */
static void check_sum(const struct check_layer *layer, const struct inputs *inputs, const struct check_shape *shape)
{
    uint32_t hidden = shape->hidden;
    int32_t last = (int32_t)shape->experts - 1;
    int32_t ids[5] = {last, 0, last, -1, 0};
    float weights[5] = {0.7f, -1.3f, 0.011f, 5.0f, 0.3f};
    static const int folded[4] = {1, 4, 0, 2}; /* slots in the order of the sum */
    struct run_input input = {.tokens = 1, .top_k = 5, .x = inputs->x, .ids = ids, .weights = weights};
    float *r[2] = {calloc(hidden, sizeof(float)), calloc(hidden, sizeof(float))};
    float *y = calloc(hidden, sizeof(float)), *want = calloc(hidden, sizeof(float));

    for (int i = 0; i < 2; i++) {
        int32_t id = i ? last : 0;
        float one = 1.0f;
        struct run_input single = {.tokens = 1, .top_k = 1, .x = inputs->x, .ids = &id, .weights = &one};

        run_forward(layer, &single, "ref", r[i]);
    }
    for (uint32_t row = 0; row < hidden; row++)
        for (int i = 0; i < 4; i++)
            want[row] = fmaf(weights[folded[i]], r[ids[folded[i]] == last][row], want[row]);
    run_compared("sum over slots", layer, &input, y);
    if (memcmp(y, want, hidden * sizeof(float)) != 0)
        check_fail("routing: slots are not summed by ascending id, equal ids in slot order");
    free(r[0]);
    free(r[1]);
    free(y);
    free(want);
}

/* The order of slots in the input does not matter to an id that stands once; an empty slot adds nothing. */
static void check_routing(const struct check_layer *layer, const struct inputs *inputs, const struct check_shape *shape)
{
    uint32_t hidden = shape->hidden;
    int32_t last = (int32_t)shape->experts - 1;
    int32_t forth[3] = {0, -1, last}, back[3] = {last, 0, -1};
    float forth_weights[3] = {0.25f, 7.0f, -0.5f}, back_weights[3] = {-0.5f, 0.25f, 9.0f};
    struct run_input a = {.tokens = 1, .top_k = 3, .x = inputs->x, .ids = forth, .weights = forth_weights};
    struct run_input b = {.tokens = 1, .top_k = 3, .x = inputs->x, .ids = back, .weights = back_weights};
    float *y_a = calloc(hidden, sizeof(float)), *y_b = calloc(hidden, sizeof(float));

    run_compared("routing", layer, &a, y_a);
    run_compared("routing", layer, &b, y_b);
    if (memcmp(y_a, y_b, hidden * sizeof(float)) != 0)
        check_fail("routing: the order of the slots changed the bits");
    if (!shape->shared_neurons) {
        forth[0] = forth[2] = -1;
        run_compared("routing", layer, &a, y_a);
        for (uint32_t row = 0; row < hidden; row++)
            if (bits_of_f32(y_a[row]) != 0)
                check_fail("routing: no slot, yet y[%u] is %a", row, (double)y_a[row]);
    }
    free(y_a);
    free(y_b);
}

static void check_shape(const struct check_shape *shape, bool hostile_mxcsr, struct check_random *random)
{
    struct check_layer layer;
    struct inputs inputs;
    struct run_input input = {.tokens = TOKENS};
    float *y = calloc(TOKENS * (size_t)shape->hidden, sizeof(float));
    unsigned failed = check_failed;

    check_layer_init(&layer, shape, CHECK_SCALES_USUAL, random);
    inputs_init(&inputs, shape, random);
    input.x = inputs.x;
    if (shape->experts) {
        run_compared("dense", &layer, &input, y);
        check_float64(&layer, &input, y);
    }
    input.top_k = TOP_K;
    input.ids = inputs.ids;
    input.weights = inputs.weights;
    run_compared("moe", &layer, &input, y);
    check_float64(&layer, &input, y);
    if (hostile_mxcsr)
        run_mxcsr("forward with a hostile MXCSR", &layer, &input, y);
    if (shape->experts > 1)
        check_routing(&layer, &inputs, shape);
    if (shape->experts > 1 && !shape->shared_neurons)
        check_sum(&layer, &inputs, shape);
    if (check_failed != failed)
        printf("     with hidden %u, neurons %u .. %u padded to %u, %u experts, shared %u\n", shape->hidden, shape->begin,
               shape->begin + shape->neurons, shape->pad_to, shape->experts, shape->shared_neurons);
    check_layer_release(&layer);
    free(inputs.memory);
    free(y);
}

static struct check_shape random_shape(struct check_random *random)
{
    return (struct check_shape){
        .hidden = 16 + check_below(random, 585),
        .begin = 8 * check_below(random, 40),
        .neurons = 1 + check_below(random, 200),
        .pad_to = check_below(random, 3) ? 8 * (1 + check_below(random, 16)) : 8u << check_below(random, 5),
        .experts = 1 + check_below(random, 3),
        .shared_neurons = check_below(random, 2) ? 1 + check_below(random, 100) : 0,
    };
}

void check_forward(struct check_random *random)
{
    for (size_t i = 0; i < check_shapes_count; i++)
        check_shape(&check_shapes[i], i % 4 == 0, random);
    for (int i = 0; i < 30; i++) {
        struct check_shape shape = random_shape(random);

        check_shape(&shape, i == 0, random);
    }
}

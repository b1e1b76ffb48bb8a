/* One to four tokens that share a pass over the weights: each has the bits that it has alone, in every tier, for every shape; experts that
 * only some of them want, or one of them twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bits.h"
#include "tests/checkkern/run.h"

#define TOKENS TIERS_TOKENS_MAX
#define TOP_K 3

static float *floats(size_t count)
{
    float *memory = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);

    if (!memory)
        exit(1);
    memset(memory, 0, (count * sizeof(float) + 63) / 64 * 64);
    return memory;
}

/* ---- the gemvs of one expert ------------------------------------------------------------------ */

struct vectors {
    float *v[TOKENS], *out[TOKENS], *alone[TOKENS];
    float undo[TOKENS], weight[TOKENS];
};

static void vectors_init(struct vectors *vectors, const struct tiers_ops *ops, const struct layout_matrix *matrix, size_t outputs,
                         struct check_random *random)
{
    uint32_t count = layout_vector_floats(matrix);

    for (uint32_t t = 0; t < TOKENS; t++) {
        vectors->v[t] = floats(count);
        vectors->out[t] = floats(outputs);
        vectors->alone[t] = floats(outputs);
        for (uint32_t k = 0; k < matrix->columns; k++)
            vectors->v[t][k] = check_float(random);
        /* each with another exponent, so that one's undo would not do for another */
        vectors->v[t][0] *= (float)(1u << (4 * t));
        vectors->undo[t] = bits_pow2(ops->normalise_f32(vectors->v[t], count, vectors->v[t], matrix->columns) - 15);
        vectors->weight[t] = check_float(random);
    }
}

static void vectors_release(struct vectors *vectors)
{
    for (uint32_t t = 0; t < TOKENS; t++) {
        free(vectors->v[t]);
        free(vectors->out[t]);
        free(vectors->alone[t]);
    }
}

static struct tiers_token token_of(const struct vectors *vectors, uint32_t t)
{
    return (struct tiers_token){vectors->v[t], vectors->undo[t], vectors->weight[t], vectors->out[t]};
}

static void gate_up_in_company(const struct tiers_variant *variant, const struct layout_mlp *layout, const uint8_t *expert,
                               struct check_random *random)
{
    struct tiers_run run = tiers_run_of(&layout->gate_up, expert, 0, layout->neuron_panels);
    size_t outputs = layout->down.columns_padded, bytes = outputs * sizeof(float);
    struct vectors vectors;

    vectors_init(&vectors, variant->ops, &layout->gate_up, outputs, random);
    for (uint32_t t = 0; t < TOKENS; t++)
        variant->ops->gate_up(&run, vectors.v[t], vectors.undo[t], vectors.alone[t]);
    for (uint32_t count = 1; count <= TOKENS; count++)
        for (uint32_t first = 0; first < TOKENS; first++) {
            struct tiers_token token[TOKENS];

            for (uint32_t i = 0; i < count; i++) {
                token[i] = token_of(&vectors, (first + i) % TOKENS);
                memset(token[i].out, 0xa5, bytes);
            }
            variant->ops->gate_up_tokens(&run, token, count);
            for (uint32_t i = 0; i < count; i++)
                if (!check_same("gate and up in company", variant->name, token[i].out, vectors.alone[(first + i) % TOKENS], bytes))
                    printf("     token %u of %u\n", i, count);
        }
    vectors_release(&vectors);
}

/* `rows` need not end with a panel; y has something in it already; the last two tokens may be one that wants the expert twice. */
static void down_in_company(const struct tiers_variant *variant, const struct layout_mlp *layout, const uint8_t *expert,
                            struct check_random *random)
{
    struct tiers_run run = tiers_run_of(&layout->down, expert, 0, layout->down.panels);
    uint32_t rows = layout->hidden;
    size_t bytes = rows * sizeof(float);
    struct vectors vectors;

    vectors_init(&vectors, variant->ops, &layout->down, rows, random);
    for (uint32_t t = 0; t < TOKENS; t++) {
        vectors.alone[t][rows - 1] = 1.0f;
        variant->ops->down(&run, vectors.v[t], vectors.undo[t], vectors.weight[t], vectors.alone[t], rows);
    }
    for (uint32_t count = 1; count <= TOKENS; count++)
        for (uint32_t twice = 0; twice < (count > 1 ? 2 : 1); twice++) {
            struct tiers_token token[TOKENS];

            for (uint32_t i = 0; i < count; i++) {
                token[i] = token_of(&vectors, i);
                memset(token[i].out, 0, bytes);
                token[i].out[rows - 1] = 1.0f;
            }
            if (twice) {
                token[count - 1].out = token[count - 2].out;
                variant->ops->down(&run, vectors.v[count - 1], vectors.undo[count - 1], vectors.weight[count - 1], vectors.alone[count - 2],
                                   rows);
            }
            variant->ops->down_tokens(&run, token, count, rows);
            for (uint32_t i = 0; i < count - twice; i++)
                if (!check_same("down in company", variant->name, token[i].out, vectors.alone[i], bytes))
                    printf("     token %u of %u%s\n", i, count, twice ? ", the last two into one y" : "");
            if (twice) { /* as it was */
                memset(vectors.alone[count - 2], 0, bytes);
                vectors.alone[count - 2][rows - 1] = 1.0f;
                variant->ops->down(&run, vectors.v[count - 2], vectors.undo[count - 2], vectors.weight[count - 2], vectors.alone[count - 2],
                                   rows);
            }
        }
    vectors_release(&vectors);
}

static void check_passes(const struct check_layer *layer, struct check_random *random)
{
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);

    for (size_t i = 0; i < count; i++) {
        if (!kernels_tier_available(variants[i].tier))
            continue;
        if (layer->packed) {
            gate_up_in_company(&variants[i], &layer->layout, layer->packed, random);
            down_in_company(&variants[i], &layer->layout, layer->packed, random);
        }
        if (layer->shared_packed) {
            gate_up_in_company(&variants[i], &layer->shared_layout, layer->shared_packed, random);
            down_in_company(&variants[i], &layer->shared_layout, layer->shared_packed, random);
        }
    }
}

/* ---- whole layers ------------------------------------------------------------------------------- */

struct tokens {
    uint16_t *memory, *x; /* x an odd number of bf16 past memory */
    int32_t ids[TOKENS][TOP_K];
    float weights[TOKENS][TOP_K];
};

/* Expert 0 by three tokens, by one of them twice; others by one or two; a token that wants none where there is none. */
static void tokens_init(struct tokens *tokens, const struct check_shape *shape, struct check_random *random)
{
    static const int32_t wanted[TOKENS][TOP_K] = {{0, 1, -1}, {0, -1, -1}, {2, 0, 0}, {1, 3, 2}};
    size_t count = TOKENS * (size_t)shape->hidden;

    tokens->memory = malloc((count + 1) * sizeof(uint16_t));
    tokens->x = tokens->memory + 1;
    for (size_t i = 0; i < count; i++)
        tokens->x[i] = kernels_bf16_of_f32(check_float(random) * (float)(1u << (i / shape->hidden * 3)));
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t slot = 0; slot < TOP_K; slot++) {
            tokens->ids[t][slot] = wanted[t][slot] < (int32_t)shape->experts ? wanted[t][slot] : -1;
            tokens->weights[t][slot] = check_float(random);
        }
}

/* Every subset of the tokens, in their order, by every tier. `want`: each alone by the reference. */
static void check_subsets(const struct check_layer *layer, const struct tokens *tokens, uint32_t top_k)
{
    size_t hidden = layer->layout.hidden, bytes = hidden * sizeof(float);
    float *want = floats(TOKENS * hidden), *have = floats(TOKENS * hidden);
    uint16_t *memory = malloc((TOKENS * hidden + 1) * sizeof(*memory)), *x = memory + 1;
    const struct tiers_variant *variant;

    for (uint32_t t = 0; t < TOKENS; t++) {
        struct run_input one = {1, top_k, tokens->x + t * hidden, tokens->ids[t], tokens->weights[t], 0};

        run_forward(layer, &one, "ref", want + t * hidden);
    }
    for (size_t i = 0; check_tier(i, &variant); i++)
        for (uint32_t subset = 1; subset < 1u << TOKENS; subset++) {
            uint32_t of[TOKENS], count = 0;
            int32_t ids[TOKENS][TOP_K];
            float weights[TOKENS][TOP_K];
            struct run_input input;

            for (uint32_t t = 0; t < TOKENS; t++) {
                if (!(subset & 1u << t))
                    continue;
                memcpy(x + count * hidden, tokens->x + t * hidden, hidden * sizeof(*x));
                memcpy(ids[count], tokens->ids[t], sizeof(ids[0]));
                memcpy(weights[count], tokens->weights[t], sizeof(weights[0]));
                of[count++] = t;
            }
            input = (struct run_input){count, top_k, x, ids[0], weights[0], 0};
            run_forward(layer, &input, variant->name, have);
            for (uint32_t t = 0; t < count; t++)
                if (!check_same(top_k ? "moe in company" : "dense in company", variant->name, have + t * hidden, want + of[t] * hidden,
                                bytes))
                    printf("     token %u of %u\n", t, count);
        }
    free(want);
    free(have);
    free(memory);
}

void check_company(struct check_random *random)
{
    for (size_t i = 0; i < check_shapes_count; i++) {
        const struct check_shape *shape = &check_shapes[i];
        unsigned failed = check_failed;
        struct check_layer layer;
        struct tokens tokens;

        check_layer_init(&layer, shape, CHECK_SCALES_USUAL, random);
        tokens_init(&tokens, shape, random);
        check_passes(&layer, random);
        check_subsets(&layer, &tokens, TOP_K);
        if (shape->experts)
            check_subsets(&layer, &tokens, 0);
        if (check_failed != failed)
            printf("     with hidden %u, neurons %u .. %u padded to %u, %u experts, shared %u\n", shape->hidden, shape->begin,
                   shape->begin + shape->neurons, shape->pad_to, shape->experts, shape->shared_neurons);
        check_layer_release(&layer);
        free(tokens.memory);
    }
}

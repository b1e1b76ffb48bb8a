/* Batches of tokens against each token alone by the reference: every tier, any number of tokens, odd shapes, ranges of panels. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/batch.h"
#include "kernels/bits.h"
#include "kernels/fpenv.h"
#include "tests/checkkern/check.h"

#define COUNT_MAX 140 /* more than a block of tokens */
#define NAN_BYTE 0xff

/* First, last and only segments that are short or end in half a group; half panels; rows that fill no panel; one panel; many. */
static const struct check_shape shapes[] = {
    {16, 0, 16, 16, 2, 0}, {130, 32, 160, 32, 1, 0}, {300, 8, 40, 8, 1, 0}, {33, 120, 144, 8, 2, 0},  {257, 24, 8, 8, 1, 0},
    {1, 0, 8, 8, 1, 0},    {640, 112, 32, 16, 1, 0}, {95, 8, 8, 8, 1, 0},   {1030, 40, 264, 8, 1, 0}, {513, 96, 200, 64, 1, 0},
};

static const uint32_t counts[] = {41, 64, 128, 129, COUNT_MAX};

/* One matrix's run, and as many vectors for it as there are tokens. */
struct subject {
    const struct layout_matrix *matrix;
    struct tiers_run run;
    bool down;
    uint32_t outputs; /* of a token: neurons of the run's panels, or rows */
    float *v;         /* [count][floats], zeros in padding columns, NaN behind columns_padded */
    size_t floats;
    float *want; /* [count][outputs], by the reference, NaN canonical; of down what is added to a y of its own */
};

static void *need(void *memory)
{
    if (!memory) {
        fputs("checkkern: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* Mostly x' of normal size; tokens 3 and 7 have a NaN, an Inf, the smallest and the largest numbers. */
static void subject_vectors(struct subject *subject, uint32_t count, struct check_random *random)
{
    const struct layout_matrix *matrix = subject->matrix;

    subject->floats = layout_vector_floats(matrix);
    subject->v = need(aligned_alloc(64, (count * subject->floats * sizeof(float) + 63) & ~(size_t)63));
    for (uint32_t t = 0; t < count; t++) {
        float *v = subject->v + t * subject->floats;

        for (uint32_t k = 0; k < subject->floats; k++)
            v[k] = k < matrix->columns ? check_float(random) * 0x1p126f : k < matrix->columns_padded ? 0.0f : NAN;
        if (t == 3)
            v[check_below(random, matrix->columns)] = NAN;
        if (t == 7) {
            v[check_below(random, matrix->columns)] = -INFINITY;
            v[0] = 0x1p-149f;
            v[matrix->columns - 1] = -0.0f;
        }
    }
}

static struct tiers_token token_of(const struct subject *subject, uint32_t t, float *out)
{
    return (struct tiers_token){
        .v = subject->v + t * subject->floats, .undo = bits_pow2(-20 + (int)(t % 5)), .weight = 0.25f + (float)(t % 3), .out = out};
}

/* Of each token alone. */
static void subject_want(struct subject *subject, uint32_t count)
{
    const struct tiers_ops *ref = tiers_variants(&(size_t){0})->ops;

    subject->want = need(calloc((size_t)count * subject->outputs, sizeof(float)));
    for (uint32_t t = 0; t < count; t++) {
        struct tiers_token token = token_of(subject, t, subject->want + (size_t)t * subject->outputs);

        if (subject->down)
            ref->down(&subject->run, token.v, token.undo, token.weight, token.out, subject->outputs);
        else
            ref->gate_up(&subject->run, token.v, token.undo, token.out);
    }
    kernels_canonical(subject->want, (size_t)count * subject->outputs);
}

/* `count` tokens in a random order of vectors, each with an output of its own between guards. */
static void check_count(const struct subject *subject, const struct tiers_variant *variant, uint32_t count, struct check_random *random)
{
    uint32_t order[COUNT_MAX];
    struct tiers_token *tokens = need(calloc(count, sizeof(*tokens)));
    struct check_guarded outs[COUNT_MAX], scratch = check_guarded_new(batch_scratch_bytes(), 0);
    size_t bytes = subject->outputs * sizeof(float);
    char what[64];

    snprintf(what, sizeof(what), "batch of %u, %s", count, subject->down ? "down" : "gate and up");
    memset(scratch.data, NAN_BYTE, scratch.bytes);
    for (uint32_t t = 0; t < count; t++) {
        uint32_t other = check_below(random, t + 1);

        order[t] = order[other];
        order[other] = t;
    }
    for (uint32_t t = 0; t < count; t++) {
        outs[t] = check_guarded_new(bytes, 0);
        if (subject->down)
            memset(outs[t].data, 0, bytes);
        tokens[t] = token_of(subject, order[t], (float *)(void *)outs[t].data);
    }
    if (subject->down)
        batch_down(variant->ops, &subject->run, tokens, count, subject->outputs, scratch.data);
    else
        batch_gate_up(variant->ops, &subject->run, tokens, count, scratch.data);
    for (uint32_t t = 0; t < count; t++) {
        kernels_canonical((float *)(void *)outs[t].data, subject->outputs);
        check_same(what, variant->name, outs[t].data, subject->want + (size_t)order[t] * subject->outputs, bytes);
        if (!check_guarded_free(&outs[t]))
            check_fail("%s: %s wrote outside a token's output", what, variant->name);
    }
    if (!check_guarded_free(&scratch))
        check_fail("%s: %s wrote outside its scratch", what, variant->name);
    free(tokens);
}

/* Tokens that add to the same y: the earlier one first. */
static void check_shared_y(const struct subject *subject, const struct tiers_variant *variant, uint32_t count)
{
    const struct tiers_ops *ref = tiers_variants(&(size_t){0})->ops;
    uint32_t rows = subject->outputs;
    float *have = need(calloc(3 * (size_t)rows, sizeof(float))), *want = need(calloc(3 * (size_t)rows, sizeof(float)));
    struct tiers_token *tokens = need(calloc(count, sizeof(*tokens)));
    void *scratch = need(aligned_alloc(64, batch_scratch_bytes()));

    for (uint32_t t = 0; t < count; t++) {
        size_t y = (size_t)(t / 2 % 3) * rows; /* neighbours, and others of other tiles and blocks */

        tokens[t] = token_of(subject, t, have + y);
        ref->down(&subject->run, tokens[t].v, tokens[t].undo, tokens[t].weight, want + y, rows);
    }
    batch_down(variant->ops, &subject->run, tokens, count, rows, scratch);
    kernels_canonical(have, 3 * (size_t)rows);
    kernels_canonical(want, 3 * (size_t)rows);
    check_same("batch with shared outputs", variant->name, have, want, 3 * rows * sizeof(float));
    free(have);
    free(want);
    free(tokens);
    free(scratch);
}

static void check_subject(struct subject *subject, struct check_random *random)
{
    size_t variants_count;
    const struct tiers_variant *variants = tiers_variants(&variants_count);
    const uint32_t last = counts[sizeof(counts) / sizeof(counts[0]) - 1];

    subject_vectors(subject, last, random);
    subject_want(subject, last);
    for (size_t i = 0; i < variants_count; i++) {
        if (!kernels_tier_available(variants[i].tier))
            continue;
        /* The reference is slow and is here for its own passes. */
        for (uint32_t count = 0; count <= (variants[i].tier == KERNELS_REF ? 6 : 40); count++)
            check_count(subject, &variants[i], count, random);
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]) && variants[i].tier != KERNELS_REF; c++)
            check_count(subject, &variants[i], counts[c], random);
        for (uint32_t count = 2; count <= COUNT_MAX && subject->down && variants[i].tier != KERNELS_REF; count += count < 14 ? 1 : 115)
            check_shared_y(subject, &variants[i], count);
    }
    free(subject->v);
    free(subject->want);
}

/* All panels that are read, then a range of them. */
static void check_matrix(const struct layout_mlp *layout, const uint8_t *expert, bool down, struct check_random *random)
{
    const struct layout_matrix *matrix = down ? &layout->down : &layout->gate_up;
    uint32_t panels = down ? matrix->panels : layout->neuron_panels, first = 0, count = panels;

    for (int i = 0; i < 2; i++) {
        struct subject subject = {.matrix = matrix, .run = tiers_run_of(matrix, expert, first, count), .down = down};
        uint32_t row = first * LAYOUT_PANEL_ROWS, end = (first + count) * LAYOUT_PANEL_ROWS;

        if (down)
            subject.outputs = (end < layout->hidden ? end : layout->hidden) - row;
        else
            subject.outputs = count * LAYOUT_TILE_ROWS - LAYOUT_UNIT * (subject.run.head_half + subject.run.tail_half);
        check_subject(&subject, random);
        if (panels == 1)
            break;
        first = check_below(random, panels);
        count = 1 + check_below(random, panels - first);
    }
}

void check_batch(struct check_random *random)
{
    fpenv_saved saved = fpenv_enter();

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct check_shape *shape = &shapes[i];
        unsigned failed = check_failed;
        struct check_layer layer;

        check_layer_init(&layer, shape, i % 3 == 2 ? CHECK_SCALES_HOSTILE : CHECK_SCALES_USUAL, random);
        for (uint32_t expert = 0; expert < shape->experts; expert++)
            for (int down = 0; down < 2; down++)
                check_matrix(&layer.layout, layer.packed + expert * layer.layout.expert_bytes, down, random);
        if (check_failed != failed)
            printf("     with hidden %u, neurons %u .. %u padded to %u\n", shape->hidden, shape->begin, shape->begin + shape->neurons,
                   shape->pad_to);
        check_layer_release(&layer);
    }
    fpenv_leave(saved);
}

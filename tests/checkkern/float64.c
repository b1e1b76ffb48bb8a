/* The layer in double, straight from the checkpoint's form, with a running bound on what binary32 may differ by. */
#include <math.h>
#include <stdlib.h>

#include "tests/checkkern/run.h"

#define STEP_ERROR 0x1p-20 /* of the sum of |terms| of a dot product */

struct dot {
    double sum, terms; /* sum of the terms, sum of their sizes */
};

static struct dot row_dot(const struct check_expert *expert, const struct layout_mlp *layout, enum kernels_matrix which, uint32_t row,
                          const double *v)
{
    const struct layout_matrix *matrix = which == KERNELS_DOWN ? &layout->down : &layout->gate_up;
    struct dot dot = {0};

    for (uint32_t k = 0; k < matrix->columns; k++) {
        uint32_t segment = (matrix->column_origin + k) / 128;
        uint8_t code = expert->codes[which][(size_t)row * matrix->columns + k];
        double scale = (double)expert->scales[which][(size_t)layout_tile(matrix, row) * matrix->segments + segment];
        double term = (double)kernels_fp9_to_f32(kernels_fp9_of_e4m3(code)) * scale * v[k];

        dot.sum += term;
        dot.terms += fabs(term);
    }
    return dot;
}

static void add_expert(const struct check_expert *expert, const struct layout_mlp *layout, const double *x, double weight, double *y,
                       double *bound)
{
    double *h = calloc(layout->neurons, sizeof(*h)), *h_error = calloc(layout->neurons, sizeof(*h_error));

    for (uint32_t i = 0; i < layout->neurons; i++) {
        struct dot g = row_dot(expert, layout, KERNELS_GATE, i, x), u = row_dot(expert, layout, KERNELS_UP, i, x);
        double silu = g.sum / (1.0 + exp(-g.sum));

        h[i] = silu * u.sum;
        /* silu's slope is below 1.1 everywhere */
        h_error[i] = STEP_ERROR * (1.1 * g.terms * (fabs(u.sum) + STEP_ERROR * u.terms) + fabs(silu) * u.terms + fabs(h[i]));
    }
    for (uint32_t row = 0; row < layout->hidden; row++) {
        struct dot r = row_dot(expert, layout, KERNELS_DOWN, row, h);

        y[row] += weight * r.sum;
        bound[row] += fabs(weight) * STEP_ERROR * r.terms + STEP_ERROR * fabs(y[row]);
        for (uint32_t k = 0; k < layout->neurons; k++) {
            uint8_t code = expert->codes[KERNELS_DOWN][(size_t)row * layout->neurons + k];
            uint32_t segment = (layout->down.column_origin + k) / 128;
            double scale = (double)expert->scales[KERNELS_DOWN][(size_t)(row / 16) * layout->down.segments + segment];

            bound[row] += fabs(weight * (double)kernels_fp9_to_f32(kernels_fp9_of_e4m3(code)) * scale) * h_error[k];
        }
    }
    free(h);
    free(h_error);
}

void run_float64(const struct check_layer *layer, const struct run_input *input, uint32_t token, double *ret_y, double *ret_bound)
{
    uint32_t hidden = layer->layout.hidden;
    double *x = calloc(hidden, sizeof(*x));

    for (uint32_t k = 0; k < hidden; k++) {
        x[k] = (double)kernels_bf16_to_f32(input->x[(size_t)token * hidden + k]);
        ret_y[k] = ret_bound[k] = 0.0;
    }
    if (!input->top_k)
        add_expert(&layer->experts[0], &layer->layout, x, 1.0, ret_y, ret_bound);
    for (uint32_t slot = 0; slot < input->top_k; slot++) {
        int32_t id = input->ids[(size_t)token * input->top_k + slot];

        if (id >= 0)
            add_expert(&layer->experts[id], &layer->layout, x, (double)input->weights[(size_t)token * input->top_k + slot], ret_y,
                       ret_bound);
    }
    if (input->top_k && layer->layer.shared_layout)
        add_expert(&layer->experts[layer->count - 1], &layer->shared_layout, x, 1.0, ret_y, ret_bound);
    free(x);
}

#include "tests/bench/smp_slots.h"

#include <math.h>
#include <string.h>

#include "kernels/bits.h"
#include "kernels/fpenv.h"
#include "kernels/split.h"
#include "kernels/tiers.h"
#include "proto/base/size.h"

#define APART 16 /* floats: a cache line more, so that two threads' vectors never share one */

size_t smp_slots_bytes(const struct layout_mlp *layout, uint32_t slots, uint32_t members)
{
    size_t floats = layout_vector_floats(&layout->gate_up) + members * (size_t)(layout_vector_floats(&layout->down) + APART);

    return size_round_up((floats + slots * size_round_up(layout->hidden, APART)) * sizeof(float), LAYOUT_ALIGN);
}

void smp_slots_init(struct smp_slots *slots, const struct layout_mlp *layout, uint32_t members, void *scratch)
{
    *slots = (struct smp_slots){
        .layout = layout,
        .x = scratch,
        .x_floats = layout_vector_floats(&layout->gate_up),
        .h_floats = layout_vector_floats(&layout->down) + APART,
    };
    slots->h = slots->x + slots->x_floats;
    slots->r = slots->h + members * slots->h_floats;
}

void smp_slots_begin(struct smp_slots *slots, const uint16_t *x)
{
    fpenv_saved saved = fpenv_enter();
    int e = tiers_active()->normalise_bf16(slots->x, (uint32_t)slots->x_floats, x, slots->layout->hidden);

    slots->x_undo = bits_pow2(e - 15);
    fpenv_leave(saved);
}

static void one_slot(const struct smp_slots *slots, const uint8_t *expert, float *h, float *r)
{
    const struct layout_mlp *layout = slots->layout;
    const struct tiers_ops *ops = tiers_active();
    struct tiers_run gate_up = tiers_run_of(&layout->gate_up, expert, 0, layout->neuron_panels);
    struct tiers_run down = tiers_run_of(&layout->down, expert, 0, layout->down.panels);
    int e;

    ops->gate_up(&gate_up, slots->x, slots->x_undo, h);
    e = ops->normalise_f32(h, layout_vector_floats(&layout->down), h, layout->neurons);
    memset(r, 0, layout->hidden * sizeof(*r));
    ops->down(&down, h, bits_pow2(e - 15), 1.0f, r, layout->hidden);
}

void smp_slots_run(const struct smp_slots *slots, const uint8_t *experts, const int32_t *ids, const float *weights, uint32_t count,
                   uint32_t phase, uint32_t member, uint32_t members, float *y)
{
    size_t hidden = slots->layout->hidden, stride = size_round_up(hidden, APART);
    fpenv_saved saved = fpenv_enter();

    if (phase == 0) {
        for (uint32_t i = split_even(count, members, member); i < split_even(count, members, member + 1); i++)
            one_slot(slots, experts + (size_t)ids[i] * slots->layout->expert_bytes, slots->h + member * slots->h_floats,
                     slots->r + i * stride);
    } else if (member == 0) {
        memset(y, 0, hidden * sizeof(*y));
        for (uint32_t i = 0; i < count; i++)
            for (size_t row = 0; row < hidden; row++)
                y[row] = fmaf(weights[i], slots->r[i * stride + row], y[row]);
    }
    fpenv_leave(saved);
}

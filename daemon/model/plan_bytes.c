#include "daemon/model/plan_bytes.h"

#include <errno.h>

#include "daemon/model/plan_experts.h"
#include "proto/base/size.h"

void plan_bytes_of(const struct layout_mlp *layout, uint32_t intermediate, struct plan_bytes *ret_bytes)
{
    uint64_t hidden = layout->hidden, neurons = layout->neurons;
    uint64_t params = 3 * hidden * neurons;
    uint64_t scales = layout_scale_bytes(layout);
    *ret_bytes = (struct plan_bytes){
        .laid_out = layout->expert_bytes,
        .real = layout_real_bytes(layout),
        .send = params + scales,
        .read = hidden * (2 * neurons + intermediate),
        .params = params,
    };
}

struct plan_layers plan_layers_of(const struct arch *arch)
{
    struct plan_layers layers = {0};
    for (uint32_t i = 0; i < arch->layers; i++) {
        if (arch->layer_is_moe[i])
            layers.moe++;
        else
            layers.dense++;
    }
    return layers;
}

/* Slice and layout of one kind of expert, part `part` of `parts`; zeros when the model has none. */
static int kind_of(const struct arch *arch, uint32_t intermediate, uint32_t parts, uint32_t multiple_of, uint32_t part,
                   struct plan_slice *ret_slice, struct layout_mlp *ret_layout, struct err *err)
{
    *ret_slice = (struct plan_slice){0};
    *ret_layout = (struct layout_mlp){0};
    if (intermediate == 0)
        return 0;
    *ret_slice = plan_slice_of(intermediate, multiple_of, parts, part);
    return layout_mlp_init(ret_layout, arch->hidden, ret_slice->begin, ret_slice->neurons, multiple_of, err);
}

int plan_rank_fill(const struct arch *arch, const struct plan_shape *shape, uint32_t rank, struct plan_rank *ret_rank, struct err *err)
{
    struct plan_rank at = {.group = rank / shape->width};
    struct layout_mlp dense, routed, shared;
    uint32_t multiple_of = shape->multiple_of;
    int r = kind_of(arch, arch->dense_intermediate, shape->ranks, multiple_of, rank, &at.dense, &dense, err);
    if (r == 0)
        r = kind_of(arch, arch->moe_intermediate, shape->width, multiple_of, rank % shape->width, &at.routed, &routed, err);
    if (r == 0)
        r = kind_of(arch, arch->shared_intermediate, shape->ranks, multiple_of, rank, &at.shared, &shared, err);
    if (r < 0)
        return err_prefix(err, "rank %u of %u", rank, shape->ranks);
    if (arch->experts) {
        struct plan_run run = plan_run_of(arch->experts, shape->groups, at.group);
        at.expert_first = run.first;
        at.expert_count = run.count;
    }
    struct plan_layers layers = plan_layers_of(arch);
    at.dense_slot_bytes = dense.expert_bytes;
    at.moe_slot_bytes = at.expert_count * routed.expert_bytes + shared.expert_bytes;
    at.bytes = layers.dense * at.dense_slot_bytes + layers.moe * at.moe_slot_bytes;
    *ret_rank = at;
    return 0;
}

static void add(struct plan_bytes *to, const struct plan_bytes *one, uint64_t times)
{
    to->laid_out += times * one->laid_out;
    to->real += times * one->real;
    to->send += times * one->send;
    to->read += times * one->read;
    to->params += times * one->params;
}

static int rank_bytes(const struct arch *arch, const struct plan *plan, uint32_t rank, struct plan_bytes *ret_bytes, struct err *err)
{
    struct plan_layers layers = plan_layers_of(arch);
    const struct {
        uint32_t intermediate, parts, part;
        uint64_t times;
    } kinds[] = {
        {arch->dense_intermediate, plan->tp, rank, layers.dense},
        {arch->moe_intermediate, plan->width, rank % plan->width, (uint64_t)layers.moe * plan->ranks[rank].expert_count},
        {arch->shared_intermediate, plan->tp, rank, layers.moe},
    };
    *ret_bytes = (struct plan_bytes){0};
    for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++) {
        struct plan_slice slice;
        struct layout_mlp layout;
        if (kinds[i].intermediate == 0)
            continue;
        int r = kind_of(arch, kinds[i].intermediate, kinds[i].parts, plan->multiple_of, kinds[i].part, &slice, &layout, err);
        if (r < 0)
            return r;
        struct plan_bytes one;
        plan_bytes_of(&layout, kinds[i].intermediate, &one);
        add(ret_bytes, &one, kinds[i].times);
    }
    return 0;
}

int plan_fill(const struct arch *arch, struct plan *plan, struct err *err)
{
    const struct plan_shape shape = {.ranks = plan->tp, .groups = plan->groups, .width = plan->width, .multiple_of = plan->multiple_of};
    struct plan_bytes total = {0};
    uint64_t largest = 0;
    for (uint32_t rank = 0; rank < plan->tp; rank++) {
        int r = plan_rank_fill(arch, &shape, rank, &plan->ranks[rank], err);
        if (r < 0)
            return r;
        struct plan_bytes bytes;
        r = rank_bytes(arch, plan, rank, &bytes, err);
        if (r < 0)
            return r;
        add(&total, &bytes, 1);
        plan->ranks[rank].send_bytes = bytes.send;
        plan->ranks[rank].read_bytes = bytes.read;
        if (bytes.send > largest) {
            largest = bytes.send;
            plan->rebuild_send_bytes = bytes.send;
            plan->rebuild_read_bytes = bytes.read;
        }
    }
    plan->bytes_total = total.laid_out;
    plan->params = total.params;
    plan->padding_bytes = total.laid_out - total.real;
    plan->bytes_per_param = (double)total.laid_out / (double)total.params;
    plan->send_bytes = total.send;
    plan->link_bytes = plan_link_bytes(arch);
    struct plan_draw draw = plan_layers_of(arch).moe ? plan_draw_of(arch, plan->groups) : (struct plan_draw){0};
    plan->slowest_experts = draw.slowest;
    plan->active_groups = draw.groups;
    plan->head_link_bytes = (uint64_t)(plan_head_link_bytes(arch, &shape, draw.groups) + 0.5);
    plan->rebuild_seconds = (double)plan->rebuild_send_bytes / plan->rates.link_bytes_per_s;
    return plan_predict(arch, &shape, plan->ranks, &plan->rates, &plan->predicted, err);
}

int plan_layouts(const struct arch *arch, const struct plan *plan, uint32_t layer, uint32_t rank, struct layout_mlp *ret_layout,
                 bool *ret_has_shared, struct layout_mlp *ret_shared, struct err *err)
{
    if (layer >= arch->layers || rank >= plan->tp)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "layer %u of %u, rank %u of %u: no such slot", layer, arch->layers, rank, plan->tp);
    bool moe = arch->layer_is_moe[layer];
    struct plan_slice slice;
    struct layout_mlp layout, shared;
    int r = moe ? kind_of(arch, arch->moe_intermediate, plan->width, plan->multiple_of, rank % plan->width, &slice, &layout, err)
                : kind_of(arch, arch->dense_intermediate, plan->tp, plan->multiple_of, rank, &slice, &layout, err);
    if (r == 0)
        r = kind_of(arch, moe ? arch->shared_intermediate : 0, plan->tp, plan->multiple_of, rank, &slice, &shared, err);
    if (r < 0)
        return err_prefix(err, "layer %u, rank %u of %u", layer, rank, plan->tp);
    *ret_layout = layout;
    *ret_has_shared = moe && arch->shared_intermediate > 0;
    *ret_shared = shared;
    return 0;
}

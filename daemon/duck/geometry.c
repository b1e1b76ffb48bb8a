#include "daemon/duck/geometry.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/base/size.h"

int geometry_init(const struct msg_prepare_begin *words, struct geometry *ret_geometry, struct err *err)
{
    struct geometry g = {.kind = words->kind,
                         .experts = words->experts,
                         .expert_first = words->expert_first,
                         .experts_total = words->experts_total > words->experts ? words->experts_total : words->experts,
                         .has_shared = words->has_shared};
    if (words->layout_version != LAYOUT_VERSION)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "layout version %u, this duck has layout %d", words->layout_version, LAYOUT_VERSION);
    if (words->kind != MSG_SLOT_DENSE && words->kind != MSG_SLOT_MOE)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "slot kind %u is neither dense nor MoE", (unsigned)words->kind);
    if (words->tp == 0 || words->rank >= words->tp)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "rank %u of tp %u", words->rank, words->tp);
    if (words->experts == 0 || words->experts > WIRE_EXPERTS_MAX || (words->kind == MSG_SLOT_DENSE && words->experts != 1))
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "%u experts, allowed are 1 to %u and 1 for a dense layer", words->experts,
                       WIRE_EXPERTS_MAX);
    if (g.experts_total > WIRE_EXPERTS_MAX || g.expert_first > g.experts_total - g.experts ||
        (words->kind == MSG_SLOT_DENSE && g.experts_total != 1))
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "experts %u to %u of %u", g.expert_first, g.expert_first + g.experts - 1,
                       g.experts_total);
    if (words->has_shared && words->kind == MSG_SLOT_DENSE)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "a dense layer has no shared expert");
    int r = layout_mlp_init(&g.layout, words->slice.hidden, words->slice.begin, words->slice.neurons, words->slice.pad_to, err);
    if (r < 0)
        return r;
    if (words->has_shared) {
        if (words->shared.hidden != words->slice.hidden)
            return err_set(err, -EINVAL, ERR_BAD_SHAPE, "shared expert: hidden size %u, the layer has %u", words->shared.hidden,
                           words->slice.hidden);
        r = layout_mlp_init(&g.shared, words->shared.hidden, words->shared.begin, words->shared.neurons, words->shared.pad_to, err);
        if (r < 0)
            return err_prefix(err, "shared expert");
    }
    if (!size_mul(g.layout.expert_bytes, (uint64_t)g.experts, &g.shared_offset) ||
        !size_add(g.shared_offset, words->has_shared ? g.shared.expert_bytes : 0, &g.bytes) || g.bytes > INT64_MAX)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "%u times an expert of %" PRIu64 " bytes is no size", g.experts,
                       g.layout.expert_bytes);
    *ret_geometry = g;
    return 0;
}

void geometry_own_ids(const struct geometry *geometry, int32_t *ids, size_t count)
{
    if (geometry->experts == geometry->experts_total)
        return;
    for (size_t i = 0; i < count; i++) {
        uint32_t own = (uint32_t)ids[i] - geometry->expert_first; /* of -1 and of lesser ids too large */
        ids[i] = own < geometry->experts ? (int32_t)own : -1;
    }
}

struct kernels_layer geometry_layer(const struct geometry *geometry, const uint8_t *data)
{
    return (struct kernels_layer){
        .layout = &geometry->layout,
        .experts = data,
        .expert_count = geometry->experts,
        .shared_layout = geometry->has_shared ? &geometry->shared : NULL,
        .shared = geometry->has_shared && data ? data + geometry->shared_offset : NULL,
    };
}

uint32_t geometry_rows(const struct layout_mlp *layout, enum kernels_matrix matrix)
{
    return matrix == KERNELS_DOWN ? layout->hidden : layout->neurons;
}

const struct layout_matrix *geometry_matrix(const struct layout_mlp *layout, enum kernels_matrix matrix)
{
    return matrix == KERNELS_DOWN ? &layout->down : &layout->gate_up;
}

/* PURE. What follows from who owns an expert: whom a step concerns, and what a slot was made of. */
#include <errno.h>
#include <string.h>

#include "daemon/model/plan_experts.h"

static uint32_t ask_all(uint32_t ranks, bool *ret_asked)
{
    memset(ret_asked, true, ranks * sizeof *ret_asked);
    return ranks;
}

struct plan_owners plan_owners_of(const struct arch *arch, const struct plan *plan)
{
    return (struct plan_owners){
        .experts = arch->experts, .groups = plan->groups, .width = plan->width, .shared = arch->shared_intermediate > 0};
}

uint32_t plan_owners_asked(const struct plan_owners *owners, bool moe, const int32_t *ids, size_t count, bool *ret_asked)
{
    uint32_t ranks = owners->groups * owners->width, asked = 0;
    if (!ids || !moe || owners->groups == 1 || owners->shared)
        return ask_all(ranks, ret_asked);
    memset(ret_asked, 0, ranks * sizeof *ret_asked);
    for (size_t i = 0; i < count && asked < ranks; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= owners->experts)
            continue;
        bool *group = ret_asked + (size_t)plan_group_of(owners->experts, owners->groups, (uint32_t)ids[i]) * owners->width;
        if (!group[0])
            asked += ask_all(owners->width, group);
    }
    return asked;
}

int plan_slot_sources(const struct arch *arch, const struct plan *plan, uint32_t layer, uint8_t sources[DIGEST_SIZE])
{
    if (plan->groups == 1 || !arch->layer_is_moe[layer])
        return 0;
    struct digest *digest = digest_new();
    if (!digest)
        return -ENOMEM;
    const struct {
        size_t first, end;
    } parts[] = {{0, PLAN_SOURCES_FRONT}, {PLAN_SOURCES_FRONT, DIGEST_SIZE}};
    for (size_t i = 0; i < ARRAY_LENGTH(parts); i++) {
        uint8_t taken[DIGEST_SIZE];
        digest_update_string(digest, "fp9 divided experts");
        digest_update_u64(digest, plan->groups);
        digest_update_u64(digest, plan->width);
        digest_update(digest, sources + parts[i].first, parts[i].end - parts[i].first);
        digest_finish(digest, taken);
        memcpy(sources + parts[i].first, taken, parts[i].end - parts[i].first);
    }
    digest_free(digest);
    return 0;
}

/* Which experts are whose, for people and programs. */
#include <stdio.h>

#include "daemon/head/rpc.h"

void rpc_experts_add(const struct plan_rank *share, json_t *json)
{
    char text[32];
    uint32_t last = share->expert_first + share->expert_count - 1;
    if (share->expert_count > 1)
        snprintf(text, sizeof text, "%u-%u", share->expert_first, last);
    else
        snprintf(text, sizeof text, "%u", share->expert_first);
    json_object_set_new(json, "experts", json_string(text));
    json_object_set_new(json, "expert_first", json_integer(share->expert_first));
    json_object_set_new(json, "expert_count", json_integer(share->expert_count));
}

json_t *rpc_owners_json(const struct core *core, const struct core_model *model)
{
    const struct plan *plan = model->plan;
    if (!plan || plan->groups == 1)
        return NULL;
    json_t *owners = json_array();
    for (uint32_t group = 0; group < plan->groups; group++) {
        json_t *one = json_object(), *ducks = json_array();
        rpc_experts_add(&plan->ranks[group * plan->width], one);
        for (uint32_t member = 0; member < plan->width; member++)
            json_array_append_new(ducks, json_string(core->ducks[model->duck_of_rank[group * plan->width + member]].name));
        json_object_set_new(one, "ducks", ducks);
        json_array_append_new(owners, one);
    }
    return owners;
}

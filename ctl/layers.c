#include "ctl/layers.h"

#include <string.h>

#define EXPERTS_MAX 65536

/* The model's entry, borrowed from `list`. */
static const json_t *find_model(const json_t *list, const char *name)
{
    size_t i;
    json_t *model;
    json_array_foreach(json_object_get(list, "models"), i, model)
    {
        const char *text = json_string_value(json_object_get(model, "name"));
        if (text && strcmp(text, name) == 0)
            return model;
    }
    return NULL;
}

enum ctl_exit layers_read(const struct ctl *ctl, const json_t *list, const char *name, struct layers *ret_layers)
{
    const json_t *model = find_model(list, name);
    if (!model)
        return ctl_no_such(ctl, "model", name, json_object_get(list, "models"), "name");
    json_int_t experts = json_integer_value(json_object_get(model, "experts")), top_k = json_integer_value(json_object_get(model, "top_k"));
    const char *kinds = json_string_value(json_object_get(model, "layer_kinds"));
    if (!kinds || experts < 0 || experts > EXPERTS_MAX || top_k < 0 || top_k > experts)
        return ctl_fail_with(ctl, "INTERNAL", "fp9d does not say layer_kinds, experts and top_k of %s", name);
    bool moe = strchr(kinds, 'm') != NULL;
    if (moe && top_k == 0)
        return ctl_fail_with(ctl, "INTERNAL", "fp9d says no top_k of %s, which has MoE layers", name);
    *ret_layers = (struct layers){.kinds = kinds, .experts = (uint32_t)experts, .top_k = moe ? (uint32_t)top_k : 0};
    return CTL_DONE;
}

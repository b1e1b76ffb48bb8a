#include "ctl/straggler.h"

#include <math.h>
#include <stddef.h>

void straggler_add(struct straggler *straggler, const struct fp9_timing *timing)
{
    if (timing->straggler < 0 || timing->straggler >= STRAGGLER_DUCKS)
        return;
    straggler->steps[timing->straggler]++;
    straggler->us[timing->straggler] += isfinite(timing->straggler_us) ? timing->straggler_us : 0.0;
}

void straggler_append(struct straggler *straggler, const struct straggler *more)
{
    for (size_t i = 0; i < STRAGGLER_DUCKS; i++) {
        straggler->steps[i] += more->steps[i];
        straggler->us[i] += more->us[i];
    }
}

bool straggler_any(const struct straggler *straggler)
{
    for (size_t i = 0; i < STRAGGLER_DUCKS; i++)
        if (straggler->steps[i])
            return true;
    return false;
}

/* The duck's name, or its number when the fleet has lost it meanwhile. */
static json_t *name_of(size_t id, const json_t *ducks)
{
    size_t i;
    json_t *duck;
    json_array_foreach(json_object_get(ducks, "ducks"), i,
                       duck) if (json_integer_value(json_object_get(duck, "id")) == (json_int_t)id &&
                                 json_is_string(json_object_get(duck, "name"))) return json_incref(json_object_get(duck, "name"));
    return json_integer((json_int_t)id);
}

json_t *straggler_json(const struct straggler *straggler, const json_t *ducks)
{
    size_t worst = 0;
    uint64_t all = 0;
    for (size_t i = 0; i < STRAGGLER_DUCKS; i++) {
        all += straggler->steps[i];
        worst = straggler->steps[i] > straggler->steps[worst] ? i : worst;
    }
    if (!all)
        return json_null();
    double steps = (double)straggler->steps[worst];
    return json_pack("{s:o,s:f,s:f}", "duck", name_of(worst, ducks), "share", steps / (double)all, "late_us", straggler->us[worst] / steps);
}

/* What tests of plans begin with: an architecture of a few words of config.json, and a plan that must be possible. After cmocka.h. */
#ifndef FP9_TESTS_MODEL_PLANNED_H
#define FP9_TESTS_MODEL_PLANNED_H

#include "daemon/model/plan.h"

#define PLANNED_QUANT "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}"

static inline struct arch *planned_arch(const char *text, int length)
{
    struct arch *arch = NULL;
    struct err err = {0};
    if (arch_parse(text, (size_t)length, "config.json", &arch, &err) < 0)
        fail_msg("%s", err.message);
    return arch;
}

static inline struct plan *planned(const struct arch *arch, struct plan_request request)
{
    struct plan *plan = NULL;
    struct err err = {0};
    if (plan_make(arch, &request, &plan, &err) < 0)
        fail_msg("%s", err.message);
    return plan;
}

#endif

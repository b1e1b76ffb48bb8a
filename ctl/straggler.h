/* Who was the last of several ranks to answer, over a run of steps. */
#ifndef FP9_CTL_STRAGGLER_H
#define FP9_CTL_STRAGGLER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/client/fp9.h"

#define STRAGGLER_DUCKS 1024 /* ids of ducks that are told apart */

struct straggler {
    uint64_t steps[STRAGGLER_DUCKS]; /* by the duck's id */
    double us[STRAGGLER_DUCKS];      /* for which it was waited for alone */
};

void straggler_add(struct straggler *straggler, const struct fp9_timing *timing);
void straggler_append(struct straggler *straggler, const struct straggler *more);
/* Did a step have several ranks? */
bool straggler_any(const struct straggler *straggler);
/* {duck, share, late_us} of the one that was last most often: its name in duck.list's result, its share of the steps, the mean time for
 * which it was waited for alone; null when no step had several ranks. */
json_t *straggler_json(const struct straggler *straggler, const json_t *ducks);

#endif

/* What bench and trace need to know of a model to run tokens through it. */
#ifndef FP9_CTL_LAYERS_H
#define FP9_CTL_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "ctl/ctl.h"

struct layers {
    const char *kinds;       /* a character a layer, 'd' dense, 'm' MoE; borrowed from the list */
    uint32_t experts, top_k; /* top_k 0: no layer is MoE */
};

/* Out of the result of model.list. A failure was reported when it returns. */
enum ctl_exit layers_read(const struct ctl *ctl, const json_t *list, const char *model, struct layers *ret_layers);

#endif

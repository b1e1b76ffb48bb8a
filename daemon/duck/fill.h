/* Prepare (modes 2 and 3): rows that arrive in frames become panels in a slot of the weight buffer.
 *
 * Several fills may run at once, each known by its request id. An error drops the fill's slot; the caller answers it with FAIL once, and
 * later frames of that request are ignored here until its END or ABORT has passed. One thread.
 */
#ifndef FP9_DUCK_FILL_H
#define FP9_DUCK_FILL_H

#include "daemon/duck/wbuf.h"

#define FILLS_MAX 16
#define FILL_IGNORED_MAX 64

struct fills;

int fills_new(struct wbuf *wbuf, struct fills **ret_fills, struct err *err); /* wbuf is borrowed */
void fills_free(struct fills *fills);                                        /* unfinished slots are dropped */
CLEANUP_DEFINE(struct fills *, fills_free);
bool fills_active(const struct fills *fills);

/* Any slot of the same model and layer is dropped first, and any of the same model but another rank, tp or multiple_of: a duck is one
 * rank. */
int fill_begin(struct fills *fills, uint64_t request, const struct msg_prepare_begin *words, struct err *err);
/* Rows, each exactly once. 0 also for a request that is being ignored. */
int fill_data(struct fills *fills, uint64_t request, const struct msg_prepare_data *data, struct err *err);
/* What the rows come from. 0 also for a request that is being ignored. */
int fill_sources(struct fills *fills, uint64_t request, const uint8_t sources[DIGEST_SIZE], struct err *err);
/* 1 and the finished slot; 0 for an ignored request; negative, naming what is missing. */
int fill_end(struct fills *fills, uint64_t request, struct msg_slot *ret_slot, struct err *err);
/* Drops the fills of a model (NULL: all). Their requests, *ret_count of them, are to be answered with FAIL; they are ignored from here
 * on. */
void fills_drop(struct fills *fills, const uint8_t *model_key, uint64_t ret_requests[FILLS_MAX], size_t *ret_count);
void fill_abort(struct fills *fills, uint64_t request);

#endif

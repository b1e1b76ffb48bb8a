/* Registered models on their way into the database. What cannot be written (the disk is full, say) is tried again until it can: a model
 * that works must not be gone after the next restart for a shortage that has long passed. Loop thread only. */
#ifndef FP9_HEAD_REMEMBER_H
#define FP9_HEAD_REMEMBER_H

#include "daemon/head/head.h"

/* By what the model is now; forget: only its name is looked at. Replaces what still waits under that name. */
void remember_model(struct head *head, const struct core_model *model, bool forget);
/* A first attempt to write something about that model is under way. Whoever waits for a load is answered after it: what was reported as
 * loaded comes back after a kill at that very moment. */
bool remember_pending(const struct head *head, const char *model);
/* Why what is to be written of that model (NULL: of any) could not be written yet; NULL: it is. */
const char *remember_failing(const struct head *head, const char *model);
void remember_tick(struct head *head, uint64_t now);
/* After the workers have ended. */
void remember_free_all(struct head *head);

#endif

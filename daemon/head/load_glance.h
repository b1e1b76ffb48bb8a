/* Opening by a glance: a load of files that are what they were when all of their digests were known needs no header and no scale of them,
 * as long as no slot is missing. Disk worker. */
#ifndef FP9_HEAD_LOAD_GLANCE_H
#define FP9_HEAD_LOAD_GLANCE_H

#include "daemon/head/db.h"
#include "daemon/model/checkpoint_glance.h"

/* False: it is to be opened whole, for whatever reason. `model` is the model's name. */
bool load_glance_open(struct db *db, const char *dir, const char *model, const struct arch *arch, struct checkpoint **ret_checkpoint);
/* What a whole opening, or the load after it, has found; while a digest is unknown, that nothing is known. Within a transaction or not. */
int load_glance_save(struct db *db, const char *dir, const struct checkpoint_stamp *stamp, const struct checkpoint *checkpoint,
                     struct err *err);

#endif

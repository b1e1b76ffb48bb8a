/* Takes the whole weight buffer's memory from the system in the background, so that loads find it there: `prealloc = yes`. */
#ifndef FP9_DUCK_PREALLOC_H
#define FP9_DUCK_PREALLOC_H

#include "daemon/duck/wbuf.h"

struct prealloc;

/* -ENOMEM with the numbers when the machine never has as much memory; when it has not now, a line in the log.
 * wbuf is borrowed and keeps its pages from now on. What the system does not have is said in the log, and taken later, if at all, as slots
 * need it. */
int prealloc_start(struct wbuf *wbuf, struct prealloc **ret_prealloc, struct err *err);
/* Ends it where it is. Before wbuf_free. */
void prealloc_free(struct prealloc *prealloc);
CLEANUP_DEFINE(struct prealloc *, prealloc_free);

#endif

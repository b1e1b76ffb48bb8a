/* The main thread: waits for the link, the kernel thread and signals, and moves frames between transport and link. */
#ifndef FP9_DUCK_LOOP_H
#define FP9_DUCK_LOOP_H

#include "daemon/duck/link.h"
#include "proto/wire/transport.h"

/* Blocks the signals that loop_run takes; call before any thread starts. */
int loop_block_signals(struct err *err);

/* Serves one link until its peer closes it or SIGTERM or SIGINT comes: 0. Negative when the link had to be ended. Everything is
 * borrowed. */
int loop_run(struct transport *transport, const struct link_facts *facts, struct wbuf *wbuf, struct err *err);

#endif

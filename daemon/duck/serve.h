/* A fp9-duck of its own: heads come over TCP, one at a time and one after another; the weights stay between them. */
#ifndef FP9_DUCK_SERVE_H
#define FP9_DUCK_SERVE_H

#include "daemon/duck/loop.h"
#include "daemon/duck/options.h"

/* This version speaks plaintext only, and only when that was asked for: BAD_REQUEST that says what to set. */
int serve_check(const struct options *options, struct err *err);

/* Serves one link: loop_run with all that it needs. */
typedef int (*serve_link_fn)(void *user, struct transport *transport, const struct loop_beside *beside, struct err *err);

/* Until SIGTERM or SIGINT: 0. A link that ends badly is logged and the next one is waited for; negative when nobody can be waited for.
 * Signals must be blocked already (loop_block_signals). */
int serve_tcp(const struct options *options, serve_link_fn link, void *user, struct err *err);

#endif

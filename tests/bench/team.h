/* Threads that start together, and how long they took together and apart. */
#ifndef FP9_TESTS_BENCH_TEAM_H
#define FP9_TESTS_BENCH_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"

struct team;

struct team_time {
    uint64_t wall_ns;      /* from the barrier's opening to the last member's end, seen by member 0 */
    uint64_t local_max_ns; /* the longest that a member took by its own clock */
};

/* `threads` members, the caller being member 0. Each is pinned to a CPU of its own when the process has as many; else none is, and they
 * yield instead of spinning. Between runs members sleep. */
int team_new(struct team **ret_team, uint32_t threads, struct err *err);
void team_free(struct team *team); /* gives the caller its old CPUs back; accepts NULL */

bool team_pinned(const struct team *team);

/* Every member calls work(data, member) once. */
struct team_time team_run(struct team *team, void (*work)(void *data, uint32_t member), void *data);

#endif

/* Requests that were refused and whose later frames pass unanswered until their END or ABORT. A few: the oldest is forgotten. */
#ifndef FP9_DUCK_IGNORED_H
#define FP9_DUCK_IGNORED_H

#include <stdbool.h>
#include <stdint.h>

#define IGNORED_MAX 64

/* Zero-initialised: none. */
struct ignored {
    uint64_t requests[IGNORED_MAX];
    uint32_t count, next; /* next: to give way, once there are IGNORED_MAX */
};

bool ignored_has(const struct ignored *ignored, uint64_t request);
void ignored_add(struct ignored *ignored, uint64_t request);
/* True when it was there. */
bool ignored_forget(struct ignored *ignored, uint64_t request);

#endif

/* Cleanup attributes: a resource is released where its variable goes out of scope.
 *
 * Each type declares its own cleanup next to its destructor:
 *     void thing_free(struct thing *thing);          accepts NULL
 *     CLEANUP_DEFINE(struct thing *, thing_free);    gives thing_freep()
 * and is used as
 *     _cleanup_(thing_freep) struct thing *thing = NULL;
 *     ...
 *     *ret_thing = STEAL(thing);
 */
#ifndef FP9_BASE_CLEANUP_H
#define FP9_BASE_CLEANUP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

/* Takes the value out of an owning pointer and leaves NULL behind. */
#define STEAL(p)                                                                                   \
    ({                                                                                             \
        __typeof__(p) *steal_at_ = &(p);                                                           \
        __typeof__(p) steal_value_ = *steal_at_;                                                   \
        *steal_at_ = NULL;                                                                         \
        steal_value_;                                                                              \
    })

#define STEAL_FD(fd)                                                                               \
    ({                                                                                             \
        int *steal_at_ = &(fd);                                                                    \
        int steal_value_ = *steal_at_;                                                             \
        *steal_at_ = -1;                                                                           \
        steal_value_;                                                                              \
    })

#define CLEANUP_DEFINE(type, f)                                                                    \
    static inline void f##p(type *p)                                                               \
    {                                                                                              \
        if (*p)                                                                                    \
            f(*p);                                                                                 \
    }                                                                                              \
    struct cleanup_semicolon_

static inline void freep(void *p)
{
    free(*(void **)p);
}

/* Closes without touching errno, so that it may run on an error path. */
static inline void closep(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

CLEANUP_DEFINE(FILE *, fclose);

#define ARRAY_LENGTH(a) (sizeof(a) / sizeof((a)[0]))

#endif

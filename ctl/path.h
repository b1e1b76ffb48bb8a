/* Paths on the command line belong to the client's directory; the daemon gets them absolute. */
#ifndef FP9_CTL_PATH_H
#define FP9_CTL_PATH_H

#include <jansson.h>

/* NULL when it cannot be made: out of memory, too long, no UTF-8. Symbolic links stay, so that a model is named as the user named it. */
json_t *path_json(const char *path);

#endif

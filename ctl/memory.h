/* Weights handed over in memory. */
#ifndef FP9_CTL_MEMORY_H
#define FP9_CTL_MEMORY_H

#include "ctl/ctl.h"

/* A sealed memfd with a file's bytes, as prepare takes it. A failure was reported when it returns. */
enum ctl_exit memory_of_file(const struct ctl *ctl, const char *path, int *ret_fd);

#endif

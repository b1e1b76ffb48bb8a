/* The file under a weight buffer: its size, its lock, its pages. Private to wbuf*.c. */
#ifndef FP9_DUCK_WBUF_FILE_H
#define FP9_DUCK_WBUF_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"

int wbuf_file_own(uint64_t bytes, int *ret_fd, struct err *err);
/* The size of the file, set to `bytes` when it is empty. It does not shrink from then on. */
int wbuf_file_size(int fd, uint64_t bytes, uint64_t *ret_size, struct err *err);
/* For this process alone; waits some seconds for another that may still be dying. */
int wbuf_file_lock(int fd, struct err *err);
/* No memory for a range. False when that is refused: its bytes stay. */
bool wbuf_file_give_back(int fd, uint64_t offset, uint64_t bytes);

#endif

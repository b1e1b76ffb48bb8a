/* A small file as a whole: config.json, the index. */
#ifndef FP9_MODEL_TEXT_FILE_H
#define FP9_MODEL_TEXT_FILE_H

#include "proto/base/buf.h"
#include "proto/base/err.h"

/* Reads a regular file of at most `limit` bytes into *ret_text (owned by the caller, buf_release). A FIFO or device is refused without
 * waiting on it. NO_SUCH when it is not there; BAD_CHECKPOINT when it is no regular file, too large, or a Git LFS pointer. */
int text_file_read(const char *path, size_t limit, struct buf *ret_text, struct err *err);

#endif

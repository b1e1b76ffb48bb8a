/* The whole life of fp9d after its configuration was read: returns when it was told to stop, or why it could not start. */
#ifndef FP9_HEAD_HEAD_RUN_H
#define FP9_HEAD_HEAD_RUN_H

#include "daemon/head/conf.h"

int head_run(const struct conf *conf, struct err *err);

#endif

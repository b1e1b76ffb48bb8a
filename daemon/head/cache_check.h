/* cache.verify: every slot's checksum computed again by its duck, all ducks at once; with `full` the checkpoint's own checksums beside
 * them, worked out layer by layer on the bulk worker while ducks read. One at a time. Loop thread. */
#ifndef FP9_HEAD_CACHE_CHECK_H
#define FP9_HEAD_CACHE_CHECK_H

#include "daemon/head/rpc.h"
#include "proto/wire/frame.h"

/* The handler of cache.verify. */
int cache_check_start(const struct call *call, json_t **ret_result, struct err *err);
/* Whether a request id is one of these; VERIFIED or FAIL then goes to cache_check_frame. */
bool cache_check_is_request(uint64_t request);
int cache_check_frame(struct head *head, uint32_t duck, const struct frame *frame, struct err *err);
void cache_check_duck_lost(struct head *head, uint32_t duck);
/* Its job was cancelled. */
void cache_check_cancel(struct head *head, uint64_t job);
void cache_check_client_gone(struct head *head, uint64_t client);
void cache_check_stop(struct head *head); /* fp9d is stopping: a layer that is being read is given up */
void cache_check_free(struct head *head);

#endif

/* How the kernel thread takes steps from the channel itself (proto/wire/channel.h) and answers there, so that a step costs one hand-off
 * from fp9d and one back.
 *
 *     member 0:  look -> link_frame(STEP) -> kernels -> link_exec_event -> STEP_DONE into the channel -> look ... spin ... sleep
 *     main thread:  the socket; while kernels of a batch or one-shot job run, the channel too (fp9d then sends a PING beside the frame)
 *
 * Both use the link under the kernel thread's lock (exec_lock), which is not held while kernels run or somebody waits. What member 0 has to
 * say on the socket (a FAIL, a SESSION_CLOSED), and an end of the link that it finds necessary, it leaves to the main thread (exec_ring).
 */
#ifndef FP9_DUCK_FEED_H
#define FP9_DUCK_FEED_H

#include "daemon/duck/link.h"
#include "proto/wire/channel.h"

struct feed;

/* All is borrowed. bell_fd: eventfd that wakes fp9d's loop. Member 0 begins to look at once. may_spin: there is a CPU for each thread. */
int feed_new(struct channel *channel, int bell_fd, bool may_spin, struct link *link, struct exec *exec, const struct buf *out,
             struct feed **ret_feed, struct err *err);
/* After exec_free. */
void feed_free(struct feed *feed);
CLEANUP_DEFINE(struct feed *, feed_free);

/* For the main thread, around all that it does with link, exec and out. A NULL feed has nothing to lock. */
void feed_lock(struct feed *feed);
void feed_unlock(struct feed *feed);
/* With the lock: takes frames when member 0 does not look. Negative when the link must be closed, also for what member 0 found. */
int feed_take(struct feed *feed, struct err *err);

#endif

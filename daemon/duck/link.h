/* One link to a head: frames in, answers out (proto/wire/wire.h has the conversation). Knows no descriptor and no clock: the loop feeds it.
 *
 * Steps run on the kernel thread, those of a kind in order, interactive ones (steps.h) before batch work; rows are packed on a thread of
 * their own (packer.h); all else is answered at once, PING also while kernels run. A DROP is answered when the system has the memory back:
 * after the steps that still read it. A SESSION_CLOSE ends the steps of its session, a STEP_CANCEL one: those that wait at once, those that
 * run within a tile of theirs; it is answered after them. One thread at a time (with a channel: by the feed's lock, feed.h).
 */
#ifndef FP9_DUCK_LINK_H
#define FP9_DUCK_LINK_H

#include "daemon/duck/exec.h"
#include "daemon/duck/stage.h"
#include "daemon/duck/wbuf.h"
#include "proto/wire/frame.h"

struct channel;
struct link;

struct link_facts {
    const char *name; /* of this duck */
    uint32_t cores;
    const char *from;          /* the head's address; NULL: it has none */
    const struct stage *stage; /* borrowed; NULL: the head shares none */
};

/* wbuf and exec are borrowed and must outlive the link; answers are appended to `out`. */
int link_new(const struct link_facts *facts, struct wbuf *wbuf, struct exec *exec, struct buf *out, struct link **ret_link,
             struct err *err);
/* Not while exec runs a step of it: exec_free first. Unfinished slots are dropped. */
void link_free(struct link *link);
CLEANUP_DEFINE(struct link *, link_free);

/* Answers to steps then go into the channel while there is room, and ring bell_fd (eventfd) when the head sleeps. Both are borrowed. */
void link_set_channel(struct link *link, struct channel *channel, int bell_fd);
/* Takes one frame. 0, or negative when the link must be closed (a FAIL that says why is in `out` already). */
int link_frame(struct link *link, const struct frame *frame, struct err *err);
/* After exec's eventfd fired: answers the steps that are through and starts the next ones. Negative as above. Once exec is broken nothing
 * is started, and the link must neither take another frame nor be freed. */
int link_exec_event(struct link *link, struct err *err);
/* Once exec is broken: steps that nobody has answered fail with the reason. Negative as above. */
int link_exec_broken(struct link *link, const struct err *why, struct err *err);
/* Readable when the packing thread has done something: then link_pack_event answers. Negative as above. */
int link_pack_fd(const struct link *link);
int link_pack_event(struct link *link, struct err *err);
/* True while so many rows wait to be packed that no more frames should be read: of a head that does not keep to WIRE_PREPARE_WINDOW. */
bool link_full(const struct link *link);
/* Readable when a VERIFY is through: then link_verify_event answers it. Negative as above. */
int link_verify_fd(const struct link *link);
int link_verify_event(struct link *link, struct err *err);
/* True while a session is open. */
bool link_has_sessions(const struct link *link);
/* True while dropped memory is to be given back, a piece (some 0.3 ms) a call, when nothing else is to be done. Negative as above. */
bool link_has_chores(const struct link *link);
int link_chore(struct link *link, struct err *err);
/* True once HELLO was exchanged. */
bool link_greeted(const struct link *link);
/* What its HELLO says, 0 when it does not. */
uint32_t link_heartbeat_s(const struct link *link);
/* Who is at the other end, as in "fp9d 0.1.0 (pid 4711) of HOST at ADDRESS"; before HELLO the address alone, or "". */
const char *link_peer(const struct link *link);

#endif

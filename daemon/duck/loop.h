/* The main thread: waits for the link, the kernel thread and signals, and moves frames between transport and link. */
#ifndef FP9_DUCK_LOOP_H
#define FP9_DUCK_LOOP_H

#include <signal.h>

#include "daemon/duck/link.h"
#include "proto/wire/transport.h"

/* Blocks the signals that loop_run takes; call before any thread starts. */
int loop_block_signals(struct err *err);

/* SIGTERM and SIGINT, which are blocked and read from a signalfd. */
void loop_signal_set(sigset_t *set);

/* What a duck that is a service looks after beside its link. */
struct loop_beside {
    int fd;                                        /* somebody else who knocks: readable */
    void (*ready)(void *user, const char *holder); /* then; holder: whose link this is (link_peer) */
    void *user;
    int hello_ms;     /* a peer that has not said HELLO by then is let go, and one that is silent (silence.h) later on */
    const char *from; /* its address */
};

/* What a local duck has beside its link: steps through shared memory (feed.h). */
struct loop_channel {
    struct channel *channel; /* borrowed */
    int bell_fd;             /* borrowed */
    bool may_spin;
};

enum {
    LOOP_CLOSED = 0,  /* by the peer, or given up for its silence */
    LOOP_STOPPED = 1, /* by a signal */
};

/* Serves one link until its peer closes it or SIGTERM or SIGINT comes: LOOP_*. Negative when the link had to be ended. Everything is
 * borrowed; beside and channel may be NULL. When a kernel thread is lost the process ends here, with a line in the log and EXIT_FAILURE:
 * whoever supervises it starts it again, and the weights are still in their buffer. */
int loop_run(struct transport *transport, const struct link_facts *facts, struct wbuf *wbuf, const struct team_setup *setup,
             const struct loop_beside *beside, const struct loop_channel *channel, struct err *err);

#endif

#include "daemon/duck/feed.h"

#include <errno.h>
#include <poll.h>

#include "proto/base/clock.h"
#include "proto/base/spin.h"

#define FRAMES_AT_ONCE 64 /* under one hold of the lock */

struct feed {
    struct channel *channel; /* borrowed, as are the next three */
    struct link *link;
    struct exec *exec;     /* its lock is this one's */
    const struct buf *out; /* what leaves on the socket */
    struct err broken;     /* under the lock; code 0: nothing */
    _Atomic bool dead;     /* broken: member 0 looks no more */
    /* Member 0's. */
    struct spin spin;
    bool idle; /* it had nothing to do: the first frame begins at once, and no cache line is waited for to see whether there is a second */
};

/* With the lock. */
static void set_broken(struct feed *feed, const struct err *err)
{
    if (feed->broken.code == 0)
        err_copy(&feed->broken, err);
    atomic_store(&feed->dead, true);
    exec_ring(feed->exec);
}

/* With the lock. */
static int take_frames(struct feed *feed, int most, struct err *err)
{
    struct frame frame;
    int r = 0;
    for (int i = 0; i < most && (r = channel_next(feed->channel, &frame, err)) > 0; i++) {
        if (frame.type != WIRE_STEP)
            r = err_set(err, -EPROTO, ERR_BAD_REQUEST, "channel: %s frame: only STEP comes this way", frame_type_name(frame.type));
        else
            r = link_frame(feed->link, &frame, err);
        if (r < 0)
            return r;
        channel_taken(feed->channel);
    }
    return r < 0 ? r : 0;
}

int feed_take(struct feed *feed, struct err *err)
{
    if (!feed)
        return 0;
    if (feed->broken.code < 0) {
        err_copy(err, &feed->broken);
        return feed->broken.code;
    }
    return exec_lent(feed->exec) ? take_frames(feed, FRAMES_AT_ONCE, err) : 0;
}

/* ---- member 0 ----------------------------------------------------------------------------------- */

static void look(void *user)
{
    struct feed *feed = user;
    if (!channel_pending(feed->channel) || atomic_load_explicit(&feed->dead, memory_order_relaxed))
        return;
    struct err err;
    size_t out = feed->out->length;
    int most = feed->idle ? 1 : FRAMES_AT_ONCE;
    feed->idle = false;
    if (feed->broken.code == 0 && take_frames(feed, most, &err) < 0)
        set_broken(feed, &err);
    else if (feed->out->length != out)
        exec_ring(feed->exec);
}

static void through(void *user)
{
    struct feed *feed = user;
    struct err err;
    size_t out = feed->out->length;
    if (link_exec_event(feed->link, &err) < 0)
        set_broken(feed, &err);
    else if (feed->out->length != out)
        exec_ring(feed->exec);
}

static void lend(void *user, bool lent)
{
    struct feed *feed = user;
    (void)channel_set_mode(feed->channel, lent ? CHANNEL_BUSY : CHANNEL_AWAKE); /* member 0 looks next, in either case */
}

struct wait {
    struct feed *feed;
    bool (*knocked)(void *user);
    void *user;
};

static bool ready(void *user)
{
    const struct wait *wait = user;
    return channel_pending(wait->feed->channel) || wait->knocked(wait->user);
}

static void wait(void *user, bool (*knocked)(void *user), void *knocked_user)
{
    struct feed *feed = user;
    if (atomic_load_explicit(&feed->dead, memory_order_relaxed)) { /* the main thread is about to end the link */
        (void)poll(NULL, 0, 1);
        return;
    }
    struct wait wait = {.feed = feed, .knocked = knocked, .user = knocked_user};
    feed->idle = true;
    if (!spin_while_not(&feed->spin, ready, &wait))
        channel_sleep(feed->channel, knocked, knocked_user);
}

static void wake(void *user)
{
    struct feed *feed = user;
    channel_wake(feed->channel);
}

/* ---- the main thread ---------------------------------------------------------------------------- */

int feed_new(struct channel *channel, int bell_fd, bool may_spin, struct link *link, struct exec *exec, const struct buf *out,
             struct feed **ret_feed, struct err *err)
{
    struct feed *feed = calloc(1, sizeof *feed);
    if (!feed)
        return err_no_memory(err, "feed", sizeof *feed);
    *feed = (struct feed){.channel = channel, .link = link, .exec = exec, .out = out};
    feed->spin = spin_init(may_spin ? channel_spin_us(channel) * CLOCK_NS_PER_US : 0);
    feed->spin.wary = true;
    link_set_channel(link, channel, bell_fd);
    const struct exec_feed calls = {.user = feed, .look = look, .through = through, .lend = lend, .wait = wait, .wake = wake};
    exec_set_feed(exec, &calls);
    *ret_feed = feed;
    return 0;
}

void feed_free(struct feed *feed)
{
    free(feed);
}

void feed_lock(struct feed *feed)
{
    if (feed)
        exec_lock(feed->exec);
}

void feed_unlock(struct feed *feed)
{
    if (feed)
        exec_unlock(feed->exec);
}

#include "daemon/head/step_channel.h"

#include <errno.h>

int step_channel_open(struct step_channel *sc, uint32_t spin_us, int *ret_fd, struct err *err)
{
    struct channel *channel;
    int r = channel_new(spin_us, &channel, ret_fd, err);
    if (r == 0)
        *sc = (struct step_channel){.channel = channel, .spin_us = spin_us};
    return r;
}

void step_channel_close(struct step_channel *sc)
{
    channel_free(sc->channel);
    *sc = (struct step_channel){0};
}

int step_channel_put(struct step_channel *sc, const struct buf *frame, enum step_channel_put *ret_put, struct err *err)
{
    if (sc->spin_us && !sc->awake) {
        (void)channel_set_mode(sc->channel, CHANNEL_AWAKE); /* the loop polls before it sleeps */
        sc->awake = true;
    }
    enum channel_mode mode;
    int r = channel_send(sc->channel, frame->data, frame->length, NULL, 0, &mode, err);
    if (r < 0)
        return r;
    *ret_put = STEP_CHANNEL_FULL;
    if (r == 0)
        return 0;
    sc->expected++;
    if (mode == CHANNEL_ASLEEP)
        channel_wake(sc->channel);
    *ret_put = mode == CHANNEL_BUSY ? STEP_CHANNEL_NUDGE : STEP_CHANNEL_SENT;
    return 0;
}

void step_channel_answered(struct step_channel *sc)
{
    sc->expected -= sc->expected > 0;
}

int step_channel_next(struct step_channel *sc, struct frame *ret_frame, struct err *err)
{
    struct frame frame;
    int r = channel_next(sc->channel, &frame, err);
    if (r <= 0)
        return r;
    if (frame.type != WIRE_STEP_DONE)
        return err_set(err, -EPROTO, ERR_INTERNAL, "channel: %s frame: only STEP_DONE comes this way", frame_type_name(frame.type));
    step_channel_answered(sc);
    *ret_frame = frame;
    return 1;
}

enum loop_found step_channel_expects(const struct step_channel *sc)
{
    return sc->expected && sc->spin_us ? LOOP_EXPECTS : LOOP_IDLE;
}

bool step_channel_park(struct step_channel *sc)
{
    if (!sc->awake)
        return true;
    sc->awake = false;
    return !channel_set_mode(sc->channel, CHANNEL_ASLEEP);
}

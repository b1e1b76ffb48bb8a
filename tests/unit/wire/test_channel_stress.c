/* Frames of random length there and back between two threads, which stall and sleep at random: every byte arrives once and in order, and
 * nobody sleeps beside a frame.
 *
 *   test-channel-stress [--expect-sleep] [FRAMES]
 *
 * --expect-sleep is for the mutated build of the channel, whose sleepers do not look once more: it must be found out. FP9_SEED repeats.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "proto/base/spin.h"
#include "proto/wire/channel.h"

#define FRAMES_DEFAULT 60000
#define IN_FLIGHT_MAX 12
#define PAYLOAD_MAX 0x3fff
#define LIMIT_MS 3000 /* without a frame while some are under way: a sleeper was not woken */

struct random {
    uint64_t state;
};

static uint64_t next(struct random *random)
{
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return random->state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Mostly nothing; else a few pauses, the CPU given away, or sleep. */
static void stall(struct random *random)
{
    uint64_t dice = next(random);
    if (dice % 4 == 0)
        for (uint64_t i = dice >> 16 & 0xff; i > 0; i--)
            spin_pause();
    else if (dice % 64 == 1)
        (void)poll(NULL, 0, 0);
    else if (dice % 512 == 2)
        nanosleep(&(struct timespec){.tv_nsec = (long)(dice >> 16 & 0xffff)}, NULL);
}

static uint8_t byte_of(uint64_t request, size_t i)
{
    return (uint8_t)(request * 31 + i * 7);
}

static enum channel_mode put(struct channel *channel, enum wire_type type, uint64_t request, size_t payload, struct random *random)
{
    _Thread_local static uint8_t bytes[WIRE_FRAME_HEADER + PAYLOAD_MAX];
    struct err err;
    enum channel_mode mode;
    size_t whole = WIRE_FRAME_HEADER + payload, head = next(random) % (whole + 1);
    frame_header_write(bytes, type, request, (uint32_t)payload);
    for (size_t i = 0; i < payload; i++)
        bytes[WIRE_FRAME_HEADER + i] = byte_of(request, i);
    stall(random);
    if (channel_send(channel, bytes, head, bytes + head, whole - head, &mode, &err) <= 0) {
        fprintf(stderr, "no room\n"); /* with so few under way there must be */
        exit(EXIT_FAILURE);
    }
    return mode;
}

static void check(const struct frame *frame, uint64_t request)
{
    bool good = frame->request == request;
    for (size_t i = 0; i < frame->length && good; i++)
        good = frame->payload[i] == byte_of(request, i);
    if (good)
        return;
    fprintf(stderr, "frame %" PRIu64 " is not what was sent as %" PRIu64 "\n", frame->request, request);
    exit(EXIT_FAILURE);
}

struct duck {
    struct channel *channel;
    int bell;
    uint64_t seed;
    _Atomic bool stop;
};

static bool stopped(void *user)
{
    const struct duck *duck = user;
    return atomic_load(&duck->stop);
}

/* Answers every frame with one of the same length. */
static void *duck_main(void *user)
{
    struct duck *duck = user;
    struct random random = {.state = duck->seed};
    uint64_t done = 0;
    while (!stopped(duck)) {
        struct frame frame;
        struct err err;
        int r = channel_next(duck->channel, &frame, &err);
        if (r < 0) {
            fprintf(stderr, "duck: %s\n", err.message);
            exit(EXIT_FAILURE);
        }
        if (r == 0) {
            stall(&random);
            if (next(&random) % 2)
                channel_sleep(duck->channel, stopped, duck);
            continue;
        }
        check(&frame, done);
        size_t length = frame.length;
        stall(&random);
        channel_taken(duck->channel);
        if (put(duck->channel, WIRE_STEP_DONE, done++, length, &random) != CHANNEL_AWAKE)
            (void)eventfd_write(duck->bell, 1);
    }
    return NULL;
}

/* False: nothing came in time. */
static bool wait_bell(struct channel *head, int bell, struct random *random)
{
    stall(random);
    if (channel_set_mode(head, CHANNEL_ASLEEP)) {
        (void)channel_set_mode(head, CHANNEL_AWAKE);
        return true;
    }
    struct pollfd wait = {.fd = bell, .events = POLLIN};
    int r = poll(&wait, 1, LIMIT_MS);
    eventfd_t count;
    (void)eventfd_read(bell, &count);
    (void)channel_set_mode(head, CHANNEL_AWAKE);
    return r > 0 || channel_pending(head);
}

/* False: a sleeper was left. */
static bool head_main(struct channel *head, int bell, uint64_t frames, struct random *random)
{
    uint64_t sent = 0, got = 0, heard_ns = clock_now_ns();
    (void)channel_set_mode(head, CHANNEL_AWAKE);
    while (got < frames) {
        struct frame frame;
        struct err err;
        while (sent < frames && sent - got < 1 + next(random) % IN_FLIGHT_MAX) {
            uint64_t dice = next(random);
            if (put(head, WIRE_STEP, sent++, dice % 8 ? dice >> 32 & 0x1ff : dice >> 32 & PAYLOAD_MAX, random) == CHANNEL_ASLEEP)
                channel_wake(head);
        }
        int r = channel_next(head, &frame, &err);
        if (r < 0) {
            fprintf(stderr, "head: %s\n", err.message);
            exit(EXIT_FAILURE);
        }
        if (r > 0) {
            check(&frame, got++);
            channel_taken(head);
            heard_ns = clock_now_ns();
        } else if (sent > got && next(random) % 2 && !wait_bell(head, bell, random)) {
            return false;
        } else if (clock_now_ns() - heard_ns > LIMIT_MS * CLOCK_NS_PER_MS) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    bool expect = argc > 1 && strcmp(argv[1], "--expect-sleep") == 0;
    const char *number = argc > 1 + expect ? argv[1 + expect] : NULL, *seed_text = getenv("FP9_SEED");
    uint64_t frames = FRAMES_DEFAULT, seed = clock_now_ns() | 1;
    if ((number && !size_parse_u64(number, 1, UINT32_MAX, &frames)) || (seed_text && !size_parse_u64(seed_text, 1, UINT64_MAX, &seed)))
        return 2;
    printf("FP9_SEED=%" PRIu64 "\n", seed);
    int fd;
    struct err err;
    _cleanup_(channel_freep) struct channel *head = NULL;
    struct duck duck = {.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .seed = seed * 3 | 1};
    if (channel_new(0, &head, &fd, &err) < 0 || channel_open(fd, &duck.channel, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return EXIT_FAILURE;
    }
    close(fd);
    pthread_t thread;
    struct random random = {.state = seed};
    if (pthread_create(&thread, NULL, duck_main, &duck) != 0)
        return EXIT_FAILURE;
    bool good = head_main(head, duck.bell, frames, &random);
    atomic_store(&duck.stop, true);
    channel_wake(head);
    pthread_join(thread, NULL);
    channel_free(duck.channel);
    close(duck.bell);
    printf("%s\n", good ? "all frames arrived" : "a sleeper was left beside a frame");
    return good != expect ? EXIT_SUCCESS : EXIT_FAILURE;
}
